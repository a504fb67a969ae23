"""Federated training: what merging gives, who is left out, and messages that are not as they should be."""

import copy
import dataclasses
import re

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.distributed import FederatedPosterior, PosteriorUpdate
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn.files.file_format import packed
from tests.nn.networks import randomise


def network(units: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, units), nn.MixtureReLU(), nn.BatchNorm2d(units), nn.Linear(units, 2))


def client(message: bytes, number: int, samples: int = 10, make=network) -> PosteriorUpdate:
    """An update that moves means by 0.3 standard deviations, and makes variances 0.6 to 0.8 times as large."""
    own = make()
    FederatedPosterior.receive(own, message)
    rng = np.random.default_rng(number)
    mu, var = own.arena.theta
    mu += 0.3 * np.sqrt(var) * rng.choice([-1, 1], mu.shape).astype(np.float32)
    var *= rng.uniform(0.6, 0.8, var.shape).astype(np.float32)
    own.arena.statistics[:] = rng.uniform(1, 2, own.arena.statistics.shape)
    return PosteriorUpdate.of(own, message, samples, f"c{number}")


@pytest.fixture
def server() -> FederatedPosterior:
    return FederatedPosterior(randomise(network()))


def theta_of(message: bytes, update: PosteriorUpdate) -> tuple[np.ndarray, np.ndarray]:
    """The natural parameters of the prior in a message, and of a client's posterior; float64."""
    net = network()
    FederatedPosterior.receive(net, message)
    mu, var = net.arena.theta.astype(float)
    prior = np.array([mu / var, 1 / var])
    return prior, prior + update.change


