"""Deltas at the output layer, from observations. Outputs have variances and Jacobians."""

from typing import Any

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.compile import blocks, floats, int32, ints, kernel, thread_index
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide
from pytagi_ddp.kernels.formulas.update import heteros_delta, observation_delta
from pytagi_ddp.kernels.tensors import Array, Delta, State

THREADS = 256
ZERO = np.float32(0)


@kernel(floats, floats, floats, floats, floats, floats, floats, int32, threads=THREADS)
def _update(mu, var, jcb, obs, var_obs, delta_mu, delta_var, n):
    i = thread_index()
    if i < n:
        delta_mu[i], delta_var[i] = observation_delta(mu[i], var[i], jcb[i], obs[i], var_obs[i])


@kernel(floats, floats, floats, floats, floats, ints, floats, floats, int32, int32, int32, threads=THREADS)
def _update_using_indices(mu, var, jcb, obs, var_obs, index, delta_mu, delta_var, batch, outputs, observed):
    i = thread_index()
    if i < batch * outputs:
        b, k = divide(np.int32(i), outputs)
        dm, ds = ZERO, ZERO
        for o in range(b * observed, (b + 1) * observed):
            if index[o] == k:
                dm, ds = observation_delta(mu[i], var[i], jcb[i], obs[o], var_obs[o])
        delta_mu[i], delta_var[i] = dm, ds


@kernel(floats, floats, floats, floats, floats, floats, int32, threads=THREADS)
def _update_heteros(mu, var, jcb, obs, delta_mu, delta_var, n):
    i = thread_index()
    if i < n:
        z, v = 2 * i, 2 * i + 1
        delta_mu[z], delta_var[z], delta_mu[v], delta_var[v] = heteros_delta(
            mu[z], var[z], jcb[z], mu[v], var[v], jcb[v], obs[i]
        )


def express_update(states: Any, mu_obs: Any, var_obs: Any, deltas: Any, weight: float = 1.0) -> bool:
    """False: there is no fast path on a GPU."""
    return False


def update(output: State, observed: State, delta: Delta) -> None:
    """One observation for each output; observed: means and variances of observations."""
    n = output.mu.size
    _update.launch(blocks(n, THREADS), *output, observed.mu, observed.var, delta.mu, delta.var, n)


def update_using_indices(output: State, observed: State, index: Array, delta: Delta) -> None:
    """observed, index: (batch, n) observations of the outputs `index` (from 0) of each sample; all others get zero."""
    arrays = *output, observed.mu, observed.var, index, delta.mu, delta.var
    _update_using_indices.launch(blocks(output.mu.size, THREADS), *arrays, *output.mu.shape, index.shape[1])


def update_heteros(output: State, observed: State, delta: Delta) -> None:
    """Outputs interleaved [mean, noise variance]; one observation for each pair, whose variance is the noise."""
    n = observed.mu.size
    _update_heteros.launch(blocks(n, THREADS), *output, observed.mu, delta.mu, delta.var, n)
