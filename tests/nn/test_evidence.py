"""`EvidenceSchedule`: the posterior that it leads to, what a step pulls and what it leaves alone, and the schedule."""

import copy
import json
import math
import pickle

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from pytagi_ddp import likelihoods, manual_seed, nn
from pytagi_ddp.kernels.cpu.runtime.compile import FASTMATH
from pytagi_ddp.kernels.formulas.update import pulled
from pytagi_ddp.nn.core.forgetting import prior_pieces
from pytagi_ddp.nn.core.prior import prior_moments
from pytagi_ddp.nn.run.rebuild import keep_layers
from tests.battery.example import observe, train
from tests.nn.networks import randomise

WEIGHTS, STEPS, BATCH, NOISE = 5, 100, 5, 4.0
RNG = np.random.default_rng(0)
X = np.eye(WEIGHTS, dtype=np.float32)[np.arange(STEPS * BATCH) % WEIGHTS]
Y = (X @ RNG.normal(size=WEIGHTS) + 2 * RNG.normal(size=len(X))).astype(np.float32)
ON_CPU = njit(error_model="numpy", fastmath=FASTMATH)(lambda m, s, m0, s0, r: pulled(m, s, m0, s0, r))


def network() -> nn.Sequential:
    manual_seed(3)
    block = nn.ResNetBlock(nn.LayerBlock(nn.Linear(5, 5), nn.LayerNorm([5]), nn.ReLU()))
    return randomise(nn.Sequential(nn.Linear(4, 5, gain_weight=2.0), block, nn.ReLU(), nn.Linear(5, 2)))


def linear() -> nn.Sequential:
    """y = w x: with one-hot inputs, the exact posterior of the weights is one of independent Gaussians."""
    net = nn.Sequential(nn.Linear(WEIGHTS, 1, bias=False))
    net.layers[0].mu_w = np.zeros(WEIGHTS)
    return net


def learn(net: nn.Sequential, epochs: int, between=lambda: None) -> np.ndarray:
    """(means, variances) after epochs over the data."""
    likelihood = likelihoods.Gaussian(math.sqrt(NOISE))
    for epoch in range(epochs):
        if epoch:
            between()
        for start in range(0, len(X), BATCH):
            rows = slice(start, start + BATCH)
            net(X[rows])
            likelihood.observe(net, Y[rows], weight=1.0 if net.schedule is None else net.schedule.weight)
            net.backward()
            net.step()
    return net.arena.theta.copy()


def exact(net: nn.Sequential, count: float = 1.0) -> tuple[np.ndarray, float]:
    """Mean and variance of the weights, each sample counted so many times."""
    tau = WEIGHTS + count * len(X) / WEIGHTS / NOISE  # the prior has the variance 1/WEIGHTS
    assert prior_moments(net.layers[0])[1] == pytest.approx(1 / WEIGHTS)
    return count * (X.T @ Y) / NOISE / tau, 1 / tau


@pytest.mark.parametrize("epochs", [1, 2, 5, 20])
def test_the_posterior_is_bayes_after_any_number_of_epochs(epochs):
    net = linear()
    nn.EvidenceSchedule(net, STEPS, epochs, count=1, first=1, last=1, warm_up=0)
    mean, var = exact(net)
    m, s = learn(net, epochs)
    np.testing.assert_allclose(s, var, rtol=0.01)
    assert np.abs(m - mean).max() < 0.5 * math.sqrt(var)  # the last batches of an epoch count a little more
    if epochs == 1:
        np.testing.assert_allclose(m, mean, rtol=1e-3)


@pytest.mark.parametrize("epochs", [2, 5, 20])
def test_so_it_is_with_the_default_rates(epochs):
    net = linear()
    nn.EvidenceSchedule(net, STEPS, epochs, count=1)
    mean, var = exact(net)
    m, s = learn(net, epochs)
    np.testing.assert_allclose(s, var, rtol=0.01)
    assert np.abs(m - mean).max() < 0.7 * math.sqrt(var)


