"""One network, one thread at a time: of two threads that use a network together, one gets an error."""

import copy
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.nn.run import rebuild

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
BUSY, DISPLACED = "being used by another thread", "another thread has run forward"


def network() -> nn.Sequential:
    manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.LeakyReLU(), nn.Linear(5, 2))


def in_thread(function: Callable) -> object:
    """What it returned in a thread of its own, or the RuntimeError."""
    results: list = []

    def run() -> None:
        try:
            results.append(function())
        except RuntimeError as error:
            results.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def learn(net: nn.Sequential, until: str = "step") -> None:
    """Forward, update, backward and step, or the first of them."""
    net(X)
    if until == "forward":
        return
    nn.OutputUpdater("cpu").update(net.output_z_buffer, np.zeros(6), np.ones(6), net.input_delta_z_buffer)
    net.backward()
    if until == "step":
        net.step()


FOLDER = Path(tempfile.gettempdir(), "pytagi_ddp_refused")  # nothing is written there


def accumulate(net: nn.Sequential) -> None:
    with net.accumulate():
        pass


def in_mode(net: nn.Sequential) -> None:
    with net.passes.in_mode(training=False):
        pass


def assign(name: str, value: object) -> Callable[[nn.Sequential], None]:
    return lambda net: setattr(net, name, value)


CALLS: dict[str, Callable[[nn.Sequential], object]] = {
    "accumulate": accumulate,
    "add_hook": lambda net: net.add_hook(),
    "backward": lambda net: net.backward(),
    "checkpoint_blocks": assign("checkpoint_blocks", False),
    "device": assign("device", "cpu"),
    "drop_deltas": lambda net: net.drop_deltas(),
    "eval": lambda net: net.eval(),
    "fit": lambda net: net.fit(X, np.zeros((3, 2)), Gaussian(), epochs=1),
    "forget_evidence": lambda net: net.forget_evidence(2),
    "forward": lambda net: net(X),
    "get_input_states": lambda net: net.get_input_states(),
    "get_lstm_states": lambda net: net.get_lstm_states(),
    "get_neg_var_w_counter": lambda net: net.get_neg_var_w_counter(),
    "get_norm_mean_var": lambda net: net.get_norm_mean_var(),
    "get_outputs": lambda net: net.get_outputs(),
    "input_state_update": assign("input_state_update", True),
    "inspect": lambda net: net.inspect(X),
    "load": lambda net: net.load(FOLDER),
    "load_csv": lambda net: net.load_csv(FOLDER),
    "load_state_dict": lambda net: net.load_state_dict(network().state_dict()),
    "parameters": lambda net: net.parameters(),
    "parameters_changed": lambda net: net.parameters_changed(),
    "params_from": lambda net: net.params_from(network()),
    "precision": assign("precision", "float32"),
    "predict": lambda net: net.predict(X),
    "profile": lambda net: net.profile(X),
    "reset_lstm_states": lambda net: net.reset_lstm_states(),
    "sample": lambda net: net.sample(),
    "save": lambda net: net.save(FOLDER),
    "save_csv": lambda net: net.save_csv(FOLDER),
    "save_pytagi": lambda net: net.save_pytagi(FOLDER),
    "schedule": assign("schedule", None),
    "set_delta_z": lambda net: net.set_delta_z(np.zeros(6), np.zeros(6)),
    "set_lstm_states": lambda net: net.set_lstm_states({}),
    "smoother": lambda net: net.smoother(),
    "state_dict": lambda net: net.state_dict(),
    "step": lambda net: net.step(),
    "to_device": lambda net: net.to_device("cpu"),
    "train": lambda net: net.train(),
    "update_bn": lambda net: net.update_bn([X]),
}
OTHER_CALLS: dict[str, Callable[[nn.Sequential], object]] = {
    "a frame": lambda net: net.passes.use(0),
    "forward_only": lambda net: net.passes.forward_only(X),
    "in_mode": in_mode,
    "keep_layers": lambda net: rebuild.keep_layers(net, 0, 1),
    "other storage": lambda net: rebuild.change_storage(net, type(net.arena)),
    "step of a wrapper": lambda net: net.passes.step(),
    **{f"invalidate {change.name}": lambda net, change=change: net.passes.invalidate(change) for change in Change},
    "deepcopy": copy.deepcopy,
    "mean of a layer": lambda net: setattr(net.layers[0], "mu_w", np.zeros(20)),
    "delta of a layer": lambda net: setattr(net.layers[0], "delta_mu_w", np.zeros(20)),
    "mode of a layer": lambda net: setattr(net.layers[0], "training", True),
    "setting of a layer": lambda net: setattr(net.layers[1], "negative_slope", 0.5),
    "update of an average": lambda net: nn.PosteriorAverage(net).update(),
}
# What no pass writes, or what does nothing; `materialize` gives another storage.
FREE = {
    *("layers", "named_layers", "named_leaves", "num_parameters", "summary"),
    *("get_layer_stack_info", "materialize", "missing_inputs", "num_samples", "training"),
    *("get_outputs_smoother", "set_threads", "z_buffer_size", "z_buffer_block_size"),
    *("preinit_layer", "output_to_host", "delta_z_to_host", "params_to_device", "params_to_host"),
}


