"""A residual block behind an activation against derivatives by finite differences, where variances are nearly 0.

There a network is an ordinary function f of its means, and the delta of a weight's mean is s df/dw times the innovation
at the output.
"""

import numpy as np
import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.nn import LayerBlock, Linear, ReLU, ResNetBlock, Sequential

S = 1e-12  # variance of every parameter
X = np.array([[0.3, -0.7, 1.1], [0.5, 0.9, -0.2]], np.float32)
STEP = 1e-2  # f is linear between kinks: the step may be large


def network():
    manual_seed(3)
    net = Sequential(Linear(3, 6), ReLU(), ResNetBlock(LayerBlock(Linear(6, 6))), Linear(6, 1))
    net.arena.theta[1] = S
    return net


def derivative(net, layer, index):
    """df/dw, summed over the samples, by a central difference."""
    values = []
    for sign in (1, -1):
        layer.mu_w[index] += sign * STEP
        values.append(net(X)[0].astype(float).sum())
        layer.mu_w[index] -= sign * STEP
    return (values[0] - values[1]) / (2 * STEP)


def test_deltas_behind_an_activation_are_derivatives():
    net = network()
    net(X)
    net.set_delta_z(np.ones(2), np.zeros(2))
    net.backward()
    first, inside = net.layers[0], net.layers[2].main_block.layers[0]
    found = {layer: np.array(layer.delta_mu_w) / S for layer in (first, inside)}
    for layer, deltas in found.items():
        expected = [derivative(net, layer, k) for k in range(layer.num_weights)]
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(deltas, expected, rtol=2e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("rows", [slice(0, 1), slice(0, 2)])
def test_half_of_the_first_layer_is_inactive(rows):
    """So the Jacobian of the activation matters: units that are 0 pass nothing back."""
    net = network()
    net(X[rows])
    relu = net.layers[2].input_z
    inactive = (relu.mu_a.reshape(-1, 6) == 0).all(axis=0)
    assert inactive.any() and not inactive.all()
    net.set_delta_z(np.ones(len(X[rows])), np.zeros(len(X[rows])))
    net.backward()
    deltas = net.layers[0].delta_mu_w.reshape(6, 3)
    assert not deltas[inactive].any() and deltas[~inactive].any()
