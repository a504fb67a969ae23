"""Merges of the posteriors of several ranks, or of several steps, for all parameters in one launch."""

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.compile import blocks, float32, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.formulas import merge
from pytagi_ddp.kernels.tensors import Array, Delta, Tensor

contribution, merged, mixed, rebased = merge.contribution, merge.merged, merge.mixed, merge.rebased
THREADS = 256
ZERO = np.float32(0)


@kernel(*[floats] * 6, int32, int32, threads=THREADS)
def _contribute(mu, var, prior_mu, prior_var, first, second, rule, n):
    i = thread_index()
    if i < n:
        first[i], second[i] = contribution(mu[i], var[i], prior_mu[i], prior_var[i], rule)


@kernel(*[floats] * 7, int32, int32, threads=THREADS)
def _merge_sums(mu, var, prior_mu, prior_var, first, second, counters, rule, n):
    i = thread_index()
    ranks = counters[1]
    if i < n:
        m, s = prior_mu[i], prior_var[i]
        if ranks > ZERO:
            m, s = merged(m, s, first[i], second[i], ranks, rule)
        mu[i], var[i] = m, s
        prior_mu[i], prior_var[i] = m, s


@kernel(*[floats] * 6, int32, threads=THREADS)
def _rebase(mu, var, old_mu, old_var, new_mu, new_var, n):
    i = thread_index()
    if i < n:
        mu[i], var[i] = rebased(mu[i], var[i], old_mu[i], old_var[i], new_mu[i], new_var[i])


@kernel(*[floats] * 4, float32, int32, threads=THREADS)
def _mix(mu, var, into_mu, into_var, weight, n):
    i = thread_index()
    if i < n:
        into_mu[i], into_var[i] = mixed(into_mu[i], into_var[i], mu[i], var[i], weight)


def contribute(posterior: Tensor, prior: Tensor, change: Delta, rule: int) -> None:
    """change = this rank's summands, see `formulas.merge`; all arrays flat, of one length."""
    n = posterior.mu.size
    moments = posterior.mu, posterior.var, prior.mu, prior.var
    _contribute.launch(blocks(n, THREADS), *moments, change.mu, change.var, rule, n)


def merge_sums(posterior: Tensor, prior: Tensor, change: Delta, counters: Array, rule: int) -> None:
    """Sets both to the posterior merged over counters[1] ranks, from the summed `change`; to the prior for no ranks."""
    n = posterior.mu.size
    moments = posterior.mu, posterior.var, prior.mu, prior.var
    _merge_sums.launch(blocks(n, THREADS), *moments, change.mu, change.var, counters, rule, n)


def rebase(posterior: Tensor, old: Tensor, new: Tensor) -> None:
    """Adds the evidence of `posterior` since it was `old` to `new`; all arrays flat, of one length."""
    n = posterior.mu.size
    _rebase.launch(blocks(n, THREADS), posterior.mu, posterior.var, old.mu, old.var, new.mu, new.var, n)


def mix(posterior: Tensor, into: Tensor, weight: float) -> None:
    """`into` = the Gaussians with the moments of (1 - weight) `into` + weight `posterior`; all arrays flat."""
    n = posterior.mu.size
    _mix.launch(blocks(n, THREADS), posterior.mu, posterior.var, into.mu, into.var, np.float32(weight), n)
