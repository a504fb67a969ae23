"""What code around a network may rely on: pending deltas, hooks around leaves, and the kinds of state."""

import copy
import sys

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.core.running import RunningStatistics
from pytagi_ddp.nn.core.step import At, Change, Lost
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.run import passes as passes_module
from tests.nn.carrying import Memory
from tests.nn.networks import random_batch, randomise


def network(**options) -> nn.Sequential:
    main = nn.LayerBlock(nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.MixtureReLU(), nn.BatchNorm2d(2))
    block = nn.ResNetBlock(main, nn.LayerBlock(nn.Conv2d(2, 2, 1)))
    stem = nn.Conv2d(1, 2, 3, padding=1, in_width=4, in_height=4)
    return randomise(nn.Sequential(stem, nn.ReLU(), block, nn.Linear(32, 3), **options))


def passes(net, x, delta_mu, delta_var) -> None:
    net(x)
    net.set_delta_z(delta_mu, delta_var)
    net.backward()


def backpropagate(net, seed: int = 0, batch: int = 6) -> None:
    x, _, *deltas = random_batch(net, batch, seed)
    passes(net, x, *deltas)


def test_pending_deltas_follow_a_step():
    net = network()
    assert (net.passes.samples, net.passes.waiting, net.passes.adds) == (0, 0, False)
    backpropagate(net)
    assert (net.passes.samples, net.passes.waiting) == (6, 6)
    backpropagate(net)
    assert net.passes.waiting == 6  # replaced, not added
    net.step()
    assert (net.passes.samples, net.passes.waiting) == (6, 0)


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_hooks_around_every_leaf(checkpoint_blocks):
    net = network(checkpoint_blocks=checkpoint_blocks)
    twin = copy.deepcopy(net)
    keys = {leaf: key for key, leaf in net.named_leaves()}
    calls = []

    def record(when):
        return lambda leaf, direction: calls.append((when, direction, keys[leaf]))

    with net.add_hook(record("before"), record("after")):
        backpropagate(net)
        inside = copy.deepcopy(net)
    forward = list(keys.values())
    expected = [(when, "forward", key) for key in forward for when in ("before", "after")]
    assert calls[: len(expected)] == expected
    backward = calls[len(expected) :]
    learned = [key for key in forward if not key.startswith("ReLU")]
    order = ["Linear.3", "Conv2d.shortcut.2.0", "BatchNorm2d.main.2.2", "MixtureReLU.main.2.1", "Conv2d.main.2.0"]
    order += ["ReLU.1", "Conv2d.0"]
    assert backward == [(when, "backward", key) for key in order for when in ("before", "after")]
    assert set(learned) <= set(order)
    calls.clear()
    backpropagate(net)
    backpropagate(inside)
    assert calls == []  # taken off; and a copy has none
    backpropagate(twin)
    assert np.array_equal(net.arena.theta, twin.arena.theta)


def test_a_hook_sees_complete_sums():
    net = network()
    backpropagate(net)
    expected = {key: np.array(leaf.delta_mu_w) for key, leaf in net.named_leaves()}
    seen = {}
    keys = {leaf: key for key, leaf in net.named_leaves()}

    def after(leaf, direction):
        if direction == "backward":
            seen[keys[leaf]] = np.array(leaf.delta_mu_w)

    net.arena.delta[...] = 7
    handle = net.add_hook(after=after)
    backpropagate(net)
    handle.remove()
    handle.remove()
    assert len(seen) == 7
    assert all(np.array_equal(seen[key], expected[key]) for key in seen)


class Counter(RunningStatistics, Memory):
    """Counts its training passes, too."""

    name = "Counter"
    replayable = True
    num_sums = 1

    def update_running(self):
        pass

    def normalisation_moments(self):
        return ()

    def state_tensors(self):
        return *super().state_tensors(), TensorSpec("passes", 1, "running", variance=True)

    def forward(self, state, saved):
        if self.training and not saved.recomputed:
            one = saved.scratch("one", (1,))
            one[...] = 1
            self.kernels.elementwise.add(self.state["passes"], one, self.state["passes"])
        return super().forward(state, saved)


