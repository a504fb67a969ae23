"""The order of calls in training, devices and threads: errors say what is wrong."""

import copy

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.learning import backpropagate, learn
from tests.nn.networks import random_batch, randomise

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


@pytest.fixture
def net() -> nn.Sequential:
    return randomise(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)))


def set_deltas(net):
    net(X)
    net.set_delta_z(np.ones(6), -np.ones(6))


def test_backward_needs_a_training_pass(net):
    with pytest.raises(RuntimeError, match="forward pass in training mode"):
        net.backward()
    net(X)
    net.eval()
    net(X)
    with pytest.raises(RuntimeError, match=r"forward pass in training mode.*train\(\)"):
        net.backward()
    net.train()
    net(X)
    net.predict(X)
    with pytest.raises(RuntimeError, match="forward pass in training mode"):
        net.backward()


@pytest.mark.parametrize("steps", [0, 3])
def test_no_backward_in_evaluation_mode(net, steps):
    """A pass that is replayed leaves nothing for layers that are in another mode by then."""
    for _ in range(steps + 1):
        set_deltas(net)
        net.eval()
        with pytest.raises(RuntimeError, match="in training mode before it, and training mode itself"):
            net.backward()
        net.train()
        net.backward()
        net.step()


def test_the_mode_may_be_assigned():
    """It was that of the network alone: its BatchNorm2d went on in training."""
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm2d(5))
    net(X)
    net.training = False
    assert not net.layers[1].training
    before = net.state_dict()
    np.testing.assert_array_equal(net(X)[0].reshape(3, 5), net.predict(X)[0])
    assert net.state_dict() == before
    net.training = True
    assert net.layers[1].training
    net(X)
    assert net.state_dict() != before


@pytest.mark.parametrize("frozen", [False, True])
def test_no_backward_through_a_norm_in_another_mode(frozen):
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm2d(5, through_statistics=True), nn.Linear(5, 2))
    norm = net.layers[1]
    norm.training = not frozen
    net(np.arange(12.0))
    net.set_delta_z(np.ones(6), -np.ones(6))
    if frozen:
        net.train()
    else:
        norm.training = False
    with pytest.raises(RuntimeError, match="needs a forward pass in training mode"):
        net.backward()


CHANGES = {
    "load": lambda net: net.load_state_dict(net.state_dict()),
    "mean": lambda net: setattr(net.layers[0], "mu_w", 2 * net.layers[0].mu_w),
    "variance in a block": lambda net: setattr(net.layers[1].layers[0], "var_b", np.ones(5)),
    "prior": lambda net: net.layers[0].init_weight_bias(),
    "forget": lambda net: net.forget_evidence(2),
    "in place": lambda net: net.arena.theta.__imul__(2) is None or net.parameters_changed(),
    "setting": lambda net: setattr(net.layers[1].layers[1], "negative_slope", 0.5),
    "step": lambda net: net.step(),
}


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_backward_with_other_parameters(change, steps, checkpoint_blocks):
    """It was half by the old ones and half by the new, or by the new alone where layers were run again."""
    layers = nn.Linear(4, 5), nn.LayerBlock(nn.Linear(5, 5), nn.LeakyReLU()), nn.Linear(5, 2)
    net = nn.Sequential(*layers, checkpoint_blocks=checkpoint_blocks)
    for _ in range(steps):
        set_deltas(net)
        net.backward()
        net.step()
    net(X)
    change(net)
    net.set_delta_z(np.ones(6), -np.ones(6))
    with pytest.raises(RuntimeError, match=r"no step, and no other change of parameters.* between them"):
        net.backward()
    set_deltas(net)
    net.backward()


def step_without_backward(net, fill):
    with pytest.raises(RuntimeError, match=r"step\(\) while the deltas .* call backward\(\) first"):
        fill(net)
        net.step()


def observe_all(net):
    net(X)
    nn.OutputUpdater("cpu").update(net.output_z_buffer, np.ones(6), np.ones(6), net.input_delta_z_buffer)