@pytest.mark.parametrize("evidence", [5.0, 2.0])
def test_posteriors_multiply_and_the_prior_is_divided_out_once(server, evidence):
    server.evidence = evidence
    message = server.broadcast()
    updates = [client(message, k, samples) for k, samples in enumerate((10, 14, 60, 10, 12))]
    updates[2] = dataclasses.replace(updates[2], change=4 * updates[2].change)  # as its samples explain
    prior, _ = theta_of(message, updates[0])
    expected = prior + min(1, evidence / 5) * sum(theta_of(message, update)[1] - prior for update in updates)
    running = sum(update.samples * update.running.astype(float) for update in updates) / 106
    result = server.merge(updates)
    assert result == (1, ("c0", "c1", "c2", "c3", "c4"), (), {}) and server.round == 1
    mu, var = server.net.arena.theta
    np.testing.assert_allclose(1 / var, expected[1], rtol=1e-5)
    np.testing.assert_allclose(mu, expected[0] / expected[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(server.net.arena.statistics, running, rtol=1e-5)


def test_a_late_update_counts_as_if_it_had_come_in_time():
    net = randomise(network())
    servers = [FederatedPosterior(copy.deepcopy(net), evidence=2, max_staleness=2) for _ in range(2)]
    messages = [server.broadcast() for server in servers]
    assert messages[0] == messages[1]
    first, late = client(messages[0], 0), client(messages[0], 1)
    servers[0].merge([first, late])
    servers[1].merge([first])
    assert servers[1].merge([late.to_bytes()]).merged == ("c1",)
    np.testing.assert_allclose(servers[0].net.arena.theta, servers[1].net.arena.theta, rtol=1e-4, atol=1e-6)
    assert servers[1].merge([late]).left_out == {
        "c1": "replayed: an update of this client from round 0 was merged before"
    }


def changed(update: PosteriorUpdate, row: int, factor: float) -> PosteriorUpdate:
    change = update.change.copy()
    change[row] *= factor
    return dataclasses.replace(update, change=change)


def test_wrong_clients_are_left_out_and_named(server):
    old = server.broadcast()
    server.merge([client(old, k) for k in (0, 1, 9)])
    message = server.broadcast()
    good = [client(message, k) for k in (1, 2, 3)]
    before = server.net.state_dict()
    shrunk = client(message, 10)
    other = FederatedPosterior(randomise(network(), 5), round=1).broadcast()
    bad = {
        "c4": (changed(client(message, 4), 0, np.nan), r"the change of Linear.0/mu_w: 12 of 12 values are NaN"),
        "c5": (changed(client(message, 5), 1, 1e6), r"moves \S+ [\d.e+]+ times as far .* than 10 samples"),
        "c6": (client(old, 6), r"stale: it started from round 0, and this is round 1 \(max_staleness 0\)"),
        "c7": (client(other, 7), "has not sent in round 1"),
        "c8": (
            dataclasses.replace(client(message, 8), architecture='{"Linear.0":{}}'),
            "another architecture: .* of Linear.0",
        ),
        "c10": (changed(shrunk, 1, -50.0), "would have a negative precision"),
        "c11": (dataclasses.replace(client(message, 11), change=np.zeros((2, 5), np.float32)), r"shape \(2, 5\)"),
        "c12": (dataclasses.replace(client(message, 12), running=np.full(8, -1, np.float32)), "must not be negative"),
        "c13": (changed(client(message, 13), 0, 1e33), "holds numbers above 1e"),
        "message 12": (client(message, 12).to_bytes()[:-3], "truncated or corrupt"),
        "message 13": (good[0].to_bytes() + b"0" * 20_000, "more than the"),
        "message 14": (message, "not an update of version 1, but None"),
        "c1": (good[0], "replayed: .* round 1"),
    }
    result = server.merge([*good, *(update for update, _ in bad.values())])
    assert result.merged == ("c1", "c2", "c3") and result.left_out.keys() == bad.keys()
    for name, (_, reason) in bad.items():
        assert re.search(reason, result.left_out[name]), (name, result.left_out[name])
    assert server.merge([updates for updates, _ in bad.values()]).merged == () and server.round == 2
    alone = FederatedPosterior(network(), round=1)
    alone.net.load_state_dict(before)
    assert alone.broadcast() == message
    alone.merge(good)
    assert alone.net.state_dict() == server.net.state_dict()


def test_a_client_that_lies_moves_the_posterior_no_further_than_three_honest_ones(server):
    message, start = server.broadcast(), server.net.arena.theta[0].copy()
    liar = client(message, 0)
    honest = [client(message, k) for k in range(1, 10)]
    prior, _ = theta_of(message, liar)
    shift = prior[0] / prior[1] * liar.change[1]  # what moves the precision and leaves the mean
    change = np.array([shift - 30 * (liar.change[0] - shift), liar.change[1]], np.float32)
    result = server.merge([dataclasses.replace(liar, change=change), *honest])
    assert result.clipped == ("c0",) and not result.left_out
    without = FederatedPosterior(network())
    FederatedPosterior.receive(without.net, message)
    without.broadcast()
    without.merge(honest)
    moved, other = (s.net.arena.theta[0] - start for s in (server, without))
    sigma = np.sqrt(1 / prior[1])
    assert 0.05 < np.sqrt(np.mean(((moved - other) / sigma) ** 2)) < 3 * 0.25 * 0.45


def test_numbers_that_no_server_has_are_refused():
    net = randomise(network())
    message = FederatedPosterior(net).broadcast()
    for options in ({"evidence": 0}, {"max_staleness": -1}, {"round": -1}):
        with pytest.raises(ValueError, match=f"FederatedPosterior: {next(iter(options))} must be"):
            FederatedPosterior(net, **options)
    with pytest.raises(TypeError, match="takes a Sequential, got int"):
        FederatedPosterior(3)
    for name, samples, reason in (
        ("", 1, "printable"),
        ("a\n", 1, "printable"),
        ("a", 0, "samples must be at least 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            PosteriorUpdate.of(net, message, samples, name)
    with pytest.raises(ValueError, match="another architecture"):
        FederatedPosterior.receive(network(5), message)
    with pytest.raises(ValueError, match="has 9 bytes, more than the 8"):
        PosteriorUpdate.from_bytes(bytes(9), max_bytes=8)
    with pytest.raises(ValueError, match="round is not a number but None"):
        PosteriorUpdate.from_bytes(packed({"change": np.zeros((2, 3), np.float32)}, {"update": "1"}))


def test_large_numbers_of_one_client_reach_nobody(server):
    """Even just below the bound, and in a round of three."""
    message = server.broadcast()
    liar = client(message, 0)
    liar.change[0, 0], liar.change[1, 3], liar.running[1] = 1e29, 1e29, 1e29
    result = server.merge([liar, client(message, 1), client(message, 2)])
    assert result.left_out.keys() == {"c0"} and np.isfinite(server.net.arena.theta).all()


def test_a_parameter_without_variance_is_not_learnt(server):
    theta = server.net.arena.theta
    theta[1, 0] = 0
    before, update = theta.copy(), client(server.broadcast(), 0)
    update.change[:, 0] = 1
    assert server.merge([update]).merged == ("c0",)
    np.testing.assert_array_equal(theta[:, 0], before[:, 0])
    assert (theta[:, 1:] != before[:, 1:]).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_client_with_many_samples_keeps_the_mean_of_its_evidence(seed):
    """Its variances and its means are scaled down by one factor, so that errors stay those that are predicted."""

    def linear():
        return nn.Sequential(nn.Linear(3, 1, bias=False))

    rng, updates = np.random.default_rng(seed), []
    server = FederatedPosterior(randomise(linear()), evidence=3)
    message = server.broadcast()
    for k, samples in enumerate((20, 1000, 20)):
        x, own = rng.normal(size=(samples, 3)), linear()
        y = x @ [1, -0.5, 0.2] + 0.3 * rng.normal(size=samples)
        FederatedPosterior.receive(own, message)
        own.fit(x, y, Gaussian(0.3), epochs=1, evidence=None)
        updates.append(PosteriorUpdate.of(own, message, samples, f"c{k}"))
    assert server.merge(updates).clipped == ("c1",)
    layer = server.net[0]
    assert np.abs((layer.mu_w.ravel() - [1, -0.5, 0.2]) / np.sqrt(layer.var_w.ravel())).max() < 2.5
