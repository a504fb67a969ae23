"""Models whose exact posterior is known, and the capped step by hand.

A step moves a parameter N(m, s) by at most sqrt(s)/c, with c = 0.1 for one sample: ten standard deviations. In the
exact models below s <= 1 and observations come from the model, so |dm| <= |surprise in standard deviations| sqrt(s)
and |ds| <= s <= 10 sqrt(s): the cap never binds and the closed forms hold.
"""

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.learning import learn


def test_one_weight_is_the_scalar_kalman_filter():
    rng = np.random.default_rng(5)
    net = nn.Sequential(nn.Linear(1, 1, bias=False))
    weight = net.layers[0]
    weight.mu_w, weight.var_w = [0.3], [0.9]
    m, s, noise_var = 0.3, 0.9, 0.04
    for _ in range(300):
        x = rng.normal()
        y = -0.8 * x + noise_var**0.5 * rng.normal()
        gain = s * x / (s * x * x + noise_var)
        m, s = m + gain * (y - m * x), (1 - gain * x) * s
        learn(net, [x], [y], noise_var)
        assert weight.mu_w[0] == pytest.approx(m, rel=1e-4)
        assert weight.var_w[0] == pytest.approx(s, rel=1e-4)
    assert s < 2e-4


def test_a_stream_that_forgets_is_the_filter_with_a_discount_factor():
    """West & Harrison: each step divides the variance by the discount factor, here at most up to that of the prior."""
    rng = np.random.default_rng(5)
    net = nn.Sequential(nn.Linear(1, 1, bias=False))
    weight = net.layers[0]
    m, prior, factor, noise_var = float(weight.mu_w[0]), float(weight.var_w[0]), 1.01, 0.04
    s = prior
    for k in range(1000):
        x = rng.normal()
        y = np.sin(k / 500) * x + noise_var**0.5 * rng.normal()
        gain = s * x / (s * x * x + noise_var)
        m, s = m + gain * (y - m * x), min((1 - gain * x) * s * factor, prior)
        learn(net, x, y, noise_var)
        net.forget_evidence(factor)
    assert weight.mu_w[0] == pytest.approx(m, rel=1e-4)
    assert weight.var_w[0] == pytest.approx(s, rel=1e-4)
    assert abs(m - np.sin(2)) < 0.2


def test_one_hot_inputs_one_at_a_time_give_the_exact_posterior():
    """Each observation sees one weight per output: precisions add, and means weigh by precision."""
    rng = np.random.default_rng(6)
    inputs, outputs, noise_var = 4, 3, 0.25
    net = nn.Sequential(nn.Linear(inputs, outputs, bias=False, gain_weight=1.5))
    weights = net.layers[0]
    prior_mean = np.array(weights.mu_w, np.float64).reshape(outputs, inputs)
    prior_precision = 1 / np.array(weights.var_w, np.float64).reshape(outputs, inputs)
    truth = rng.normal(prior_mean, prior_precision**-0.5)
    seen, totals = np.zeros(inputs), np.zeros((outputs, inputs))
    for _ in range(120):
        i = rng.integers(inputs)
        y = truth[:, i] + noise_var**0.5 * rng.normal(size=outputs)
        seen[i] += 1
        totals[:, i] += y
        learn(net, np.eye(inputs)[i], y, noise_var)
    precision = prior_precision + seen / noise_var
    mean = (prior_precision * prior_mean + totals / noise_var) / precision
    np.testing.assert_allclose(weights.var_w.reshape(outputs, inputs), 1 / precision, rtol=1e-4)
    np.testing.assert_allclose(weights.mu_w.reshape(outputs, inputs), mean, rtol=1e-3, atol=1e-4)


