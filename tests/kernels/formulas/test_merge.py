"""Merged posteriors against float64, and where a precision does not exist."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import merge
from pytagi_ddp.kernels.formulas.rules import DAMPED_PRODUCT, MEAN, RULES
from pytagi_ddp.kernels.tensors import Delta, Tensor

RANKS = 3


def merged(means, variances, m0, s0, rule):
    """What all ranks end with; means and variances: (ranks, parameters)."""
    total = np.zeros((2, m0.size), np.float32)
    for mu, var in zip(means, variances, strict=True):
        summands = np.empty_like(total)
        merge.contribute(Tensor(mu, var), Tensor(m0, s0), Delta(*summands), rule)
        total += summands
    posterior = Tensor(np.empty_like(m0), np.empty_like(s0))
    counters = np.float32([9, RANKS, 0])
    merge.merge_sums(posterior, Tensor(m0.copy(), s0.copy()), Delta(*total), counters, rule)
    return posterior.mu, posterior.var


@pytest.mark.parametrize("rule", RULES)
def test_formulas(rule):
    rng = np.random.default_rng(0)
    means, m0 = rng.normal(size=(RANKS, 50)).astype(np.float32), rng.normal(size=50).astype(np.float32)
    s0 = rng.uniform(0.5, 1, 50).astype(np.float32)
    variances = (s0 * rng.uniform(0.6, 1.6, (RANKS, 50))).astype(np.float32)
    mu, var = merged(means, variances, m0, s0, rule)
    if rule != MEAN:
        precisions, prior = 1 / variances.astype(float), 1 / s0.astype(float)
        gained = (precisions - prior).sum(0)
        expected = (precisions * means).sum(0) / precisions.sum(0)
        variance = 1 / np.where(gained > 0, prior + gained, precisions.mean(0))
        assert (gained > 0).any() and (gained <= 0).any()
        if rule == DAMPED_PRODUCT:
            total = np.where(gained > 0, np.sqrt(RANKS) * prior + gained, precisions.sum(0) / np.sqrt(RANKS))
            expected = m0 + (precisions * (means - m0)).sum(0) / total
    else:
        expected, variance = means.astype(float).mean(0), variances.astype(float).mean(0)
    np.testing.assert_allclose(mu, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, variance, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_what_no_rank_has_changed_stays(rule):
    """1/(1/s) is not always s in float32; parameters of frozen layers would drift."""
    rng = np.random.default_rng(1)
    m0, s0 = rng.normal(size=500).astype(np.float32), rng.uniform(1e-4, 1, 500).astype(np.float32)
    assert (1 / (1 / s0) != s0).any()
    mu, var = merged([m0] * RANKS, [s0] * RANKS, m0, s0, rule)
    np.testing.assert_array_equal(mu, m0)
    np.testing.assert_array_equal(var, s0)


@pytest.mark.parametrize("rule", RULES)
def test_a_prior_without_variance(rule):
    m0, s0 = np.float32([2, 2]), np.float32([0, 0])
    means, variances = np.float32([[2, 2], [2, 5], [2, 2]]), np.float32([[0, 0], [0, 3e-5], [0, 0]])
    mu, var = merged(means, variances, m0, s0, rule)
    np.testing.assert_allclose(mu, [2, 3], rtol=1e-6)
    np.testing.assert_allclose(var, [0, 1e-5], rtol=1e-6)


def test_what_was_learnt_meanwhile_goes_on_top():
    """In natural parameters, p and p m, it is a difference. A precision stays positive, whatever was lost."""
    rng = np.random.default_rng(2)
    m, m0, m1 = rng.normal(size=(3, 500)).astype(np.float32)
    s, s0, s1 = rng.uniform(0.2, 1, (3, 500)).astype(np.float32)
    m[0], s[0] = m0[0], s0[0]
    mu, var = m.copy(), s.copy()
    merge.rebase(Tensor(mu, var), Tensor(m0, s0), Tensor(m1, s1))
    assert (mu[0], var[0]) == (m1[0], s1[0]), "to the last bit"
    p, p0, p1 = (1 / variance.astype(float) for variance in (s, s0, s1))
    total, there = p + p1 - p0, p + p1 - p0 > 0.02 * p1
    assert 300 < there.sum() < 500
    expected = (p * m + p1 * m1 - p0 * m0) / total
    np.testing.assert_allclose(mu[there], expected[there], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(var[there], 1 / total[there], rtol=1e-4)
    assert (var > 0).all() and (var <= 64.01 * s1).all() and np.isfinite(mu).all()
    known, old, new = np.float32([[3, 3], [0, 0.5]]), np.float32([[2, 2], [0, 0]]), np.float32([[7, 7], [0, 0]])
    merge.rebase(*(Tensor(*moments) for moments in (known, old, new)))
    np.testing.assert_array_equal(known, [[8, 8], [0, 0.5]])
