"""Deltas at the output layer, from observations. Outputs have variances and Jacobians."""

from typing import Any

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion
from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.formulas.update import heteros_delta, observation_delta
from pytagi_ddp.kernels.tensors import Array, Delta, State

_express = load("runtime._express")
NOTHING = np.zeros(0, np.float32)
_offered = False


def express_update(states: Any, mu_obs: Any, var_obs: Any, deltas: Any, weight: float = 1.0) -> bool:
    """The common case of `OutputUpdater.update`, with deltas times a weight; returns False in any other case.

    var_obs may be a float, for all observations.
    """
    made = _express.update(states, mu_obs, var_obs, deltas, weight)
    return made or (_offers_update() and _express.update(states, mu_obs, var_obs, deltas, weight))


def _offers_update() -> bool:
    """Registers the loop for the fast path, in the first call; returns whether it did."""
    global _offered
    if _offered:
        return False
    _offered = True
    if (found := _update.entry((NOTHING,) * 7)) is not None:
        _express.offer_update(*found)
    return found is not None


@loop("n n n n n n n")
def _update(thread, threads, mu, var, jcb, obs, var_obs, delta_mu, delta_var):
    base, share = portion(mu.size, thread, threads)
    for each in range(share):
        i = base + each
        delta_mu[i], delta_var[i] = observation_delta(mu[i], var[i], jcb[i], obs[i], var_obs[i])


@loop("bk bk bk bn bn bn bk bk")
def _update_using_indices(thread, threads, mu, var, jcb, obs, var_obs, index, delta_mu, delta_var):
    base, share = portion(mu.shape[0], thread, threads)
    for each in range(share):
        b = base + each
        for k in range(mu.shape[1]):
            delta_mu[b, k] = 0
            delta_var[b, k] = 0
        for n in range(index.shape[1]):
            k = index[b, n]
            if 0 <= k < mu.shape[1]:  # the updater reports other indices, which must not be written to
                delta_mu[b, k], delta_var[b, k] = observation_delta(
                    mu[b, k], var[b, k], jcb[b, k], obs[b, n], var_obs[b, n]
                )


@loop("m m m n m m", lambda n: n.m == 2 * n.n)
def _update_heteros(thread, threads, mu, var, jcb, obs, delta_mu, delta_var):
    base, share = portion(obs.size, thread, threads)
    for each in range(share):
        i = base + each
        z, v = 2 * i, 2 * i + 1
        delta_mu[z], delta_var[z], delta_mu[v], delta_var[v] = heteros_delta(
            mu[z], var[z], jcb[z], mu[v], var[v], jcb[v], obs[i]
        )


def update(output: State, observed: State, delta: Delta) -> None:
    """One observation for each output; observed: means and variances of observations."""
    output, observed, delta = output.reshape(-1), observed.reshape(-1), delta.reshape(-1)
    _update(*output, observed.mu, observed.var, delta.mu, delta.var)


def update_using_indices(output: State, observed: State, index: Array, delta: Delta) -> None:
    """observed, index: (batch, n) observations of the outputs `index` (from 0) of each sample; all others get zero."""
    _update_using_indices(*output, observed.mu, observed.var, index, delta.mu, delta.var)


def update_heteros(output: State, observed: State, delta: Delta) -> None:
    """Outputs interleaved [mean, noise variance]; one observation for each pair, whose variance is the noise."""
    output, delta = output.reshape(-1), delta.reshape(-1)
    _update_heteros(*output, observed.mu.reshape(-1), delta.mu, delta.var)
