"""Pooling of channels-last images (batch, height, width, channels).

pad: rows and columns of zeros at the top and left; taps outside the image are skipped. Backward returns the deltas of
the input without its Jacobian.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import PARALLEL_MIN, flushed
from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.kernels.tensors import Array, Delta, State

_loops = load("layers._pooling")
call = load("runtime._replay").call


def average_forward(x: State, out: State, kernel_size: int, stride: int, pad: int) -> None:
    """m = sum m / k^2, s = sum s / k^4: padding counts as zeros."""
    _run(_loops.average, x.mu, x.var, out.mu, out.var, kernel_size, stride, pad, False)


def average_backward(delta: Delta, in_delta: Delta, kernel_size: int, stride: int, pad: int) -> None:
    """dm = sum dm / k^2, ds = sum ds / k^4 over the windows of a pixel."""
    _run(_loops.average, delta.mu, delta.var, in_delta.mu, in_delta.var, kernel_size, stride, pad, True)


def _run(function: Callable, *arguments: Any) -> None:
    """Calls a function over images, with a number of threads that depends on their size."""
    size = max(a.size for a in arguments if isinstance(a, np.ndarray))
    threads = get_threads() if size >= PARALLEL_MIN else 1
    call(flushed, function, threads, (*arguments, threads))


def max_forward(x: State, out: State, winner: Array, kernel_size: int, stride: int, pad: int) -> None:
    """Selects the unit with the largest mean (the first, row by row); winner: its pixel, row * width + column.

    A mean that is NaN counts as the largest; of several such means, the last one is selected.
    """
    _run(_loops.largest, x.mu, x.var, out.mu, out.var, winner, kernel_size, stride, pad)


def max_backward(delta: Delta, winner: Array, in_delta: Delta, kernel_size: int, stride: int, pad: int) -> None:
    """Adds the deltas of each window to its winner."""
    _run(_loops.scatter, delta.mu, delta.var, winner, in_delta.mu, in_delta.var)