def test_a_bias_alone_averages_its_observations():
    net = nn.Sequential(nn.Linear(1, 1))
    layer = net.layers[0]
    layer.mu_w, layer.var_w, layer.mu_b, layer.var_b = [0], [0], [0], [1]
    for y in (1.0, 2.0, 6.0):
        learn(net, [0.0], [y], 0.5)
    assert layer.var_b == pytest.approx([1 / 7])
    assert layer.mu_b == pytest.approx([(1 + 2 + 6) * 2 / 7])


@pytest.mark.parametrize(("batch", "cap"), [(1, 0.1), (2, 2), (255, 2), (256, 3), (300, 3)])
def test_the_cap_depends_on_the_batch(batch, cap):
    net = nn.Sequential(nn.Linear(1, 2, bias=False))
    layer = net.layers[0]
    layer.mu_w, layer.var_w = [1, 1], [0.25, 0.04]
    net(np.ones(batch, np.float32))
    # Both deltas far beyond the cap, upwards for the first weight and downwards for the second.
    net.set_delta_z(np.tile([1e4, -1e4], batch), np.tile([1e6, 1e6], batch))
    net.backward()
    net.step()
    np.testing.assert_allclose(layer.mu_w, [1 + 0.5 / cap, 1 - 0.2 / cap], rtol=1e-6)
    np.testing.assert_allclose(layer.var_w, [0.25 + 0.5 / cap, 0.04 + 0.2 / cap], rtol=1e-6)


def test_evaluation_does_not_change_the_cap():
    net = nn.Sequential(nn.Linear(1, 1, bias=False))
    layer = net.layers[0]
    layer.mu_w, layer.var_w = [0], [0.25]
    net(np.ones(2, np.float32))
    net.set_delta_z([1e4, 1e4], [0, 0])
    net.backward()
    net.predict(np.ones((300, 1)))
    net.step()
    assert layer.mu_w == pytest.approx([0.5 / 2])


def test_a_variance_that_falls_below_zero_becomes_1e_5_and_is_counted():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 1))
    net(np.ones(8, np.float32))
    first, _, second, third = net.layers
    for layer in (first, second, third):
        layer.var_w, layer.var_b = np.full(layer.num_weights, 0.01), np.full(layer.num_biases, 0.01)
        layer.delta_mu_w = np.zeros(layer.num_weights)
        layer.delta_var_w = np.zeros(layer.num_weights)
        layer.delta_var_b = np.full(layer.num_biases, -1.0)  # biases are clamped and not counted
    first.delta_var_w = [-1, 0, -1, -1]
    third.delta_var_w = [-0.005, -1]
    net.step()
    np.testing.assert_allclose(first.var_w, [1e-5, 0.01, 1e-5, 1e-5])
    np.testing.assert_allclose(third.var_w, [0.005, 1e-5], rtol=1e-6)
    np.testing.assert_allclose(second.var_b, 1e-5)
    # Layers with equal sizes share a key, as in pytagi; here their counts add up.
    assert net.get_neg_var_w_counter() == {"Linear(2,2)": 3, "ReLU()": 0, "Linear(2,1)": 1}
    net(np.ones(8, np.float32))
    net.set_delta_z(np.zeros(4), np.zeros(4))
    net.backward()
    net.step()
    assert net.get_neg_var_w_counter() == {"Linear(2,2)": 0, "ReLU()": 0, "Linear(2,1)": 0}


def test_a_parameter_without_variance_is_known():
    """It stays as it is. (pytagi gives it the variance 1e-5 in a step, and it learns from then on.)"""
    net = nn.Sequential(nn.Linear(3, 2))
    layer = net.layers[0]
    layer.var_w = np.zeros(6)
    before = np.array(layer.mu_w)
    biases = np.array(layer.mu_b)
    for _ in range(3):
        learn(net, np.ones(12), np.full(8, 5.0), 0.1)
    np.testing.assert_array_equal(layer.mu_w, before)
    np.testing.assert_array_equal(layer.var_w, 0)
    assert (layer.mu_b != biases).all() and (layer.var_b > 0).all()
    assert net.get_neg_var_w_counter() == {"Linear(3,2)": 0}