def write_deltas(net):
    net(X)
    net.input_delta_z_buffer.delta_mu[:] = 1


@pytest.mark.parametrize("fill", [observe_all, set_deltas, write_deltas])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_step_needs_the_backward_pass(net, fill, steps):
    """It learnt nothing, in silence; recorded passes take another way."""
    net.step()  # nothing waits
    for _ in range(steps):
        fill(net)
        net.backward()
        net.step()
        net.step()  # the same deltas once more
    before = net.state_dict()
    step_without_backward(net, fill)
    assert net.state_dict() == before
    net.backward()
    net.step()
    assert net.state_dict() != before


def test_a_step_after_a_batch_that_was_left_out(net):
    with net.accumulate():
        observe_all(net)
        net.backward()
        observe_all(net)
        net.backward()
    observe_all(net)  # skipped
    net(X)
    net.step()
    assert not net.passes.waiting
    observe_all(net)
    net.backward()
    net.eval()
    observe_all(net)  # for its deltas only
    net.train()
    net.step()
    observe_all(net)
    net.drop_deltas()
    net.step()
    with net.accumulate():
        observe_all(net)
        net.backward()
        step_without_backward(net, observe_all)
        net.backward()
    assert net.passes.waiting == 6


def test_an_accumulation_does_not_go_on_after_a_pass_that_was_cut_short(net):
    """The batch after it replaced the deltas of those before."""

    def fail(leaf, direction):
        if direction == "backward":
            raise KeyboardInterrupt

    def learn(net=net) -> None:
        set_deltas(net)
        net.backward()

    with net.accumulate():
        with net.add_hook(before=fail), pytest.raises(KeyboardInterrupt):
            learn()
        learn()
        with net.add_hook(before=fail), pytest.raises(KeyboardInterrupt):
            learn()
        with pytest.raises(RuntimeError, match=r"accumulated deltas are lost: call drop_deltas\(\)"):
            learn()
        with pytest.raises(RuntimeError, match=r"accumulated deltas are lost: call drop_deltas\(\)"):
            learn(copy.deepcopy(net))
        net.drop_deltas()
        learn()
        learn()
    assert net.passes.waiting == 6
    net.step()
    with net.add_hook(before=fail), pytest.raises(KeyboardInterrupt):
        learn()
    with net.accumulate():
        learn()
    net.step()


def test_a_network_in_a_wrapper_does_not_step_alone(net):
    wrapped = nn.DDPSequential(net, nn.DDPConfig(backend="serial"))
    observe_all(wrapped)
    with pytest.raises(RuntimeError, match=r"step\(\) while the deltas"):
        wrapped.step()
    wrapped.backward()
    before = net.state_dict()
    with pytest.raises(RuntimeError, match=r"step\(\) of a network in a DDPSequential: call that one's"):
        net.step()
    assert net.state_dict() == before and net.passes.waiting == 3
    wrapped.step()
    assert net.state_dict() != before
    observe_all(copied := copy.deepcopy(net))
    copied.backward()
    copied.step()


def test_no_backward_with_the_parameters_of_an_average(net):
    average = nn.PosteriorAverage(net)
    average.update()
    set_deltas(net)
    with average.average_parameters(), pytest.raises(RuntimeError, match="no other change of parameters"):
        net.backward()


def test_no_backward_with_merged_parameters(net):
    ddp = nn.DDPSequential(net, nn.DDPConfig(backend="serial"), every=2)
    ddp(X)
    net.set_delta_z(np.ones(6), -np.ones(6))
    ddp.merge()
    with pytest.raises(RuntimeError, match="no other change of parameters"):
        ddp.backward()


def test_no_backward_in_any_frame_with_other_parameters(net):
    for frame in (0, 1):
        net.passes.use(frame)
        net(X)
    net.set_delta_z(np.ones(6), -np.ones(6))
    net.backward()
    net.step()
    net.passes.use(0)
    with pytest.raises(RuntimeError, match="no step, and no other change of parameters"):
        net.backward()


