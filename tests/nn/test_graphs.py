"""Recorded passes give the bits of passes that walk through the layers, through everything that changes them."""

import contextlib
import copy
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from numba.core.compiler_lock import global_compiler_lock

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.kernels.cpu.runtime import entries
from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
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


class CountsForwards(nn.ReLU):
    replayable = True
    ran = 0

    def forward(self, state, saved):
        self.ran += 1
        return super().forward(state, saved)


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_a_walked_backward_pass_continues_the_replayed_forward_pass(checkpoint_blocks):
    """Though another one was walked last: what a recording leaves for its backward pass is not that of another one."""
    manual_seed(1)
    block = nn.LayerBlock(nn.Linear(4, 4), CountsForwards(), nn.BatchNorm2d(4))
    net = randomise(nn.Sequential(nn.Linear(3, 4), block, nn.Linear(4, 2), checkpoint_blocks=checkpoint_blocks))
    both = Both(net)
    counts = both.nets[0].layers[1].layers[1]
    for batch in (4, 3):
        both.train(batch, steps=4)
    both.forward(4)
    ran = counts.ran
    with contextlib.ExitStack() as hooks:
        for one in both.nets:
            hooks.enter_context(one.add_hook(after=lambda leaf, direction: None))
        both.backward()
    assert counts.ran == ran
    both.do(nn.Sequential.step)
    both.train(4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_refused_changes_nothing(bad):
    both = Both(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    both.train(5)
    both.train(5, with_var=True)
    both.forward(5)
    x = np.ones((5, 3))
    x[2, 1] = bad
    for net in both.nets:
        with pytest.raises(ValueError, match="mu_x: 1 of 15 values are NaN or infinite"):
            net(x)
        with pytest.raises(ValueError, match="var_x"):
            net(np.ones((5, 3)), x)
        with pytest.raises(ValueError, match="var_x holds variances and must not be negative"):
            net(np.ones((5, 3)), -np.ones((5, 3)))
        with pytest.raises(ValueError, match="var_obs"):
            noise = -np.ones(10)
            both.updater.update(net.output_z_buffer, np.ones(10), noise, net.input_delta_z_buffer)
        if np.isinf(bad):
            with pytest.raises(ValueError, match="observations are infinite"):
                both.updater.update(net.output_z_buffer, np.full(10, bad), np.ones(10), net.input_delta_z_buffer)
    both.backward()  # of the pass before
    both.do(nn.Sequential.step)
    both.train(5)


def test_a_plan_goes_through_python_where_it_must():
    replay, calls = load("runtime._replay"), []
    a, b = np.ones((2, 3), np.float32)
    with replay.recording() as plan:
        replay.copy(a, b, 1)
        replay.call(calls.append, 1)
        replay.call(replay.copy, b, a, 1)  # counts once
        replay.clear(a)
        replay.copy(np.arange(3), b, 1)  # of another type
    assert plan.calls == 5 and calls == [1]
    a[...], b[...] = 7, 8
    plan.run()
    assert calls == [1, 1] and a.tolist() == [0, 0, 0] and b.tolist() == [0, 1, 2]


def test_threads_that_need_the_same_entry_share_it(monkeypatch):
    """They wait for each other's compilation. Each compiled it again, under the name of an entry of other arguments."""
    names = []
    monkeypatch.setattr(entries, "_entries", {})
    monkeypatch.setattr(
        entries, "_compile", lambda context, kind, divided, name: (names.append(name), len(names))[::-1]
    )
    with ThreadPoolExecutor(3) as pool:
        with global_compiler_lock:
            waiting = [pool.submit(entries._entry, None, "void (i32)", True) for _ in range(3)]
            time.sleep(0.2)
        assert [each.result() for each in waiting] == [1] * 3
    assert names == ["pytagi_ddp_entry_0"]


@pytest.mark.parametrize("size", [262_143, 262_144, 300_001])
def test_large_copies_on_many_threads(size):
    source, (out, replayed) = np.arange(size, dtype=np.float32), np.zeros((2, size + 1), np.float32)
    replay = load("runtime._replay")
    with replay.recording() as plan:
        replay.copy(source, out[:-1], 3)
        replay.copy(out, replayed, 3)
    replayed[:] = 7
    plan.run()
    np.testing.assert_array_equal(replayed[:-1], source)
    assert replayed[-1] == out[-1] == 0


def test_batch_statistics_are_those_of_the_last_pass_replayed_or_not():
    manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm2d(6), nn.ReLU(), nn.Linear(6, 2))
    first = nn.Sequential(copy.deepcopy(net.layers[0]))
    rng = np.random.default_rng(0)
    for batch in (16, 16, 16, 5, 16, 5, 16):
        x = rng.normal(size=(batch, 4)).astype(np.float32)
        net(x)
        net.eval()
        net(x[:3])  # evaluation takes nothing of it away
        net.train()
        mu, var = (moments.reshape(batch, 6).astype(float) for moments in first(x))
        mean, variance = net.layers[1].batch_statistics()
        np.testing.assert_allclose(mean, mu.mean(0), atol=1e-5)
        expected = (((mu - mu.mean(0)) ** 2).sum(0) + var.sum(0)) / (batch - 1)
        np.testing.assert_allclose(variance, expected, rtol=1e-4)


@pytest.mark.parametrize("input_deltas", [False, True])
def test_batch_sizes_in_any_order(input_deltas):
    """Passes of one size are replayed between such of others that are walked through, recorded, or make buffers."""
    both = Both(randomise(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))))
    both.do(lambda net: setattr(net, "input_state_update", input_deltas))
    for batch in [3, 2, 2, 2, 3, 3, 2, 2, *np.random.default_rng(5).integers(1, 9, 100)]:
        both.train(batch, steps=1)