def carrying(**options) -> nn.Sequential:
    block = nn.LayerBlock(Counter(), nn.Linear(2, 2))
    return nn.Sequential(nn.Linear(2, 2), block, nn.Linear(2, 1), **options)


def test_state_is_laid_out_saved_and_reset_by_kind(tmp_path):
    net = carrying()
    assert (net.arena.statistics.size, net.arena.carried.size) == (1, 2)
    x = np.ones((1, 2))
    net(x)
    carried = net.arena.carried.copy()
    assert not np.array_equal(carried, [1, 1])
    assert "Counter.1.0.running" in net.state_dict() and "Counter.1.0.carried" not in net.state_dict()
    with_memory = net.state_dict(carried=True)
    assert np.array_equal(with_memory["Counter.1.0.carried"][0], carried)
    twin = copy.deepcopy(net)
    assert np.array_equal(twin.arena.carried, carried)
    net.save(tmp_path / "plain")
    net.save(tmp_path / "carried", carried=True)
    net.reset_lstm_states()
    assert np.array_equal(net.arena.carried, [1, 1])
    net.load(tmp_path / "plain")
    assert np.array_equal(net.arena.carried, [1, 1]) and net.arena.statistics == [1]
    net.load(tmp_path / "carried")
    assert np.array_equal(net.arena.carried, carried)
    net.reset_lstm_states()
    net.load_state_dict(with_memory)
    assert np.array_equal(net.arena.carried, carried)
    with_memory["Counter.1.0.running"] = (np.float32([-1]), *with_memory["Counter.1.0.running"][1:])
    with pytest.raises(ValueError, match="must not be negative"):
        net.load_state_dict(with_memory)


@pytest.mark.parametrize("name", ["before", "after"])
def test_a_hook_that_cannot_be_called(name):
    net = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(TypeError, match=f"{name} is a function of a layer and a direction, got 'print'"):
        net.add_hook(**{name: "print"})
    net(np.ones((4, 2)))


def test_a_hook_cannot_run_its_own_network_and_may_take_itself_off():
    net, seen = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), []
    x = np.ones((4, 2))
    expected = net(x)
    inner = copy.deepcopy(net)

    def run(layer, direction):
        for call in (lambda: net.predict(x), lambda: net(x)):
            with pytest.raises(RuntimeError, match="from one of its own hooks"):
                call()
        seen.append(inner.predict(x)[0].ravel())
        once.remove()

    once = net.add_hook(after=run)
    with net.add_hook(after=lambda layer, direction: seen.append(layer.name)):
        moments = net(x)
    np.testing.assert_allclose(seen.pop(1), expected[0], rtol=1e-6)
    assert seen == ["Linear", "Tanh", "Linear"]
    np.testing.assert_allclose(moments, expected, rtol=1e-5)
    np.testing.assert_allclose(net(x), expected, rtol=1e-5)


def test_a_pass_that_was_interrupted_anywhere_is_over():
    """From Python 3.14 on, an interrupt may come between the start of a context and its block."""
    net, x, place = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), np.ones((4, 2)), 0
    expected = net(x)

    def profile(frame, event, argument):
        nonlocal left
        left -= frame.f_code.co_filename == passes_module.__file__
        if left < 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    with net.add_hook(after=lambda layer, direction: None):
        while True:
            left = place
            sys.setprofile(profile)
            try:
                net(x)
                break
            except KeyboardInterrupt:
                place += 1
            finally:
                sys.setprofile(None)
            np.testing.assert_allclose(net(x), expected, rtol=1e-5)
    assert place > 10


