"""Checks of the ways in which a pass can run (recorded, recomputed, with hooks, in parts), and of what it changes."""

import copy
from functools import partial

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.layers.activation import Activation
from pytagi_ddp.nn.run.rebuild import keep_layers
from tests.battery.example import (
    Example,
    assert_continue_alike,
    assert_same_bits,
    check,
    observe,
    snapshot,
    train,
)
from tests.nn.networks import leaves, random_batch
from tests.nn.twins import Both, walked_parts


class Stop(Exception):
    """Ends a pass at a leaf."""


@check
def a_pass_that_is_cut_short_changes_nothing(example: Example) -> None:
    """An exception before or after any leaf: what outlasts a pass is as it was, and the network goes on as a copy."""
    net = train(example.network(), 4, 4, 4)
    twin, kept = copy.deepcopy(net), snapshot(net)
    del kept["buffer"]  # a backward pass that is cut short leaves sums behind, which no step takes
    moments = {"forward": 0, "backward": 0}

    def stop(at: tuple[str, int]):
        def count(leaf: nn.BaseLayer, direction: str) -> None:
            if at == (direction, moments[direction]):
                raise Stop
            moments[direction] += 1

        return count

    def note(direction: str) -> None:
        if direction == "backward":
            kept.update(without_buffer(net))

    for direction in moments:
        at, reached = 0, True
        while reached:
            moments.update(forward=0, backward=0)
            interrupted = stop((direction, at))
            with net.add_hook(before=interrupted, after=interrupted):
                try:
                    observe(net, 4, between=partial(note, direction))
                    reached = False
                except Stop:
                    assert_same_bits(snapshot(net), kept, f"{direction} pass cut short at moment {at}")
            at += 1 + at // 3
        net.load_state_dict(twin.state_dict(carried=True))
        kept.update(without_buffer(net))
    net.arena.buffer[...] = twin.arena.buffer
    assert_continue_alike(net, twin, "after passes that were cut short")


def without_buffer(net: nn.Sequential) -> dict[str, np.ndarray]:
    return {name: array for name, array in snapshot(net).items() if name != "buffer"}


@check
def a_step_that_is_refused_changes_nothing(example: Example) -> None:
    """Parameters stay; statistics and carried state go back to where they were after the step before, also replayed."""
    net = train(example.network(), 4)
    for step in range(4):
        state = snapshot(net)
        with net.accumulate():
            observe(net, 4, step)
        observe(net, 4, step + 1)
        if net.arena.statistics.size and not net.arena.carried.size:
            assert not np.array_equal(net.arena.statistics, state["statistics"])
        net.arena.delta[:, -1] = np.nan
        with pytest.raises(FloatingPointError):
            net.step()
        del state["buffer"]
        assert_same_bits(snapshot(net), state, f"step {step}, refused")
        train(net, 4, seed=step)


@check
def recorded_passes_have_the_same_bits(example: Example) -> str | None:
    """Passes that are replayed from C give the bits of passes that are walked through in Python.

    Batch sizes change, predictions come in between, and deltas accumulate. `Both` trains two equal networks, of which
    one is always walked through.
    """
    both = Both(example.network())
    x = random_batch(both.nets[0], 3)[0]
    for batch in (4, 2, 7, 4):
        both.train(batch, steps=3)
        both.do(lambda net: net.predict(x, 2))
    both.train(4, with_var=True)
    for _ in range(3):
        with both.nets[0].accumulate(), both.nets[1].accumulate():
            for batch in (4, 2):
                both.forward(batch)
                both.backward()
        both.forward(3)
        both.do(lambda net: net.predict(x, 2) and None)
        both.forward(4)
        both.backward()
        both.do(nn.Sequential.step)
    both.train(4, steps=2)
    state = both.nets[0].state_dict(carried=True)
    both.forward(5)  # layers remember this pass
    both.forward(4)  # replayed, so layers remember the other one; what the user changes before backward is kept
    both.do(nn.Sequential.reset_lstm_states)
    both.do(lambda net: setattr(net, "input_state_update", True))
    both.backward()  # with deltas of the input for the first time, so walked through, after a pass that was replayed
    both.do(lambda net: setattr(net, "input_state_update", False))
    both.do(lambda net: net.load_state_dict(state))
    both.train(4, steps=2)
    if not all(leaf.replayable for leaf in leaves(both.nets[0])):
        return "a layer of it says that its passes are more than calls of kernels"
    with walked_parts() as walked:
        both.train(4, steps=3)
    assert walked == ["forward", "backward", "step"] * 3, f"walked through, by the twin and by others: {walked}"