def test_backward_after_a_failed_pass():
    """BatchNorm2d refuses one sample after the layers before it have run: their buffers are of two batches."""
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm2d(3))
    net(X)
    with pytest.raises(ValueError, match="more than one value per feature"):
        net(X[:1])
    with pytest.raises(RuntimeError, match="forward pass in training mode"):
        net.backward()


def test_deltas_of_another_batch(net):
    net(X)
    net.input_delta_z_buffer.set_size(8, 4)
    with pytest.raises(ValueError, match="holds 4 x 2 deltas, the batch has 3 x 2"):
        net.backward()
    with pytest.raises(ValueError, match="delta_mu holds 7 values, not a whole number of samples of 2"):
        net.set_delta_z(np.zeros(7), np.zeros(7))
    with pytest.raises(ValueError, match="delta_var must hold 6 values, got 8"):
        net.set_delta_z(np.zeros(6), np.zeros(8))
    net.set_delta_z(np.zeros(6), np.zeros(6))  # the buffer takes the size of what it is given
    net.backward()


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_deltas_of_the_batch_before(net, steps):
    """The update was left out: also once passes are replayed."""
    for _ in range(steps):
        learn(net, X, np.zeros(6))
    net(X)
    before = net.state_dict()
    with pytest.raises(RuntimeError, match="input_delta_z_buffer was not filled since the network was called"):
        net.backward()
    assert net.state_dict() == before
    net.input_delta_z_buffer.reset_zeros()
    net.backward()
    net(X)
    net.input_delta_z_buffer.delta_mu[:] = 1  # in place
    net.backward()
    net.backward()  # the same ones once more


@pytest.mark.parametrize("steps", [0, 3])
def test_deltas_of_another_batch_with_as_many_numbers(steps):
    """The updater was given another network's output: LayerNorm wrote past its rows; also once passes are replayed."""
    net = randomise(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm([6])))
    other = randomise(nn.Sequential(nn.Linear(4, 18)))
    updater = nn.OutputUpdater(net.device)
    other(X[:1])
    for _ in range(steps):
        backpropagate(net, X, np.zeros(18))
    net(X)
    updater.update(other.output_z_buffer, np.zeros(18), np.ones(18), net.input_delta_z_buffer)
    with pytest.raises(ValueError, match="holds 1 x 18 deltas, the batch has 3 x 6"):
        net.backward()


def test_a_buffer_too_small_for_what_it_says_is_not_written_to(net):
    """Its sizes are attributes that anybody can set."""
    net(X)
    updater = nn.OutputUpdater(net.device)
    updater.update(net.output_z_buffer, np.zeros(6), np.ones(6), net.input_delta_z_buffer)
    deltas = nn.BaseDeltaStates(2, 1)
    deltas.block_size, deltas.actual_size = 3, 2
    updater.update(net.output_z_buffer, np.zeros(6), np.ones(6), deltas)
    np.testing.assert_array_equal(deltas.delta_mu, net.input_delta_z_buffer.delta_mu)


def test_input_states_need_their_switch(net):
    net(X)
    with pytest.raises(RuntimeError, match="input_state_update"):
        net.get_input_states()


@pytest.mark.parametrize("steps", [0, 4])
def test_input_states_are_those_of_the_last_batch(net, steps):
    """There were none without an error, or those of the batch before."""

    def learn() -> None:
        net(X)
        net.set_delta_z(np.ones(6), -np.ones(6))
        net.backward()
        net.step()

    learn()
    net.input_state_update = True  # too late
    with pytest.raises(RuntimeError, match="set input_state_update = True, then"):
        net.get_input_states()
    for _ in range(steps):
        learn()
    net(X)
    with pytest.raises(RuntimeError, match="has computed for the last batch"):
        net.get_input_states()
    learn()
    net.predict(X)
    assert len(net.get_input_states()[0]) == X.size
    net.input_state_update = False
    learn()
    net.input_state_update = True  # too late again
    with pytest.raises(RuntimeError, match="has computed for the last batch"):
        net.get_input_states()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_deltas_that_are_not_finite(net, bad):
    """The step names how many and where, and changes no parameter; the next one learns."""
    batch = random_batch(net, 3)
    net(batch[0])
    net.set_delta_z([bad, 1, 1, 1, 1, 1], -np.ones(6))
    net.backward()
    before = net.arena.theta.copy()
    with pytest.raises(
        FloatingPointError, match=r"\d+ of 37 parameters have a delta that is not finite.*layer 0 \(Linear"
    ):
        net.step()
    np.testing.assert_array_equal(net.arena.theta, before)
    net(batch[0])
    net.set_delta_z(np.ones(6), -np.ones(6))
    net.backward()
    net.step()
    assert (net.arena.theta != before).any() and np.isfinite(net.arena.theta).all()