def test_small_rates_average_over_the_batches():
    net = linear()
    nn.EvidenceSchedule(net, STEPS, 40, count=1, first=1, last=0.02)
    mean, var = exact(net)
    m, s = learn(net, 40)
    np.testing.assert_allclose(s, var, rtol=0.01)
    assert np.abs(m - mean).max() < 0.02 * math.sqrt(var)


@pytest.mark.parametrize(("factor", "too_small"), [(2, 0.4), (4, 0.1)])  # docs/guide/evidence.md names these
def test_plain_epochs_and_forgetting_count_data_again(factor, too_small):
    _, var = exact(linear())
    assert learn(linear(), 1)[1] / var == pytest.approx(1, rel=0.01)
    assert (learn(linear(), 5)[1] < 0.3 * var).all()
    forgetting = linear()
    s = learn(forgetting, 5, lambda: forgetting.forget_evidence(factor))[1]
    np.testing.assert_allclose(s / var, 1 - too_small, atol=0.02)


@pytest.mark.parametrize("epochs", [8, 16])
def test_a_cold_posterior(epochs):
    """Each sample counts three times. The deltas of a step weigh w/(s + v), which is a little less than w/v."""
    net = linear()
    nn.EvidenceSchedule(net, STEPS, epochs, count=3, first=1, last=0.1)
    _, var = exact(net, 3)
    _, s = learn(net, epochs)
    np.testing.assert_allclose(s, var, rtol=0.03)


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_epochs_of_few_steps_have_the_same_balance(steps):
    """x <- (1 - r)(x + a E/N) stays at x = E for r = a/(N + a), whatever N is; here x = tau - tau0, evidence 3."""
    net = linear()
    schedule = nn.EvidenceSchedule(net, steps, 30, count=1, first=1, last=0.5)
    for _ in range(30 * steps):
        s = net.arena.theta[1]
        net.arena.delta[0], net.arena.delta[1] = 0, schedule.weight * -3 / steps / (1 + s * schedule.weight * 3 / steps)
        net.passes.passed(1)  # a batch of one sample, whose evidence is exact: h = -E/(1 + s E)
        net.step()
    np.testing.assert_allclose(1 / net.arena.theta[1], WEIGHTS + 3, rtol=2e-3)


# -- the formula ------------------------------------------------------------------------------------------------------

finite = {"allow_nan": False, "allow_infinity": False, "width": 32}
variances = st.floats(-7, 7).map(lambda x: float(np.float32(10**x))) | st.just(0.0)


@settings(max_examples=400, deadline=None)
@given(st.floats(-100, 100, **finite), variances, st.sampled_from([0.0, 1.0, -3.0]), variances, st.floats(0, 1))
def test_pulled(m, s, m0, s0, rate):
    r = float(np.float32(rate))
    new_m, new_s = ON_CPU(*np.float32([m, s, m0, s0, r]))
    if s == 0 or s0 == 0:
        assert (new_m, new_s) == (np.float32(m), np.float32(s))
        return
    tau = (1 - r) / s + r / s0
    scale = max(abs(m), abs(m0))
    assert new_s == pytest.approx(1 / tau, rel=1e-6)
    assert new_m == pytest.approx(((1 - r) * m / s + r * m0 / s0) / tau, abs=1e-6 * scale + 1e-37)
    assert new_s > 0


def test_a_rate_of_0_changes_no_bit():
    """Also where the prior is known to the step, and in a step that is replayed."""
    plain, with_schedule = network(), network()
    schedule = nn.EvidenceSchedule(with_schedule, 4, 1)
    for net in (plain, with_schedule):
        net.arena.theta[0, 7] = -0.0
        train(net, 3, 3, 3, 3)
    assert schedule.steps == 4 and schedule.rate > 0
    np.testing.assert_array_equal(with_schedule.arena.theta.view(np.int32), plain.arena.theta.view(np.int32))


