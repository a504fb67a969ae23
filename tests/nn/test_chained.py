"""Two networks in a row, by `output_z_buffer` forwards and deltas backwards, equal one network."""

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.nn.networks import assert_same, learned, leaves, pass_through, random_batch, randomise

CUTS = {
    "after an activation": (lambda: [nn.Linear(3, 5), nn.Sigmoid()], lambda: [nn.Linear(5, 2)]),
    "before an activation": (lambda: [nn.Linear(3, 5)], lambda: [nn.Tanh(), nn.Linear(5, 2)]),
    "between activations": (lambda: [nn.Linear(3, 5), nn.Sigmoid()], lambda: [nn.Tanh(), nn.Linear(5, 2)]),
    "at an image": (
        lambda: [nn.Conv2d(1, 3, 3, in_width=6, in_height=5), nn.ReLU()],
        lambda: [nn.Conv2d(3, 2, 2, in_width=4, in_height=3), nn.AvgPool2d(2, 1), nn.Linear(4, 2)],
    ),
    "at a block": (
        lambda: [nn.Linear(3, 4), nn.Tanh()],
        lambda: [nn.ResNetBlock(nn.LayerBlock(nn.Linear(4, 4), nn.ReLU())), nn.Linear(4, 2)],
    ),
    "at a norm": (lambda: [nn.Linear(3, 4), nn.Tanh()], lambda: [nn.BatchNorm2d(4), nn.Linear(4, 2)]),
}


@pytest.mark.parametrize("halves", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("with_variance", [True, False])
def test_two_networks_are_one(halves, with_variance):
    fused = randomise(nn.Sequential(*halves[0](), *halves[1]()))
    encoder, decoder = (nn.Sequential(*half()) for half in halves)
    for mine, other in zip(learned(encoder) + learned(decoder), learned(fused), strict=True):
        for field in ("mu_w", "var_w", "mu_b", "var_b"):
            setattr(mine, field, getattr(other, field))
    x, var_x, delta_mu, delta_var = random_batch(fused, 5, with_variance=with_variance)
    expected = pass_through(fused, x, var_x, delta_mu, delta_var)

    encoder.input_state_update = decoder.input_state_update = True
    encoder(x, var_x)
    mu, var = decoder(encoder.output_z_buffer)
    decoder.set_delta_z(delta_mu, delta_var)
    decoder.backward()
    encoder.input_delta_z_buffer.copy_from(decoder.output_delta_z_buffer)
    encoder.backward()

    actual = {"output mean": mu, "output variance": var, "output Jacobian": decoder.output_z_buffer.jcb}
    actual["input delta mean"], actual["input delta variance"] = encoder.get_input_states()
    for k, leaf in enumerate(learned(encoder) + learned(decoder)):
        actual |= {name: getattr(leaf, name.split()[0]) for name in expected if f"layer {k} " in name}
    assert_same(actual, expected, 1e-6)

    for net in (fused, encoder, decoder):
        net.step()
    for mine, other in zip(leaves(encoder) + leaves(decoder), leaves(fused), strict=True):
        np.testing.assert_allclose(mine.mu_w, other.mu_w, rtol=1e-5, atol=1e-7)


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
