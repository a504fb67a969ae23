"""Whole-array operations between layers: sums of states and deltas, and the change of image layout."""

import numpy as np
from numba import prange

from pytagi_ddp.kernels.cpu.compile import PARALLEL_MIN, loop
from pytagi_ddp.kernels.cpu.extension import load
from pytagi_ddp.kernels.cpu.threads import get_threads

_transpose = load("_transpose")
call = load("_replay").call


@loop
def add(a, b, out):
    """out = a + b, flat; out may be a."""
    for i in prange(out.size):
        out[i] = a[i] + b[i]


def transpose(source: np.ndarray, out: np.ndarray) -> None:
    """out[b, j, i] = source[b, i, j]: channels-first to channels-last images and back.

    Raises:
        ValueError: an array is not C-contiguous float32, or shapes do not fit together.
    """
    call(_transpose.transpose, source, out, get_threads() if source.size >= PARALLEL_MIN else 1)


@loop
def multiply(out, factor):
    """out *= factor: the chain rule of stacked activations."""
    for i in prange(out.size):
        out[i] *= factor[i]


@loop
def apply_jacobian(delta_mu, delta_var, jcb):
    """Deltas through an activation: delta_mu *= J, delta_var *= J^2."""
    for i in prange(delta_mu.size):
        j = jcb[i]
        delta_mu[i] *= j
        delta_var[i] *= j * j