def pull(before: np.ndarray, net: nn.Sequential, rate: float) -> np.ndarray:
    """What the formula makes of means and variances, in float64."""
    prior = [np.concatenate(parts) for parts in zip(*(both(leaf) for leaf in net.arena.leaves), strict=True)]
    (m, s), (m0, s0) = before.astype(float), np.array(prior, float)
    d = (1 - rate) * s0 + rate * s
    return np.array([m + rate * s / d * (m0 - m), s * s0 / d])


def both(leaf: nn.BaseLayer) -> tuple[np.ndarray, np.ndarray]:
    """The moments to which a schedule pulls the parameters of `leaf`."""
    mu_w, var_w, mu_b, var_b = prior_moments(leaf)
    narrow = 1 / 16 if isinstance(leaf, nn.LayerNorm | nn.RMSNorm | nn.BatchNorm2d) else 1.0
    return np.concatenate([mu_w, mu_b]), narrow * np.concatenate([var_w, var_b])


@pytest.mark.parametrize("replayed", [False, True])
def test_a_step_pulls_after_its_deltas(replayed):
    plain, net = network(), network()
    if replayed:  # so that the short way through `step` has to read the rate
        for each in (plain, net):
            train(each, 3, 3, 3, seed=5)
    schedule = nn.EvidenceSchedule(net, 1, 100, warm_up=0)
    for each in (plain, net):
        train(each, 3)
    for seed in range(4):
        rate = schedule.rate
        assert 0 < rate < 1
        plain.arena.theta[:] = net.arena.theta
        for each in (plain, net):
            train(each, 3, seed=seed)
        np.testing.assert_allclose(net.arena.theta, pull(plain.arena.theta, net, rate), rtol=2e-6, atol=1e-7)


def test_scales_of_normalisations_have_the_prior_mean_1():
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm([6]), nn.ReLU(), nn.Linear(6, 6), nn.RMSNorm([6]))
    means = {(p.layer, p.field): p.prior[0] for p in prior_pieces(net.arena.unfrozen(), net.arena.leaves)}
    ones = {key for key, mean in means.items() if mean}
    assert ones == {("LayerNorm.1", "mu_w"), ("RMSNorm.4", "mu_w")} and {means[key] for key in ones} == {1.0}
    norm = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, in_width=4, in_height=4), nn.BatchNorm2d(2))
    assert [p.prior[0] for p in prior_pieces(norm.arena.unfrozen(), norm.arena.leaves)] == [0, 0, 1, 0]


def test_frozen_and_known_parameters_stay():
    net = network()
    net.layers[0].freeze()
    net.arena.theta[1, -3] = 0
    nn.EvidenceSchedule(net, 1, 9)
    before = net.arena.theta.copy()
    train(net, 3, 3, 3)
    frozen = net.layers[0].num_weights + net.layers[0].num_biases
    np.testing.assert_array_equal(net.arena.theta[:, :frozen], before[:, :frozen])
    np.testing.assert_array_equal(net.arena.theta[:, -3], before[:, -3])
    net.layers[0].unfreeze()
    train(net, 3)
    assert (net.arena.theta[:, :frozen] != before[:, :frozen]).any()


def test_a_layer_whose_means_are_drawn_elsewhere_is_pulled_to_0():
    class Drawn(nn.Linear):
        def init_weight_bias(self):
            self.set_prior(np.random.default_rng(1).normal(size=(2, 3)), np.full((2, 3), 0.5), np.ones(2), np.ones(2))

    net = nn.Sequential(Drawn(3, 2))
    priors = [part.prior for part in prior_pieces(net.arena.unfrozen(), net.arena.leaves)]
    assert priors == [(0.0, 0.5), (1.0, 1.0)]


# -- the schedule -----------------------------------------------------------------------------------------------------