@check
def blocks_have_the_same_bits(example: Example) -> None:
    """A network whose layers stand in blocks, kept or recomputed (`checkpoint_blocks`), has the bits of one without.

    So does its state that is not learnt.
    """
    layers = example.network().layers
    # The first block has to contain a layer that knows the size of the input.
    sized = next(k for k, layer in enumerate(layers, 1) if not isinstance(layer, Activation))
    head = nn.Linear(layers[-1].output_size, 2)

    def network(*blocks: list, **options) -> nn.Sequential:
        wrap = (nn.LayerBlock(*copy.deepcopy(block)) for block in blocks)
        return nn.Sequential(*wrap, nn.LayerBlock(copy.deepcopy(head)), **options)

    nets = {
        "written out": nn.Sequential(*copy.deepcopy(layers), copy.deepcopy(head)),
        "one block": network(layers),
        "one block, recomputed": network(layers, checkpoint_blocks=True),
        "a block each, recomputed": network(
            layers[:sized], *([layer] for layer in layers[sized:]), checkpoint_blocks=True
        ),
    }
    results = {}
    for name, net in nets.items():
        net.input_state_update = True
        train(net, *[4] * 4, 3)  # so often that passes are recorded and replayed
        with net.accumulate():
            observe(net, 3)
        observe(net, 4)
        net.step()
        observe(net, 4, between=net.reset_lstm_states)
        results[name] = snapshot(net) | {"output": net.get_outputs(), "deltas of the input": net.get_input_states()}
    expected = results.pop("written out")
    for name, result in results.items():
        assert_same_bits(result, expected, name)


@check
def memory_of_passes_may_hold_anything(example: Example) -> None:
    """What a layer needs from an earlier pass does not lie in memory that layers use in turn.

    That memory is overwritten between passes here, and nothing changes.
    """
    net, twin = example.network(), example.network()

    def spoil() -> None:
        free = net.passes.memory.pool._free
        free.reverse()  # passes shall not take the same blocks as the twin's, or an error could be the same in both
        for block in free:
            block.fill(7)

    for seed, batch in enumerate((4, 4, 4, 2)):  # walked through, recorded, and replayed
        spoil()
        observe(net, batch, seed, between=spoil)
        observe(twin, batch, seed)
        for one in (net, twin):
            one.step()
    spoil()
    assert_same_bits(snapshot(net), snapshot(twin), "other memory of passes")
    assert_continue_alike(net, twin, "other memory of passes")


@check
def hooks_are_called_once(example: Example) -> None:
    """Hooks are called before and after each leaf (layer without layers inside), both ways, and nothing changes."""
    net, twin = example.network(), example.network()
    calls: list[tuple] = []
    for one in (net, twin):
        one.input_state_update = True  # otherwise the backward pass ends at the first layer with parameters
        train(one, *[4] * 4)  # so often that passes are recorded and replayed
    before, after = (lambda *call, when=when: calls.append((when, *call)) for when in ("before", "after"))
    x, var_x, *_ = random_batch(net, 4, seed=9)
    with net.add_hook(before, after):
        first = net(x, var_x)
        calls.clear()
        observe(net, 4)
    assert np.array_equal(first, twin(x, var_x)), "with hooks: outputs differ"
    observe(twin, 4)
    assert_same_bits(snapshot(net), snapshot(twin), "with hooks")
    inside = leaves(net)
    expected = [(when, leaf, "forward") for leaf in inside for when in ("before", "after")]
    assert calls[: len(expected)] == expected, "hooks of the forward pass"
    back = calls[len(expected) :]
    assert back[1::2] == [("after", *call) for _, *call in back[::2]], "a leaf inside another one, in the backward pass"
    seen = [leaf for when, leaf, direction in back if (when, direction) == ("before", "backward")]
    assert len(seen) == len(inside) and set(seen) == set(inside), f"hooks of the backward pass: {seen}"
    calls.clear()
    observe(net, 4)
    assert not calls, "hooks that were removed are called"


