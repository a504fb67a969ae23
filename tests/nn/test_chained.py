"""Two networks in a row, by `output_z_buffer` forwards and deltas backwards, equal one network."""

import copy

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.run.rebuild import keep_layers
from tests.nn.networks import pass_through, random_batch, randomise


def test_two_networks_are_one():
    """By their buffers; `tests/battery` cuts each of its networks, and hands deltas over as arrays."""
    whole = randomise(nn.Sequential(nn.Linear(3, 5), nn.Sigmoid(), nn.Tanh(), nn.Linear(5, 2)))
    encoder, decoder = copy.deepcopy(whole), copy.deepcopy(whole)
    keep_layers(encoder, 0, 2)
    keep_layers(decoder, 2, 4)
    x, var_x, *deltas = random_batch(whole, 5)
    expected = pass_through(whole, x, var_x, *deltas)
    encoder.input_state_update = decoder.input_state_update = True
    encoder(x, var_x)
    np.testing.assert_array_equal(decoder(encoder.output_z_buffer)[0], expected["output mean"])
    decoder.set_delta_z(*deltas)
    decoder.backward()
    encoder.input_delta_z_buffer.copy_from(decoder.output_delta_z_buffer)
    encoder.backward()
    np.testing.assert_array_equal(encoder.get_input_states()[0], expected["input delta mean"])
    np.testing.assert_array_equal(encoder.layers[0].delta_mu_w, whole.layers[0].delta_mu_w)


def test_deltas_of_inputs_have_to_be_asked_for():
    """As in pytagi's autoencoder, which copies other deltas without them."""
    encoder, decoder = nn.Sequential(nn.Linear(3, 5)), nn.Sequential(nn.Linear(5, 2))
    decoder(encoder(np.ones((2, 3)))[0])
    decoder.set_delta_z(np.ones(4), -np.ones(4))
    decoder.backward()
    encoder.input_delta_z_buffer.copy_from(decoder.output_delta_z_buffer)
    with pytest.raises(ValueError, match=r"holds 1 x 0 deltas, the batch has 2 x 5\. .*input_state_update = True"):
        encoder.backward()


def test_an_input_of_its_own_leaves_the_other_networks_output_alone():
    """After passes that were replayed on it."""
    encoder, decoder = randomise(nn.Sequential(nn.Linear(3, 5), nn.Tanh())), randomise(nn.Sequential(nn.Linear(5, 2)))
    for _ in range(4):
        encoder(np.ones((2, 3)))
        decoder(encoder.output_z_buffer)
    before = encoder.get_outputs()
    decoder(np.full(10, 7.0), np.ones(10))
    np.testing.assert_array_equal(encoder.get_outputs(), before)


def test_a_network_does_not_read_its_own_output():
    net = nn.Sequential(nn.Linear(3, 3))
    net(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"its own output_z_buffer, .* pass get_outputs\(\)"):
        net(net.output_z_buffer)
    net(*net.get_outputs())


def test_states_made_by_hand():
    """BaseHiddenStates of the user's own are an input like any other, Jacobian included, in memory of their own."""
    net = randomise(nn.Sequential(nn.Linear(3, 2)))
    x, var_x, delta_mu, delta_var = random_batch(net, 4)
    expected = pass_through(net, x, var_x, delta_mu, delta_var)
    states = nn.BaseHiddenStates()
    states.set_input_x(x, var_x, 4)
    jcb = np.linspace(0.1, 2, 12)
    states.jcb = jcb
    np.testing.assert_array_equal(net(states)[1], expected["output variance"])
    x[:] = 0
    net.set_delta_z(delta_mu, delta_var)
    net.backward()
    for name in expected:
        if "layer 0 " in name:
            np.testing.assert_array_equal(getattr(net.layers[0], name.split()[0]), expected[name], err_msg=name)
    mean, variance = net.get_input_states()
    np.testing.assert_allclose(mean, jcb * expected["input delta mean"], rtol=1e-6)
    np.testing.assert_allclose(variance, jcb**2 * expected["input delta variance"], rtol=1e-6)


def test_networks_that_do_not_fit():
    encoder, decoder = nn.Sequential(nn.Linear(3, 5)), nn.Sequential(nn.Linear(4, 2))
    encoder(np.zeros(3))
    with pytest.raises(ValueError, match="takes 4 inputs, the other network gives 5"):
        decoder(encoder.output_z_buffer)
    with pytest.raises(ValueError, match="takes 3 inputs, the other network gives 0"):
        encoder(decoder.output_z_buffer)


def test_variances_beside_a_buffer_are_refused():
    encoder, decoder = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(3, 1))
    encoder(np.ones((4, 2)))
    with pytest.raises(ValueError, match="has its variances in it: leave var_x out"):
        decoder(encoder.output_z_buffer, np.ones((4, 3)))
