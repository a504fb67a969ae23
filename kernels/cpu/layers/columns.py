"""Sums over the rows of a (rows, features) array: blocks of rows first, then the partial sums."""

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion
from pytagi_ddp.kernels.tensors import Array, Tensor

ZERO = np.float32(0)
PARTS = 256  # partial sums that are added together first, for accurate float32 sums


@loop("2kf _ g g", lambda n: n.g in (0, n.f))
def _add_partials(thread, threads, partial, accumulate, g, h):
    base, share = portion(g.size, thread, threads)
    for each in range(share):
        c = base + each
        g_c, h_c = (g[c], h[c]) if accumulate else (ZERO, ZERO)
        for first in range(0, partial.shape[1], PARTS):
            g_part = h_part = ZERO
            for k in range(first, min(partial.shape[1], first + PARTS)):
                g_part += partial[0, k, c]
                h_part += partial[1, k, c]
            g_c += g_part
            h_c += h_part
        g[c], h[c] = g_c, h_c


def add_partials(partial: Array, accumulate: bool, weights: Tensor, bias: Tensor) -> None:
    """Sums partial (4, parts, features) over its parts; writes the sums to g and h, or adds them if `accumulate`.

    The planes of partial belong to g and h of the weights, then to g and h of the biases; the latter are ignored if
    `bias` has no sums.
    """
    _add_partials(partial[:2], accumulate, *weights[2:])
    _add_partials(partial[2:], accumulate, *bias[2:])