@check
def state_changes_in_training_only(example: Example) -> None:
    """Predictions change nothing, and forward passes change state that is not learnt only.

    Passes in evaluation mode change carried state (memory of an LSTM), and those in training mode running state as well
    (statistics of a BatchNorm).
    """
    net = train(example.network(), 4)
    observe(net, 4)  # deltas that wait for a step
    kept, waiting = snapshot(net), net.passes.waiting
    x, var_x, *_ = random_batch(net, 5)
    net.predict(x, 2, var_x)
    assert_same_bits(snapshot(net), kept, "predict")
    net.profile(x, repeat=1)
    assert_same_bits(snapshot(net), kept, "profile")
    net.eval()
    net(x, var_x)
    net.train()
    carried = {"carried": net.arena.carried.copy()}
    assert_same_bits(snapshot(net), kept | carried, "a pass in evaluation")
    assert net.passes.waiting == waiting == 4, "deltas that wait for a step are lost"
    net(x, var_x)
    now = snapshot(net)
    assert_same_bits(now, {"theta": kept["theta"]}, "a forward pass in training")
    if net.arena.running:
        assert not np.array_equal(now["statistics"], kept["statistics"]), "running state does not run"
    net.reset_lstm_states()
    assert_same_bits({"carried": net.arena.carried}, {"carried": example.network().arena.carried}, "reset_lstm_states")


@check
def frames_keep_passes_apart(example: Example) -> str | None:
    """With frames, several forward passes and then their backward passes give the bits of one after the other.

    A frame keeps what a forward pass leaves for its backward pass.
    """
    net, twin = example.network(), example.network()
    if net.arena.carried.size:
        with pytest.raises(RuntimeError, match="carry a memory from call to call"):
            net.passes.use(1)
        net.passes.use(0)
        return "what is carried may change in a backward pass, before the next pass there"
    train(net, *[4] * 3)  # passes are recorded now, but must not be replayed in frames
    train(twin, *[4] * 3)
    for _ in range(2):  # the second time, frames have their memory already
        with twin.accumulate():
            for seed, batch in enumerate((4, 2, 3)):
                observe(twin, batch, seed)
        deltas = []
        for seed, batch in enumerate((4, 2, 3)):
            net.passes.use(seed)
            x, var_x, y, _ = random_batch(net, batch, seed)
            net(x, var_x)
            nn.OutputUpdater("cpu").update(net.output_z_buffer, y, np.full(y.shape, 0.3), net.input_delta_z_buffer)
            deltas.append((net.input_delta_z_buffer.delta_mu.copy(), net.input_delta_z_buffer.delta_var.copy()))
        with net.accumulate():
            for frame, delta in enumerate(deltas):
                net.passes.use(frame)
                net.set_delta_z(*delta)
                net.backward()
        net.passes.use(0)
        net.step()
        twin.step()
        assert_same_bits(snapshot(net), snapshot(twin), "in frames")
    assert_continue_alike(net, twin, "after frames")
    return None


@check
def parts_have_the_same_bits(example: Example) -> str | None:
    """A network that is cut in two between any layers, with states and deltas handed over, has the same bits."""
    whole = example.network()
    names = list(whole.state_dict())
    for cut in range(1, len(whole.layers)):
        twin, first, second = (copy.deepcopy(whole) for _ in range(3))
        keep_layers(first, 0, cut)
        keep_layers(second, cut, len(whole.layers))
        assert [*first.state_dict(), *second.state_dict()] == names, "keys of a part"
        second.input_state_update = True
        for seed, batch in enumerate((4, 4, 4, 3)):
            train(twin, batch, seed=seed)
            x, var_x, y, _ = random_batch(whole, batch, seed)
            first(x, var_x)
            with_jacobian = first.output_z_buffer.state.jcb is not None
            assert with_jacobian == first.layers[-1].gives_jacobian, "gives_jacobian of the layer before the cut"
            second(first.output_z_buffer)
            updater = nn.OutputUpdater("cpu")
            updater.update(second.output_z_buffer, y, np.full(y.shape, 0.3), second.input_delta_z_buffer)
            second.backward()
            first.set_delta_z(*second.get_input_states())
            first.backward()
            first.step()
            second.step()
            together = first.state_dict(carried=True) | second.state_dict(carried=True)
            assert twin.state_dict(carried=True) == together, f"cut before layer {cut}: step {seed} differs"
    if len(whole.layers) == 1:
        return "one layer cannot be cut"