def test_every_public_name_is_considered():
    public = {name for name in dir(network()) if hasattr(nn.Sequential, name) and not name.startswith("_")}
    assert public == CALLS.keys() | FREE
    assert not CALLS.keys() & FREE


@pytest.mark.parametrize("call", (CALLS | OTHER_CALLS).values(), ids=CALLS | OTHER_CALLS)
def test_a_call_within_another_threads_call_is_an_error(call):
    net, seen = network(), []
    net(X)
    with net.add_hook(before=lambda *_: seen.append(in_thread(lambda: call(net)))):
        result = net(X)
    assert len(seen) == 3 and all(BUSY in message for message in seen)
    np.testing.assert_array_equal(result, net(X))
    assert in_thread(lambda: net(X)) is not None  # and now it may


def test_a_step_that_is_refused_leaves_an_accumulation():
    net = network()

    def refused(leaf, direction):
        assert BUSY in in_thread(net.step)

    with net.accumulate():
        learn(net, "backward")
        with net.add_hook(before=refused):
            net(X)
        learn(net, "backward")
    assert net.passes.samples == 6


def test_a_hook_may_use_its_own_network():
    net, seen = network(), []
    expected = net.predict(X)

    def look(leaf, direction):
        handle.remove()
        seen.append(net.predict(X))

    handle = net.add_hook(before=look)
    net(X)
    np.testing.assert_array_equal(seen[0], expected)


@pytest.mark.parametrize("steps", [0, 4])  # 4: the passes are replayed
def test_threads_that_predict_at_once_get_their_own_numbers_or_an_error(steps):
    """Four threads with inputs of their own: 134 of 200 results were another's."""
    net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 8))
    inputs = np.random.default_rng(0).normal(size=(4, 64, 64)).astype(np.float32)
    net.eval()
    expected = [net(x) for x in inputs]
    for _ in range(steps):
        net(inputs[0])
    start, results = threading.Barrier(4), [[] for _ in range(4)]

    def work(k: int) -> None:
        start.wait()
        for _ in range(50):
            try:
                results[k].append(net(inputs[k]))
            except RuntimeError as error:
                assert BUSY in str(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(map(len, results)) > 0
    for got, own in zip(results, expected, strict=True):
        for moments in got:
            np.testing.assert_array_equal(moments, own)


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize(("begun", "rest"), [("forward", "backward"), ("backward", "step")])
def test_a_step_that_another_thread_displaced_cannot_go_on(begun, rest, steps):
    net = network()
    for _ in range(steps):
        learn(net)
    learn(net, begun)
    assert in_thread(lambda: learn(net, "forward")) is None
    with pytest.raises(RuntimeError, match=DISPLACED):
        getattr(net, rest)()
    learn(net)  # from its beginning it may


def test_a_displaced_step_stays_displaced():
    """The second attempt was let through, and a step took the other thread's deltas once more."""
    net = network()
    learn(net, "forward")
    assert in_thread(lambda: learn(net)) is None
    for call in (net.backward, net.backward, net.step):
        with pytest.raises(RuntimeError, match=DISPLACED):
            call()
    learn(net)


@pytest.mark.parametrize("steps", [0, 4])
def test_a_new_thread_is_not_taken_for_one_that_has_ended(steps):
    """The system gives it the same identifier, as a rule."""
    net, alone = network(), network()
    for one in (net, alone):
        for _ in range(steps):
            learn(one)
    learn(net, "forward")
    in_thread(lambda: learn(net, "forward"))  # displaces
    learn(net, "forward")  # displaces that one, which has ended
    nn.OutputUpdater("cpu").update(net.output_z_buffer, np.zeros(6), np.ones(6), net.input_delta_z_buffer)
    assert in_thread(net.backward) is None
    assert in_thread(net.step) is None
    learn(alone)
    np.testing.assert_array_equal(net.arena.theta, alone.arena.theta)


def test_the_thread_that_came_between_learns_what_it_learns_alone():
    net, alone = network(), network()
    net(X)
    assert in_thread(lambda: learn(net)) is None
    learn(alone)
    np.testing.assert_array_equal(net.arena.theta, alone.arena.theta)


def test_threads_may_hand_a_network_on():
    """Also in the middle of a step; and who only looked at an output is in nobody's way."""
    net, alone = network(), network()
    net(X)
    for _ in range(3):
        assert in_thread(lambda: learn(net)) is None
        assert in_thread(lambda: learn(net, "backward")) is None
        assert in_thread(net.step) is None
    for _ in range(6):
        learn(alone)
    np.testing.assert_array_equal(net.arena.theta, alone.arena.theta)


def test_copies_are_networks_of_their_own():
    net, seen = network(), []
    other = copy.deepcopy(net)
    with net.add_hook(before=lambda *_: seen.append(in_thread(lambda: other(X)))):
        expected = net(X)
    for result in seen:
        np.testing.assert_array_equal(result, expected)
