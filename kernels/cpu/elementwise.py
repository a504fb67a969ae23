"""Whole-array operations between layers: sums of states and deltas, and the change of image layout."""

from numba import prange

from pytagi_ddp.kernels.cpu.compile import loop


@loop
def add(a, b, out):
    """out = a + b, flat; out may be a."""
    for i in prange(out.size):
        out[i] = a[i] + b[i]


@loop
def transpose(source, out):
    """out[b, j, i] = source[b, i, j]: channels-first to channels-last images and back."""
    batch, rows, columns = source.shape
    for b in prange(batch):
        for j in range(columns):
            for i in range(rows):
                out[b, j, i] = source[b, i, j]


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