def test_the_first_bad_layer_is_named(net):
    """Also where a later layer has more bad deltas."""
    net(X)
    net.arena.delta[...] = 0
    net.arena.delta[0, 22] = np.nan  # a bias of the first layer: 20 weights, 5 biases
    net.arena.delta[1, 26:30] = np.nan
    with pytest.raises(FloatingPointError, match=r"5 of 37 parameters .* layer 0 \(Linear\(4,5\)\)"):
        net.step()


def test_a_step_without_a_backward_pass_changes_nothing(net):
    before = net.state_dict()
    net.step()
    net(X)
    net.step()
    assert net.state_dict() == before


def test_a_second_step_applies_the_batch_sums_again(net):
    """As in pytagi, step() does not clear them."""
    net(X)
    net.set_delta_z(1e-3 * np.ones(6), np.zeros(6))
    net.backward()
    start = np.array(net.layers[2].mu_b)
    net.step()
    once = net.layers[2].mu_b - start
    net.step()
    np.testing.assert_allclose(net.layers[2].mu_b - start, 2 * once, rtol=1e-4)


def test_deltas_behind_a_step_are_those_of_its_variances():
    """pytagi keeps s g and s^2 h of the backward pass: its second step goes from 0.341848 to 0.583696 here."""
    net = nn.Sequential(nn.Linear(2, 1))
    net.load_state_dict({"Linear.0": ([0.1, 0.2], [0.5, 0.3], [0.3], [0.2])})
    backpropagate(net, np.float32([0.5, 5 / 6]), np.float32([2]), np.float32([1]))
    layer, means = net.layers[0], []
    for delta, variance in [(0.241848, 0.5), (0.241848 * 0.459239 / 0.5, 0.459239)]:
        np.testing.assert_allclose([layer.delta_mu_w[0], layer.var_w[0]], [delta, variance], rtol=1e-5)
        net.step()
        means.append(layer.mu_w[0])
    np.testing.assert_allclose(means, [0.341848, 0.563980], rtol=1e-5)


@pytest.mark.parametrize("device", ["gpu", "", "cpu:0", "cuda:x", "CPU", None, 3])
def test_unknown_devices(net, device):
    with pytest.raises(ValueError, match="unknown device"):
        net.to_device(device)
    with pytest.raises(ValueError, match="unknown device"):
        nn.OutputUpdater(device)
    assert net.device == "cpu"


@pytest.mark.parametrize("threads", [0, -1])
def test_bad_numbers_of_threads(net, threads):
    before = net.layers[0].num_threads
    with pytest.raises(ValueError, match=f"set_threads: n must be at least 1, got {threads}"):
        net.set_threads(threads)
    assert net.layers[0].num_threads == before


def test_summary_and_repr(net):
    lines = net.summary().splitlines()
    assert lines[0].split() == ["layer", "output", "parameters"]
    assert lines[1].split() == ["Linear.0", "5", "25"]
    assert lines[-1].split() == ["total", "37"]
    assert repr(net) == (
        "Sequential(\n  (0): Linear(input_size=4, output_size=5, bias=True)\n  (1): ReLU()\n"
        "  (2): Linear(input_size=5, output_size=2, bias=True)\n)"
    )
