"""`forget_evidence`: what it does to variances, where that ends, and what it refuses."""

import copy

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.nn.core.forgetting import prior_pieces
from pytagi_ddp.nn.core.init import get_state
from pytagi_ddp.nn.core.parameters import ParametersNotHereError
from pytagi_ddp.nn.core.prior import prior_variances
from pytagi_ddp.nn.core.stepping import SEGMENT
from tests.battery.example import observe, train
from tests.learning import learn


def network() -> nn.Sequential:
    manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5, gain_weight=2.0, gain_bias=0.5), nn.ReLU(), nn.Linear(5, 2))


def moments(net: nn.Sequential) -> tuple[np.ndarray, np.ndarray]:
    mu, var = net.arena.theta
    return mu.copy(), var.copy()


def test_a_discounted_posterior_is_one_of_less_evidence():
    """A constant, observed n times and then forgotten by 4: n/4 observations, from a prior that counts 1/4, too."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False))
    prior, noise, n = float(net.arena.theta[1, 0]), 10.0, 60
    mean = float(net.arena.theta[0, 0])
    y = np.linspace(0.5, 1.5, n).astype(np.float32)
    for value in y:
        learn(net, np.ones(1), [value], [noise])
    net.forget_evidence(4)
    precision = 1 / (4 * prior) + n / (4 * noise)
    m, s = moments(net)
    assert 1 / precision < prior  # else the bound would be in the way
    np.testing.assert_allclose(s, 1 / precision, rtol=1e-5)
    np.testing.assert_allclose(m, (mean / (4 * prior) + y.sum() / (4 * noise)) / precision, rtol=1e-4)


def test_bounds():
    net = train(network(), 4, 3)
    mu, var = moments(net)
    prior = np.concatenate([v for leaf in net.arena.leaves for v in prior_variances(leaf)])
    assert (var < prior).any()
    var[3], var[7] = 0, 1e5  # known; and wider than by the rule
    net.arena.theta[1] = var
    net.forget_evidence(1)
    np.testing.assert_array_equal(net.arena.theta, [mu, var])
    net.forget_evidence(1.5)
    expected = np.minimum(np.float32(1.5) * var, prior)
    expected[7] = var[7]
    np.testing.assert_array_equal(net.arena.theta, [mu, expected])
    net.forget_evidence(np.finfo(np.float32).max)
    prior[3], prior[7] = 0, 1e5
    np.testing.assert_array_equal(net.arena.theta, [mu, prior])


def test_forgets_towards_the_prior_of_the_last_draw():
    net = network()
    net.forget_evidence(2)
    layer = net.layers[0]
    layer.gain_weight = 0.5
    layer.init_weight_bias()
    prior = net.arena.theta[1].copy()
    net.arena.theta[1] *= np.float32(0.125)
    net.forget_evidence(1e6)
    np.testing.assert_array_equal(net.arena.theta[1], prior)


def test_each_projection_of_an_attention_has_its_own_prior():
    """By Xavier's rule, which counts outputs; parts of at most a segment, whose gaps would keep old variances."""
    layer = nn.MultiheadAttention(128, 8, 2, seq_len=2, init_method="Xavier", gain_bias=0.3)
    net = nn.Sequential(layer, nn.Linear(128, 200))
    pieces = list(prior_pieces(net.arena.unfrozen(variances=True), net.arena.leaves))
    assert list(map(len, pieces)) == [16384, 8192, 16384, 128, 64, 128, 128 * 200, 200]
    assert max(map(len, pieces)) > SEGMENT
    prior = net.arena.theta[1].copy()
    net.arena.theta[1] *= np.float32(0.125)
    net.forget_evidence(4)
    np.testing.assert_array_equal(net.arena.theta[1], prior * np.float32(0.5))
    net.forget_evidence(4)
    np.testing.assert_array_equal(net.arena.theta[1], prior)


def test_nothing_is_drawn():
    net = network()
    before = copy.deepcopy(get_state())
    net.forget_evidence(2)
    np.testing.assert_equal(get_state(), before)


@pytest.mark.parametrize("factor", [0.99, 0, -2, np.nan, np.inf, 1e39])
def test_factors_that_mean_nothing(factor):
    net = train(network(), 4)
    before = moments(net)
    with pytest.raises(ValueError, match="factor must be in"):
        net.forget_evidence(factor)
    with pytest.raises(TypeError, match="factor must be a number, got '4'"):
        net.forget_evidence("4")
    np.testing.assert_array_equal(moments(net), before)


def test_deltas_that_wait_come_first():
    net = train(network(), 4)
    observe(net, 3)
    with pytest.raises(RuntimeError, match=r"forget_evidence\(\) between backward\(\) and step\(\): call step\(\)"):
        net.forget_evidence(2)
    net.step()
    net.forget_evidence(2)


def test_before_parameters_are_drawn():
    with nn.deferred_init():
        net = network()
    with pytest.raises(ParametersNotHereError, match="materialize"):
        net.forget_evidence(2)


def test_a_network_that_is_trained_on_ranks_asks_all_of_them():
    net = network()
    ddp = nn.DDPSequential(net, nn.DDPConfig(backend="serial"))
    with pytest.raises(RuntimeError, match="network in a DDPSequential: call that one's, on every rank"):
        net.forget_evidence(2)
    with ddp.no_sync(), pytest.raises(RuntimeError, match=r"forget_evidence\(\) inside no_sync"):
        ddp.forget_evidence(2)
