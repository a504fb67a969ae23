"""A batch without samples: nothing comes out, nothing is learnt, and what is around it does not change."""

import copy

import numpy as np
import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.nn import LSTM, EvenExp, Linear, OutputUpdater, ReLU, Sequential
from tests.learning import backpropagate

NONE = np.zeros((0, 4), np.float32)
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def network() -> Sequential:
    manual_seed(2)
    return Sequential(Linear(4, 5), ReLU(), Linear(5, 2))


def learn(net, x, step=True):
    backpropagate(net, x, np.ones((len(x), 2)), 0.5)
    if step:
        net.step()


@pytest.mark.parametrize("before", [0, 1, 4])
def test_a_step_without_samples_changes_nothing(before):
    """After no step, one, and as many that passes are replayed."""
    net, other = network(), network()
    for _ in range(before):
        learn(net, X)
        learn(other, X)
    for empty in (NONE, [], np.zeros((0, 1, 4))):
        mu, var = net(empty)
        assert mu.shape == var.shape == (0,)
    learn(net, NONE)
    learn(net, NONE)
    assert net.state_dict() == other.state_dict()
    for _ in range(3):  # training goes on as if it had not been
        learn(net, X)
        learn(other, X)
    assert net.state_dict() == other.state_dict()


def test_among_micro_batches_it_adds_nothing():
    net, other = network(), network()
    with net.accumulate():
        for x in (NONE, X[:2], NONE, X[2:]):
            learn(net, x, step=False)
    learn(net, NONE)
    with other.accumulate():
        for x in (X[:2], X[2:]):
            learn(other, x, step=False)
    other.step()
    assert net.state_dict() == other.state_dict()


def test_outside_of_accumulate_it_replaces_the_deltas_of_the_batch_before():
    net, other = network(), network()
    learn(net, X, step=False)
    learn(net, NONE)
    assert net.state_dict() == other.state_dict()


def test_every_output_update_takes_it():
    net = Sequential(Linear(4, 4), EvenExp())
    updater = OutputUpdater("cpu")
    before = copy.deepcopy(net.state_dict())
    none = np.zeros(0)
    for update in (
        lambda states, deltas: updater.update(states, none, none, deltas),
        lambda states, deltas: updater.update_heteros(states, none, deltas),
        lambda states, deltas: updater.update_using_indices(states, none, none, none.astype(int), deltas),
        lambda states, deltas: net.set_delta_z(none, none),
    ):
        net(NONE)
        update(net.output_z_buffer, net.input_delta_z_buffer)
        assert net.input_delta_z_buffer.delta_mu.size == 0
        net.backward()
        net.step()
    assert net.state_dict() == before


def test_its_observations_are_none_either():
    net = network()
    net(NONE)
    with pytest.raises(ValueError, match="mu_obs must hold 0 values, got 2"):
        OutputUpdater("cpu").update(net.output_z_buffer, np.ones(2), 0.1, net.input_delta_z_buffer)
    with pytest.raises(ValueError, match="mu_x has the shape"):
        net(np.zeros((0, 3)))


def test_deltas_of_another_batch_do_not_fit_it():
    net = network()
    net(NONE)
    net.set_delta_z(np.ones(4), np.ones(4))
    with pytest.raises(ValueError, match="input_delta_z_buffer holds 2 x 2 deltas, the batch has 0 x 2"):
        net.backward()


def test_no_backward_pass_follows_a_step_or_evaluation():
    net = network()
    net(NONE)
    net.step()
    with pytest.raises(RuntimeError, match=r"backward\(\) needs a forward pass"):
        net.backward()
    net.eval()
    net(NONE)
    with pytest.raises(RuntimeError, match=r"backward\(\) needs a forward pass"):
        net.backward()


def test_two_networks_and_the_deltas_between_them():
    first, second = network(), Sequential(Linear(2, 2))
    second.input_state_update = True
    first(NONE)
    learn_from = second(first.output_z_buffer)
    assert learn_from[0].size == 0
    OutputUpdater("cpu").update(second.output_z_buffer, np.zeros((0, 2)), 0.1, second.input_delta_z_buffer)
    second.backward()
    assert second.output_delta_z_buffer.size == 0
    first.input_delta_z_buffer.copy_from(second.output_delta_z_buffer)
    first.backward()


def test_the_memory_of_a_recurrent_layer_stays():
    net = Sequential(LSTM(4, 3, True, 1), Linear(3, 2))
    net(X[:1])
    before = net.state_dict(carried=True)
    learn(net, NONE)
    assert net.state_dict(carried=True) == before
