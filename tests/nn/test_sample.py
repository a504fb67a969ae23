"""Functions drawn from the posterior of a network."""

import numpy as np
import pytest

import pytagi_ddp
from pytagi_ddp import nn
from tests.learning import learn


def learnt(*layers, outputs=1):
    pytagi_ddp.manual_seed(0)
    net, rng = nn.Sequential(*layers), np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    for rows in np.split(np.arange(200), 10):
        learn(net, x[rows], np.tile(x[rows].sum(1, keepdims=True), outputs), 0.5)
    return net, x[:20]


def test_draws_of_a_linear_network_have_its_moments_and_belong_together():
    net, x = learnt(nn.Linear(3, 1))
    draws = np.stack([function.predict(x)[0][:, 0] for function in net.sample(400, seed=1)])
    mu, var = (moment[:, 0] for moment in net.predict(x))
    np.testing.assert_allclose(draws.mean(0), mu, atol=4 * np.sqrt(var.max() / 400))
    np.testing.assert_allclose(draws.var(0), var, rtol=0.25)
    # Each draw is a linear function: it goes through the sum of two points less the origin.
    a, b, both, origin = np.stack([x[0], x[1], x[0] + x[1], 0 * x[0]])
    function = net.sample(1, seed=2)[0]
    values = function.predict(np.stack([a, b, both, origin]))[0][:, 0]
    assert values[2] == pytest.approx(values[0] + values[1] - values[3], abs=1e-5)


def test_a_function_has_no_variance_and_draws_follow_the_seed():
    net, x = learnt(nn.Linear(3, 16), nn.ReLU(), nn.LayerNorm([16]), nn.Linear(16, 2), outputs=2)
    net.train()
    before = net.state_dict()
    first, second = net.sample(2, seed=3)
    mu, var = first.predict(x)
    assert not var.any() and not first.training and net.training
    assert not np.allclose(mu, second.predict(x)[0])
    np.testing.assert_array_equal(mu, net.sample(1, seed=3)[0].predict(x)[0])
    after = net.state_dict()
    for layer, values in before.items():
        for name, value in values.items() if isinstance(values, dict) else enumerate(values):
            np.testing.assert_array_equal(after[layer][name], value)


def test_a_network_in_training_gives_functions_that_can_be_used_at_once():
    net, x = learnt(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    net.schedule = nn.EvidenceSchedule(net, 10, 2)
    net(x)
    function = net.sample(1, seed=0)[0]
    assert function.schedule is None and net.schedule is not None
    assert np.isfinite(function.predict(x)[0]).all()
    net.set_delta_z(np.ones(20), -np.ones(20))
    net.backward()
    net.step()


def test_what_cannot_be_drawn():
    net, _ = learnt(nn.Linear(3, 1))
    assert net.sample(0) == []
    with pytest.raises(ValueError, match="n must be at least 0, got -1"):
        net.sample(-1)