def test_inputs_from_several_places():
    """A network's own memory, and the outputs of others: batches of one size, but other memory to read."""
    manual_seed(4)
    both = Both(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    sources = [nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 3), nn.Tanh())]
    for _ in range(5):
        for source in sources:
            source(both.rng.normal(size=(6, 2)))
            both.do(lambda net, source=source: net(source.output_z_buffer))
            both.backward()
            both.do(nn.Sequential.step)
        both.train(6, steps=1)


FORMS = {
    "float": float,
    "float64": np.float64,
    "float32": np.float32,
    "list": lambda value: [float(value)],
    "int": int,
    "list of int": lambda value: [int(value)],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_numbers_and_lists_take_the_fast_path(form):
    """Streams of single samples, as in a loop over a series, with the bits of arrays."""
    manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    other, updater = copy.deepcopy(net), nn.OutputUpdater("cpu")
    for value in np.random.default_rng(0).integers(-3, 4, 6):
        for one, x, var_x, var_y in (
            (net, form(value), form(2), 1),
            (other, np.array([float(value)]), np.array([2.0]), 1.0),
        ):
            one(x, var_x)
            updater.update(one.output_z_buffer, x, var_y, one.input_delta_z_buffer)
            one.backward()
            one.step()
    assert net.passes.express.forward(net, net.passes, form(1), form(2), True) is not None
    for var_y in (1, 0.1):
        assert updater._express(net.output_z_buffer, form(1), var_y, net.input_delta_z_buffer)
    np.testing.assert_array_equal(net.arena.theta, other.arena.theta)


@pytest.mark.parametrize("bad", [np.nan, [np.inf], "1", ["1"], [None], [[1.0, 2.0], [3.0]], 10**400, [0.5, 10**400]])
def test_numbers_and_lists_that_are_refused(bad):
    net = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    before = [net([0.5]) for _ in range(4)][-1]
    with pytest.raises((TypeError, ValueError)):
        net(bad)
    np.testing.assert_array_equal(net([0.5]), before)


def test_predictions_are_evaluations_whatever_is_recorded():
    """Of a network in evaluation that has a norm in training, too, which moves its statistics with each other call."""
    both = Both(randomise(with_batch_norm(2)))
    both.train(4)
    x = both.rng.normal(size=(4, 72))
    expected = both.nets[0].predict(x)
    both.do(nn.Sequential.eval)
    for net in both.nets:
        net.arena.running[0].training = True
    before = both.nets[0].arena.statistics.copy()
    for _ in range(4):
        both.do(lambda net: net(x))
    assert not np.array_equal(both.nets[0].arena.statistics, before)
    for net in both.nets:
        net.arena.statistics[...] = before
    both.do(lambda net: net.predict(x))
    np.testing.assert_array_equal(both.nets[0].predict(x), expected)


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_a_frozen_norm(checkpoint_blocks):
    """It uses its running statistics, and leaves them, while the rest of the network is trained."""
    both = Both(randomise(with_batch_norm(2)))
    both.train(4)
    for net in both.nets:
        net.checkpoint_blocks = checkpoint_blocks
        for leaf in net.arena.running:
            leaf.training = False
    net = both.nets[0]
    x, statistics, theta = both.rng.normal(size=(4, 72)), net.arena.statistics.copy(), net.arena.theta.copy()
    expected = net.predict(x)[0].ravel()
    np.testing.assert_array_equal(net(x)[0], expected)
    both.train(4)
    np.testing.assert_array_equal(net.arena.statistics, statistics)
    assert not np.array_equal(net.arena.theta, theta)
    both.do(nn.Sequential.train)
    both.train(4)
    assert not np.array_equal(net.arena.statistics, statistics)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_outputs_are_arrays_of_their_own(threads, request):
    """Memory that the program has let go of serves again; what it holds, in whatever form, stays as it is."""
    request.addfinalizer(partial(set_threads, get_threads()))
    net = nn.Sequential(nn.Linear(2, 300_000))
    net.set_threads(threads)
    inputs = [np.float32([[k, -1]]) for k in range(8)]
    expected = [np.stack(net(x)) for x in inputs]
    held = []
    for k, x in enumerate(inputs):
        mu, var = net(x)
        np.testing.assert_array_equal([mu, var], expected[k])
        assert mu.flags.writeable
        assert mu.ndim == var.ndim == 1
        match k:
            case 2:
                held = [mu, var[::2]]  # an array, and a view
            case 3:
                view = memoryview(mu)
            case 4:
                with warnings.catch_warnings():  # NumPy 2.5 deprecates it
                    warnings.simplefilter("ignore", DeprecationWarning)
                    mu.shape = var.shape = (3, 100_000)  # let go of, with another shape
            case 5:
                mu.flags.writeable = var.flags.writeable = False
            case _:
                mu[:] = var[:] = -1
        del mu, var
    np.testing.assert_array_equal(held[0], expected[2][0])
    np.testing.assert_array_equal(held[1], expected[2][1][::2])
    np.testing.assert_array_equal(view, expected[3][0])
    large = np.ones(600_000)
    large[-1] = np.inf
    wide = nn.Sequential(nn.Linear(300_000, 1))
    for _ in range(3):
        wide(np.zeros(600_000))
    with pytest.raises(ValueError, match="mu_x: 1 of 600000 values are NaN or infinite"):
        wide(large)
