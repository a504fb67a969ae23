"""Steps that are replayed equal steps that are walked, whatever happens between them."""

import copy
import threading

import numpy as np
import pytest

from pytagi_ddp import cuda, manual_seed, nn
from pytagi_ddp.distributed.ddp import DDPConfig, DDPSequential
from pytagi_ddp.kernels.cuda.runtime import graph
from pytagi_ddp.kernels.cuda.runtime.array import arrays
from pytagi_ddp.kernels.cuda.runtime.recorder import is_recording
from tests.cuda.on_device.test_networks import train
from tests.nn.carrying import Memory
from tests.nn.networks import randomise

PARTS = 3  # forward, backward, step


def dense() -> nn.Sequential:
    manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm2d(2), nn.MixtureReLU(), nn.LayerNorm([2]), nn.Linear(2, 2))
    return randomise(net)


def blocks() -> nn.Sequential:
    def block() -> nn.ResNetBlock:
        return nn.ResNetBlock(nn.LayerBlock(nn.Linear(2, 2), nn.BatchNorm2d(2), nn.Tanh()))

    manual_seed(1)
    return randomise(nn.Sequential(nn.Linear(3, 2), block(), block()))


def carrying() -> nn.Sequential:
    manual_seed(1)
    return randomise(nn.Sequential(nn.Linear(3, 2), nn.LayerBlock(Memory(), nn.Linear(2, 2)), nn.LayerBlock(nn.Tanh())))


def inputs(batch: int = 3) -> np.ndarray:
    return np.random.default_rng(batch).normal(size=(batch, 3))


@pytest.fixture
def replays(monkeypatch) -> list:
    """One entry for each part that is replayed."""
    calls, replay = [], graph.replay
    monkeypatch.setattr(graph, "replay", lambda work: (calls.append(len(work)), replay(work)))
    return calls


def evaluate(net: nn.Sequential) -> None:
    net.predict(inputs())


def input_with_variance(net: nn.Sequential) -> None:
    for scale in (0.1, 0.2):
        net(inputs(), np.full((3, 3), scale))