def test_rates_and_weights():
    net = network()
    schedule = nn.EvidenceSchedule(net, steps_per_epoch=2, epochs=3, count=5, first=1, last=0.4, warm_up=0)
    assert net.schedule is schedule and schedule.net is net
    found = []
    for _ in range(8):
        found.append((schedule.steps, schedule.weight, schedule.rate))
        train(net, 3)
    a = np.array([1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.4])
    q = np.array([*[1 - np.prod(2 / (2 + a[:6]))] * 6, 1, 1])  # 1 after the planned steps
    np.testing.assert_allclose(found, np.transpose([np.arange(8), 5 * a / q, a / (2 + a)]), rtol=1e-12)
    schedule.extend(1)
    assert schedule.epochs == 4 and schedule.weight == pytest.approx(5 * 0.4)
    schedule.epochs = 8
    q = 1 - np.prod(2 / (2 + 1 - 0.6 * np.arange(16) / 16))
    assert schedule.weight == pytest.approx(5 * (1 - 0.6 * 8 / 16) / q)
    assert (
        repr(schedule) == "EvidenceSchedule(steps_per_epoch=2, epochs=8, count=5.0, first=1.0, last=0.4, warm_up=0.0, "
        "prior_factor=1.0, steps=8)"
    )


def test_the_weight_rises_in_the_warm_up_and_then_falls():
    net = network()
    schedule = nn.EvidenceSchedule(net, steps_per_epoch=2, epochs=5, count=3, first=1, last=0.2, warm_up=0.4)
    found = []
    for _ in range(11):
        found.append((schedule.weight / 3, schedule.rate))
        train(net, 3)
    a = np.array([*(0.1 + 0.9 * k / 4 for k in range(4)), *(1 - 0.8 * k / 6 for k in range(6)), 0.2])
    rates, reached = np.where(np.arange(11) < 4, 0, a / (2 + a)), 0.0  # no pull in the warm-up
    for share, rate in zip(a[:10], rates[:10], strict=True):
        reached = (reached + share / 2) * (1 - rate)
    np.testing.assert_allclose(found, np.transpose([a / np.array([reached] * 10 + [1]), rates]), rtol=1e-12)
    stream = nn.EvidenceSchedule(net, warm_up=0.4)
    assert (stream.weight, stream.rate) == (1, 0)


def test_defaults():
    schedule = nn.EvidenceSchedule(network(), 10, 2)
    assert tuple(schedule.state_dict().values()) == (10, 2, 8, 1, 0.02, 0.2, 1, 0)


@pytest.mark.parametrize("late", [False, True])
def test_a_wider_prior(late):
    """Parameters of a narrow prior, pulled to 4 times its variance, go where those of the wide prior go.

    The factor has no effect on normalisations.
    """
    gains = {"gain_weight": 0.5, "gain_bias": 0.5}
    narrow = nn.Sequential(nn.Linear(4, 3, **gains), nn.LayerNorm([3]), nn.Linear(3, 2, **gains))
    wide = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm([3]), nn.Linear(3, 2))
    narrow.load_state_dict(wide.state_dict())
    nn.EvidenceSchedule(wide, 1, 9)
    schedule = nn.EvidenceSchedule(narrow, 1, 9, prior_factor=1 if late else 4)
    schedule.prior_factor = 4
    for net in (wide, narrow):
        train(net, 3, 3, 3)
    np.testing.assert_array_equal(narrow.arena.theta, wide.arena.theta)


def test_streams_are_plain_tagi():
    plain, net = network(), network()
    schedule = nn.EvidenceSchedule(net)
    for each in (plain, net):
        train(each, 3, 4, 2)
    assert (schedule.weight, schedule.rate, schedule.steps) == (1, 0, 3)
    np.testing.assert_array_equal(net.arena.theta, plain.arena.theta)
    with pytest.raises(ValueError, match="without epochs: assign their number"):
        schedule.extend(2)
    with pytest.raises(ValueError, match=r"needs steps_per_epoch, .* as len\(loader\)"):
        schedule.epochs = 3


