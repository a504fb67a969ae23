"""Activations in unusual places, against the float64 reference; their slopes against finite differences."""

import copy

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.nn.networks import assert_matches_reference, pass_through, random_batch, randomise
from tests.nn.reference_activation import CANCELLING, FORMULAS


@pytest.mark.parametrize("name", sorted(FORMULAS.keys() - CANCELLING - {"Remax"}))
def test_as_first_layer_on_inputs_with_variance(name):
    net = nn.Sequential(getattr(nn, name)(), nn.Linear(6, 3))
    assert_matches_reference(net, batch=4)


@pytest.mark.parametrize("activation", [nn.LeakyReLU, nn.ELU])
@pytest.mark.parametrize("value", [-0.5, 0, 0.3, 2])
def test_settings_of_formulas(activation, value):
    """They reach the kernel of every layer by itself, and copies of the network have them too."""
    net = nn.Sequential(nn.Linear(5, 6), activation(value), nn.Linear(6, 6), activation(), nn.Linear(6, 3))
    assert_matches_reference(copy.deepcopy(net), batch=7)


@pytest.mark.parametrize(("activation", "name"), [(nn.LeakyReLU, "negative_slope"), (nn.ELU, "alpha")])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_settings_that_are_not_finite(activation, name, value):
    with pytest.raises(ValueError, match=f"{activation.name} needs .* <= {name} <= .*, got {value}"):
        activation(value)


@pytest.mark.parametrize("names", [("Sigmoid",), ("Tanh", "Softplus"), ("Sigmoid", "Tanh", "Sigmoid")], ids="-".join)
def test_input_delta_is_the_gradient_of_the_mean(names):
    """Smooth activations are linearised at the mean: the input delta of dm is the derivative of sum dm . mean(x)."""
    layers = [getattr(nn, name)() for name in names]
    net = randomise(nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3)))
    x, _, delta_mu, delta_var = random_batch(net, 2)
    gradient = pass_through(net, x, None, delta_mu, delta_var)["input delta mean"].reshape(x.shape)
    step = 1e-2
    net.eval()
    for sample, unit in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[sample, unit] += step
        below[sample, unit] -= step
        difference = net(above)[0].astype(np.float64) - net(below)[0]
        slope = (delta_mu.reshape(-1) * difference).sum() / (2 * step)
        assert slope == pytest.approx(gradient[sample, unit], abs=2e-3 * float(np.abs(gradient).max()))


def test_even_exp_needs_pairs():
    with pytest.raises(ValueError, match=r"even number of units.*gives 5"):
        nn.Sequential(nn.Linear(4, 5), nn.EvenExp())