def output_of_another_network(net: nn.Sequential) -> None:
    first = randomise(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
    first.to_device(net.device)
    for x in np.random.default_rng(0).normal(size=(3, 3, 2)):
        first(x)
        net(first.output_z_buffer)
        net.set_delta_z(np.full(6, 0.3), np.full(6, -0.2))
        net.backward()
        net.step()


def accumulate(net: nn.Sequential) -> nn.Sequential:
    ddp = DDPSequential(net, DDPConfig(backend="serial"))
    for _ in range(2):
        for x in (inputs(), 2 * inputs(), 3 * inputs()):
            with ddp.no_sync():
                ddp(x)
                net.set_delta_z(np.full(6, x.sum()), np.full(6, -0.2))
                ddp.backward()
        ddp.step()
    return copy.deepcopy(net)  # one that steps by itself


def load(net: nn.Sequential) -> None:
    other = copy.deepcopy(net)
    other.to_device("cpu")
    net.load_state_dict(randomise(other, seed=5).state_dict())


def momentum(net: nn.Sequential) -> None:
    net.layers[1].momentum = 0.3


def eps(net: nn.Sequential) -> None:
    net.layers[1].eps = net.layers[3].eps = 0.1


def fresh_statistics(net: nn.Sequential) -> None:
    nn.update_bn([inputs(2)], net)
    net.input_state_update ^= True  # the backward pass is walked, behind a forward pass that could be replayed


def checkpoint_blocks(net: nn.Sequential) -> None:
    net.checkpoint_blocks = True
    train(net, 3)
    net.checkpoint_blocks = False


def there_and_back(net: nn.Sequential) -> None:
    net.to_device("cpu")
    net.to_device("cuda")


def copied(net: nn.Sequential) -> nn.Sequential:
    twin = copy.deepcopy(net)
    train(net, 3, seed=7)
    return twin


def beside_another(net: nn.Sequential) -> None:
    other = dense()
    other.to_device("cuda")
    for seed in range(3):
        train(other, 1, seed=seed)
        train(net, 1, seed=seed)


def in_a_thread(net: nn.Sequential) -> None:
    thread = threading.Thread(target=train, args=(net, 3))
    thread.start()
    thread.join()


def other_products(net: nn.Sequential) -> None:
    cuda.allow_tf32 = True
    train(net, 3)
    cuda.allow_tf32 = False


def other_batch(net: nn.Sequential) -> None:
    train(net, 1, batch=5)


CHANGES = {
    dense: (
        evaluate,
        input_with_variance,
        output_of_another_network,
        load,
        momentum,
        eps,
        fresh_statistics,
        there_and_back,
        beside_another,
        in_a_thread,
        other_products,
        other_batch,
        accumulate,
        copied,
    ),
    blocks: (checkpoint_blocks, fresh_statistics, other_batch),
    carrying: (evaluate, nn.Sequential.reset_lstm_states, load, checkpoint_blocks, there_and_back, other_batch, copied),
}


@pytest.mark.parametrize("make", CHANGES)
def test_replayed_steps_equal_walked_steps(make, replays, monkeypatch):
    """To the last bit after each change and three more steps, the third of which is replayed."""
    walked, replayed = {}, {}
    for states, switch in ((walked, False), (replayed, True)):
        monkeypatch.setattr(cuda, "replay_launches", switch)
        net = make()
        net.to_device("cuda")
        train(net, 3)
        for change in CHANGES[make]:
            net = change(net) or net
            before = len(replays)
            train(net, 3, seed=1)
            assert len(replays) - before >= switch * PARTS, change.__name__
            states[change.__name__] = net.state_dict(carried=True)
        assert bool(replays) == switch
    for name, state in walked.items():
        assert replayed[name] == state, f"differs after: {name}"


def test_a_backward_pass_that_is_walked_behind_a_replayed_forward_pass(replays, monkeypatch):
    """With the kernels; a block whose activations are not where the walk left them is run again."""
    states = []
    for switch in (False, True):
        monkeypatch.setattr(cuda, "replay_launches", switch)
        net = blocks()
        net.checkpoint_blocks = True
        net.to_device("cuda")
        train(net, 2)
        net.input_state_update = True
        train(net, 1, seed=1)
        states.append(net.state_dict())
    assert states[0] == states[1]
    assert len(replays) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda array, zeros, host: array.to_host(zeros),
        lambda array, zeros, host: array.snapshot(zeros),
        lambda array, zeros, host: array.copy(zeros, host),
        lambda array, zeros, host: array.copy(host, zeros),
        lambda array, zeros, host: array.place(host),
        lambda array, zeros, host: array.synchronize(),
    ],
)
def test_what_a_replay_would_miss_is_refused(function):
    array = arrays(0)
    zeros, host = array.zeros(3), np.ones(3, np.float32)
    graphs = graph.Graphs(array)
    graphs.run("part", 0, (zeros,), lambda: function(array, zeros, host))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="is being recorded: its replay would miss that"):
            graphs.run("part", 0, (zeros,), lambda: function(array, zeros, host))
        assert not is_recording()
    function(array, zeros, host)


def test_a_recording_keeps_the_memory_that_it_works_on(replays):
    array = arrays(0)
    graphs, source, results = graph.Graphs(array), array.place(np.ones(3, np.float32)), []

    def part():
        results.append(array.zeros(3))
        array.copy(source, results[-1])
        return results[-1]

    for _ in range(4):
        out = graphs.run("part", 0, (source,), part)
    assert len(results) == 2 and out is results[1] and replays == [2, 2]
    array.copy(np.full(3, 5, np.float32), source)
    graphs.run("part", 0, (source,), part)
    np.testing.assert_array_equal(array.to_host(out), 5)


@pytest.mark.parametrize("change", ["thread", "tf32"])
def test_another_thread_or_another_type_of_products_is_walked(change, replays, monkeypatch):
    net = dense()
    net.to_device("cuda")
    train(net, 3)
    assert len(replays) == PARTS
    if change == "thread":
        thread = threading.Thread(target=train, args=(net, 2))
        thread.start()
        thread.join()
    else:
        monkeypatch.setattr(cuda, "allow_tf32", True)
        train(net, 2)
    assert len(replays) == PARTS