BAD = [
    ({"steps_per_epoch": 0, "epochs": 2}, ValueError, "steps_per_epoch .* at least 1, got 0"),
    ({"steps_per_epoch": 2.5, "epochs": 2}, TypeError, "steps_per_epoch must be an integer, got 2.5"),
    ({"steps_per_epoch": True, "epochs": 2}, TypeError, "steps_per_epoch must be an integer, got True"),
    ({"steps_per_epoch": 3, "epochs": 0}, ValueError, "epochs .* at least 1, got 0"),
    ({"epochs": 2}, ValueError, "needs steps_per_epoch"),
    ({"steps_per_epoch": 3, "epochs": 2, "count": 0}, ValueError, "above 0: else nothing is learnt"),
    ({"steps_per_epoch": 3, "epochs": 2, "count": np.nan}, ValueError, "count must be in .*, got nan"),
    ({"steps_per_epoch": 3, "epochs": 2, "count": "8"}, TypeError, "count must be a number, got '8'"),
    ({"steps_per_epoch": 3, "epochs": 2, "prior_factor": 0}, ValueError, "prior_factor .* above 0"),
    ({"steps_per_epoch": 3, "epochs": 2, "warm_up": 1}, ValueError, "warm_up .* share .* below 1, got 1"),
    ({"steps_per_epoch": 3, "epochs": 2, "last": -0.1}, ValueError, "last must be in .*, got -0.1"),
    ({"steps_per_epoch": 3, "epochs": 2, "first": 0.2, "last": 0.5}, ValueError, "falls from first to last, got first"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), BAD)
def test_arguments_that_mean_nothing(arguments, kind, message):
    net = network()
    with pytest.raises(kind, match=message):
        nn.EvidenceSchedule(net, **arguments)
    assert net.schedule is None
    with pytest.raises(kind, match=message):
        nn.EvidenceSchedule(net, 3, 2).load_state_dict(
            {"steps_per_epoch": None, "count": 1, "first": 1, "last": 0, "warm_up": 0, "prior_factor": 1, "steps": 0}
            | arguments
        )


def test_other_mistakes():
    net = network()
    with pytest.raises(TypeError, match=r"takes a network first, .* got int"):
        nn.EvidenceSchedule(3, 2)
    with pytest.raises(TypeError, match="schedule takes an EvidenceSchedule, or None"):
        net.schedule = 5
    schedule = nn.EvidenceSchedule(net, 3, 2)
    with pytest.raises(ValueError, match="belongs to another network"):
        network().schedule = schedule
    for name in ("rate", "steps", "weight"):
        with pytest.raises(AttributeError):
            setattr(schedule, name, 1)
    with pytest.raises(AttributeError, match="'epoch'"):
        schedule.epoch = 4
    with pytest.raises(ValueError, match=r"steps .* at least 0"):
        schedule.load_state_dict(schedule.state_dict() | {"steps": -1})
    with pytest.raises(ValueError, match=r"epochs .* at least 1, got -1"):
        schedule.extend(-1)
    assert schedule.epochs == 2


def test_another_one_replaces_it_and_none_ends_it():
    net = network()
    first = nn.EvidenceSchedule(net, 1, 5)
    train(net, 3, 3)
    second = nn.EvidenceSchedule(net, 1, 5)
    assert net.schedule is second and first.net is None
    first.remove()  # which is not the network's any more
    assert net.schedule is second
    train(net, 3, 3)
    assert (first.steps, second.steps) == (2, 2)
    second.remove()
    assert net.schedule is None and not net.arena.prior_factor
    plain = network()
    plain.arena.theta[:] = net.arena.theta
    for each in (plain, net):
        train(each, 3, seed=7)
    np.testing.assert_array_equal(net.arena.theta, plain.arena.theta)
    net.schedule = second
    assert second.rate > 0 and net.arena.prior_factor


