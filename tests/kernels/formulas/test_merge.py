"""Merged posteriors against float64, and where a precision does not exist."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import merge
from pytagi_ddp.kernels.tensors import Delta, Tensor

RANKS = 3


def merged(means, variances, m0, s0, weighted):
    """What all ranks end with; means and variances: (ranks, parameters)."""
    total = np.zeros((2, m0.size), np.float32)
    for mu, var in zip(means, variances, strict=True):
        summands = np.empty_like(total)
        merge.contribute(Tensor(mu, var), Tensor(m0, s0), Delta(*summands), weighted)
        total += summands
    posterior = Tensor(np.empty_like(m0), np.empty_like(s0))
    counters = np.float32([9, RANKS, 0])
    merge.merge_sums(posterior, Tensor(m0.copy(), s0.copy()), Delta(*total), counters, weighted)
    return posterior.mu, posterior.var


@pytest.mark.parametrize("weighted", [True, False])
def test_formulas(weighted):
    rng = np.random.default_rng(0)
    means, m0 = rng.normal(size=(RANKS, 50)).astype(np.float32), rng.normal(size=50).astype(np.float32)
    s0 = rng.uniform(0.5, 1, 50).astype(np.float32)
    variances = (s0 * rng.uniform(0.6, 1.6, (RANKS, 50))).astype(np.float32)
    mu, var = merged(means, variances, m0, s0, weighted)
    if weighted:
        precisions, prior = 1 / variances.astype(float), 1 / s0.astype(float)
        gained = (precisions - prior).sum(0)
        expected = (precisions * means).sum(0) / precisions.sum(0)
        variance = 1 / np.where(gained > 0, prior + gained, precisions.mean(0))
        assert (gained > 0).any() and (gained <= 0).any()
    else:
        expected, variance = means.astype(float).mean(0), variances.astype(float).mean(0)
    np.testing.assert_allclose(mu, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var, variance, rtol=1e-5)


@pytest.mark.parametrize("weighted", [True, False])
def test_what_no_rank_has_changed_stays(weighted):
    """1/(1/s) is not always s in float32; parameters of frozen layers would drift."""
    rng = np.random.default_rng(1)
    m0, s0 = rng.normal(size=500).astype(np.float32), rng.uniform(1e-4, 1, 500).astype(np.float32)
    assert (1 / (1 / s0) != s0).any()
    mu, var = merged([m0] * RANKS, [s0] * RANKS, m0, s0, weighted)
    np.testing.assert_array_equal(mu, m0)
    np.testing.assert_array_equal(var, s0)


@pytest.mark.parametrize("weighted", [True, False])
def test_a_prior_without_variance(weighted):
    m0, s0 = np.float32([2, 2]), np.float32([0, 0])
    means, variances = np.float32([[2, 2], [2, 5], [2, 2]]), np.float32([[0, 0], [0, 3e-5], [0, 0]])
    mu, var = merged(means, variances, m0, s0, weighted)
    np.testing.assert_allclose(mu, [2, 3], rtol=1e-6)
    np.testing.assert_allclose(var, [0, 1e-5], rtol=1e-6)