def test_a_step_is_in_one_place():
    """From nothing to a forward pass, batch sums, those of all ranks, and back."""
    net, seen = network(), []
    x, _, delta_mu, delta_var = random_batch(net, 6)
    calls = {
        At.FORWARD: lambda: net(x),
        At.BACKWARD: lambda: (net.set_delta_z(delta_mu, delta_var), net.backward()),
        At.REDUCED: lambda: net.passes.exchanged(average=False),
        At.IDLE: net.passes.stepped,
    }
    for call in calls.values():
        call()
        seen.append(net.passes.at)
    assert seen == list(calls)
    net(x)
    with pytest.raises(RuntimeError, match="wait for a backward pass"):
        net.set_delta_z(delta_mu, delta_var)
        net.step()
    net.eval()
    net(x)
    assert net.passes.at is At.IDLE


@pytest.mark.parametrize("change", Change)
def test_what_a_change_takes_from_a_step(change):
    """A backward pass from an earlier forward pass, or nothing but time: passes are recorded anew."""
    net = network()
    for _ in range(4):
        backpropagate(net)
        net.step()
    backpropagate(net)
    net(random_batch(net, 6)[0])
    net.passes.invalidate(change)
    assert net.passes.waiting == 6
    assert (net.passes.at is At.FORWARD) == (Lost.BACKWARD not in change.lost)
    net.set_delta_z(np.ones(18), np.zeros(18))
    if Lost.BACKWARD in change.lost:
        with pytest.raises(RuntimeError, match="needs a forward pass in training mode"):
            net.backward()
    else:
        net.backward()
    net.step()
    backpropagate(net)
    assert net.passes.waiting == 6


def test_passes_leave_nothing_in_layers():
    """But for the mean and variance of the last batch in a BatchNorm2d."""
    main = nn.LayerBlock(nn.Conv2d(2, 4, 3, padding=1), nn.MixtureReLU(), nn.MaxPool2d(2, 2))
    block = nn.ResNetBlock(main, nn.LayerBlock(nn.Conv2d(2, 4, 2, stride=2), nn.BatchNorm2d(4)))
    first = nn.Conv2d(1, 2, 3, in_width=6, in_height=6)
    rest = nn.AvgPool2d(2), nn.Linear(4, 6), nn.LayerNorm([6]), nn.MultiheadAttention(6, 1), nn.LSTM(6, 3)
    net = randomise(nn.Sequential(first, block, *rest, checkpoint_blocks=True))
    before = {key: dict(vars(layer)) for key, layer in net.named_layers()}
    for step in range(4):
        backpropagate(net, step)
    for key, layer in net.named_layers():
        now = vars(layer) | ({"_batch": None} if layer.name == "BatchNorm2d" else {})
        assert now.keys() == before[key].keys()
        assert all(now[name] is value for name, value in before[key].items()), key


def test_a_context_keeps_its_own_names_and_says_what_is_missing():
    layer = nn.Linear(2, 3)
    net = nn.Sequential(layer)
    saved = nn.Saved(layer)
    saved.mine = 3
    assert saved.mine == 3 and saved.needs_input and not saved.accumulate
    for name in ("output", "needs_input", "pool"):
        with pytest.raises(AttributeError, match=f"a context has '{name}' itself: give what forward"):
            setattr(saved, name, 3)
    with pytest.raises(AttributeError, match="'Saved' object has no attribute 'other'"):
        _ = saved.other
    with pytest.raises(TypeError, match="a layer must not hold it"):
        copy.copy(saved)
    x = np.ones((4, 2), np.float32)
    assert np.array_equal(layer.forward(nn.State(x, None), saved).mu.reshape(-1), net(x)[0])


def test_layers_of_earlier_pickles_lose_what_passes_kept_in_them():
    layer = nn.BatchNorm2d(3)
    kept = dict.fromkeys(("_input", "_memory", "_pool", "_norm", "made", "reduce_sums", "on_moments"))
    old = layer.__getstate__() | kept | {"_buffers": {}, "pool_at_step": False, "_trained": False}
    new = object.__new__(nn.BatchNorm2d)
    new.__setstate__(old)
    assert vars(new).keys() == layer.__getstate__().keys()
    backpropagate(nn.Sequential(nn.Linear(2, 3), new))