@pytest.mark.parametrize("way", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_of_the_network_has_a_copy_of_it(way):
    net = network()
    schedule = nn.EvidenceSchedule(net, 2, 5)
    train(net, 3, 3, 3)
    other = way(net)
    assert other.schedule is not schedule and other.schedule.net is other
    assert other.schedule.state_dict() == schedule.state_dict()
    for each in (net, other):
        train(each, 3, 3, seed=9)
    np.testing.assert_array_equal(net.arena.theta, other.arena.theta)
    train(other, 3)
    assert (schedule.steps, other.schedule.steps) == (5, 6)
    alone = way(schedule)
    assert alone.net is None and alone.state_dict() == schedule.state_dict()


def test_a_network_that_is_gone_leaves_no_cycle():
    net = network()
    schedule = nn.EvidenceSchedule(net, 2, 5)
    layers = net.layers
    del net
    assert schedule.net is None
    nn.Sequential(*layers)  # which are free


def test_state_dict():
    net, other = network(), network()
    schedule = nn.EvidenceSchedule(net, np.int64(3), 2, count=np.float32(4))
    train(net, 3, 3, 3, 3)
    state = json.loads(json.dumps(schedule.state_dict()))
    assert state == {
        "steps_per_epoch": 3,
        "epochs": 2,
        "count": 4,
        "first": 1,
        "last": 0.02,
        "warm_up": 0.2,
        "prior_factor": 1,
        "steps": 4,
    }
    same = nn.EvidenceSchedule(other)
    same.load_state_dict(state)
    other.load_state_dict(net.state_dict())
    for each in (net, other):
        train(each, 3, seed=4)
    np.testing.assert_array_equal(net.arena.theta, other.arena.theta)
    with pytest.raises(KeyError):
        same.load_state_dict({"steps": 3})


def test_steps_that_are_none_do_not_move_it():
    net = network()
    schedule = nn.EvidenceSchedule(net, 1, 5)
    net.step()  # before the first backward pass
    train(net, 3, 3)
    before = net.arena.theta.copy()
    net(np.zeros((0, 4)))
    net.backward()
    net.step()
    assert schedule.steps == 2
    np.testing.assert_array_equal(net.arena.theta, before)
    net(np.ones((1, 4)))
    nn.OutputUpdater("cpu").update(net.output_z_buffer, np.ones(2), np.ones(2), net.input_delta_z_buffer)
    with pytest.raises(RuntimeError, match="backward"):
        net.step()
    assert schedule.steps == 2
    net.backward()
    net.arena.delta[0, 3] = np.nan
    with pytest.raises(FloatingPointError):
        net.step()
    assert schedule.steps == 2
    np.testing.assert_array_equal(net.arena.theta, before)


def test_micro_batches_are_one_step():
    whole, parts = network(), network()
    for net in (whole, parts):
        nn.EvidenceSchedule(net, 1, 9)
        train(net, 4)
    with parts.accumulate():
        for net in (whole, parts):
            observe(net, 4, 1)
    observe(parts, 4, 1)
    whole.arena.delta *= 2
    whole.passes.passed(8)
    for net in (whole, parts):
        net.step()
        assert net.schedule.steps == 2
    np.testing.assert_allclose(parts.arena.theta, whole.arena.theta, rtol=1e-5, atol=1e-6)


def test_parts_and_other_arenas_keep_it():
    """`keep_layers`, and a network that is drawn later."""
    net = network()
    nn.EvidenceSchedule(net, 1, 9)
    keep_layers(net, 0, 2)
    assert net.arena.prior_factor
    with nn.deferred_init():
        later = nn.Sequential(nn.Linear(4, 3))
    nn.EvidenceSchedule(later, 1, 9)
    later.materialize()
    train(later, 3, 3)
    assert later.arena.prior_factor and later.schedule.steps == 2
