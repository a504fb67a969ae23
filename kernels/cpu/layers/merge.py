"""Merges of the posteriors of several ranks, or of several steps, for all parameters in one call."""

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion
from pytagi_ddp.kernels.formulas import merge
from pytagi_ddp.kernels.tensors import Array, Delta, Tensor

contribution, merged, mixed, rebased = merge.contribution, merge.merged, merge.mixed, merge.rebased


@loop("n n n n n n _")
def _contribute(thread, threads, mu, var, prior_mu, prior_var, first, second, rule):
    base, share = portion(mu.size, thread, threads)
    for each in range(share):
        i = base + each
        first[i], second[i] = contribution(mu[i], var[i], prior_mu[i], prior_var[i], rule)


@loop("n n n n n n 3 _")
def _merge_sums(thread, threads, mu, var, prior_mu, prior_var, first, second, counters, rule):
    ranks = counters[1]
    base, share = portion(mu.size, thread, threads)
    for each in range(share):
        i = base + each
        m, s = prior_mu[i], prior_var[i]
        if ranks:
            m, s = merged(m, s, first[i], second[i], ranks, rule)
        mu[i], var[i] = m, s
        prior_mu[i], prior_var[i] = m, s


@loop("n n n n n n")
def _rebase(thread, threads, mu, var, old_mu, old_var, new_mu, new_var):
    base, share = portion(mu.size, thread, threads)
    for each in range(share):
        i = base + each
        mu[i], var[i] = rebased(mu[i], var[i], old_mu[i], old_var[i], new_mu[i], new_var[i])


@loop("n n n n _")
def _mix(thread, threads, mu, var, into_mu, into_var, weight):
    base, share = portion(mu.size, thread, threads)
    for each in range(share):
        i = base + each
        into_mu[i], into_var[i] = mixed(into_mu[i], into_var[i], mu[i], var[i], weight)


def contribute(posterior: Tensor, prior: Tensor, change: Delta, rule: int) -> None:
    """change = this rank's summands, see `formulas.merge`; all arrays flat, of one length."""
    _contribute(posterior.mu, posterior.var, prior.mu, prior.var, change.mu, change.var, rule)


def merge_sums(posterior: Tensor, prior: Tensor, change: Delta, counters: Array, rule: int) -> None:
    """Sets both to the posterior merged over counters[1] ranks, from the summed `change`; to the prior for no ranks."""
    _merge_sums(posterior.mu, posterior.var, prior.mu, prior.var, change.mu, change.var, counters, rule)


def rebase(posterior: Tensor, old: Tensor, new: Tensor) -> None:
    """Adds the evidence of `posterior` since it was `old` to `new`; all arrays flat, of one length."""
    _rebase(posterior.mu, posterior.var, old.mu, old.var, new.mu, new.var)


def mix(posterior: Tensor, into: Tensor, weight: float) -> None:
    """`into` = the Gaussians with the moments of (1 - weight) `into` + weight `posterior`; all arrays flat."""
    _mix(posterior.mu, posterior.var, into.mu, into.var, np.float32(weight))
