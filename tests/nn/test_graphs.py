"""Recorded passes give the bits of passes that walk through the layers, through everything that changes them."""

import copy
import threading

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.kernels.cpu.extension import load
from tests.mpi.ddp_networks import with_batch_norm
from tests.nn.networks import randomise
from tests.nn.twins import Both


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_whatever_comes_in_between(checkpoint_blocks):
    """A forward pass that was replayed, and then something that needs the layers to remember it."""
    manual_seed(2)
    both = Both(randomise(with_batch_norm(2)))
    if checkpoint_blocks:
        for net in both.nets:
            net.checkpoint_blocks = True
    both.train(4)
    both.train(3)
    x = both.rng.normal(size=(3, 72))
    both.do(lambda net: net.predict(x))
    both.forward(4)  # replayed, while the layers remember the prediction
    both.do(lambda net: setattr(net, "input_state_update", True))
    both.backward()  # of a key that has never been recorded: walks
    both.do(nn.Sequential.step)
    both.train(4)
    for _ in range(3):
        with both.nets[0].accumulate(), both.nets[1].accumulate():
            both.forward(4)
            both.backward()
            both.forward(3)
            both.backward()
        both.forward(4)
        both.backward()
        both.do(nn.Sequential.step)
    both.forward(4)
    seen = []
    handles = [net.add_hook(after=lambda leaf, direction: seen.append(leaf)) for net in both.nets]
    both.backward()
    for handle in handles:
        handle.remove()
    assert len(seen) > 10
    both.do(nn.Sequential.step)
    both.train(4)
    both.do(lambda net: nn.update_bn([x, x + 1], net) and None)
    both.train(4, steps=1)
    for net in both.nets:
        net.checkpoint_blocks = not checkpoint_blocks
    both.train(4)
    state = both.nets[0].state_dict()
    both.train(4, steps=1)
    both.do(lambda net: net.load_state_dict(state))
    both.train(4, steps=2)
    both.forward(9)  # larger buffers: nothing recorded may be used
    both.train(4)
    copies = Both(copy.deepcopy(both.nets[0]))
    copies.train(4)
    both.nets[0].set_threads(2)
    both.train(4)


def test_chained_networks():
    manual_seed(3)
    first, second = (Both(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))) for _ in range(2))
    for _ in range(5):
        first.forward(6)
        pairs = dict(zip(second.nets, first.nets, strict=True))
        second.do(lambda net, pairs=pairs: net(pairs[net].output_z_buffer))
        for net in second.nets:
            net.input_state_update = True
        second.backward()
        for net, source in pairs.items():
            source.set_delta_z(*net.get_input_states())
        first.do(nn.Sequential.backward)
        for both in (first, second):
            both.do(nn.Sequential.step)


def test_threads_with_a_network_each():
    def train(seed: int, results: dict) -> None:
        manual_seed(seed)
        net = networks[seed]
        updater, rng = nn.OutputUpdater("cpu"), np.random.default_rng(seed)
        for step in range(60):
            batch = (5, 5, 5, 5, 3)[step % 5]
            net(rng.normal(size=(batch, 20)))
            updater.update(net.output_z_buffer, rng.normal(size=batch), np.ones(batch), net.input_delta_z_buffer)
            net.backward()
            net.step()
        results[seed] = net.arena.theta.copy()

    results: list[dict] = [{}, {}]
    for found, parallel in zip(results, (True, False), strict=True):
        manual_seed(1)
        networks = [nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 1)) for _ in range(4)]
        threads = [threading.Thread(target=train, args=(seed, found)) for seed in range(4)]
        for thread in threads:
            thread.start()
            if not parallel:
                thread.join()
        for thread in threads:
            thread.join()
    assert all(np.array_equal(results[0][seed], results[1][seed]) for seed in range(4))


def test_a_plan_goes_through_python_where_it_must():
    replay, calls = load("_replay"), []
    a, b = np.ones((2, 3), np.float32)
    with replay.recording() as plan:
        replay.copy(a, b)
        replay.call(calls.append, 1)
        replay.call(replay.copy, b, a)  # counts once
        replay.clear(a)
        replay.copy(np.arange(3), b)  # of another type
    assert plan.calls == 5 and calls == [1]
    a[...], b[...] = 7, 8
    plan.run()
    assert calls == [1, 1] and a.tolist() == [0, 0, 0] and b.tolist() == [0, 1, 2]
