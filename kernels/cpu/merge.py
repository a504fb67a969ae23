"""Posteriors of several ranks, merged: over the whole arena in one call."""

from numba import prange

from pytagi_ddp.kernels.cpu.compile import loop
from pytagi_ddp.kernels.formulas import merge

contribution, merged = merge.contribution, merge.merged


@loop
def contribute(mu, var, prior_mu, prior_var, first, second, weighted):
    """first, second = this rank's summands, see `formulas.merge`; all arrays flat, of one length."""
    for i in prange(mu.size):
        first[i], second[i] = contribution(mu[i], var[i], prior_mu[i], prior_var[i], weighted)


@loop
def merge_sums(mu, var, prior_mu, prior_var, first, second, header, weighted):
    """mu, var and the prior become the merged posterior of header[1] ranks; with none, mu and var the prior."""
    ranks = header[1]
    for i in prange(mu.size):
        m, s = prior_mu[i], prior_var[i]
        if ranks:
            m, s = merged(m, s, first[i], second[i], ranks, weighted)
        mu[i], var[i] = m, s
        prior_mu[i], prior_var[i] = m, s
