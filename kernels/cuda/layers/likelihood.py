"""Deltas at the output layer, from observations of any kind. Outputs have variances and Jacobians."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.compile import (
    Kernel,
    block_sum,
    blocks,
    cuda,
    device,
    float32,
    floats,
    int32,
    ints,
    kernel,
    thread_index,
)
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide
from pytagi_ddp.kernels.formulas.bounds import at_least
from pytagi_ddp.kernels.formulas.likelihood import (
    LEAST,
    LIKELIHOODS,
    SMALL,
    TURNS,
    class_change,
    class_deltas,
    class_residual,
    class_start,
    class_step,
    class_summands,
    grown,
    weighed,
)
from pytagi_ddp.kernels.formulas.normal import exp, log
from pytagi_ddp.kernels.tensors import Array, Delta, State

THREADS, ROW_THREADS = 128, 64
ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-np.inf)


def _kernel_of(name: str, observation: Callable) -> Kernel:
    """The kernel over observations with this formula."""

    def observe(mu, var, jcb, y, a, b, weight, delta_mu, delta_var, n, width, outputs, first, step_a, step_b, step_w):
        i = thread_index()
        if i < n:
            row, o = divide(np.int32(i), outputs)
            k = row * width + first + o
            dm, ds = ZERO, ZERO
            if y[i] == y[i]:
                g, h = observation(mu[k], var[k], y[i], a[i * step_a], b[i * step_b])
                dm, ds = weighed(mu[k], var[k], jcb[k], weight[i * step_w], g, h)
            delta_mu[k], delta_var[k] = dm, ds

    return kernel(*[floats] * 9, *[int32] * 7, threads=THREADS, name=f"likelihood_{name}")(observe)


_KERNELS = {name: _kernel_of(name, observation) for name, observation in LIKELIHOODS.items()}


@device
def _block_largest(value, scratch):
    """The largest `value` of a block, or NaN if one is, returned to all of its threads."""
    i = cuda.threadIdx.x
    scratch[i] = value
    half = ROW_THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if i < half:
            scratch[i] = at_least(scratch[i + half], scratch[i])
        half //= 2
    cuda.syncthreads()
    return scratch[0]


@kernel(*[floats] * 3, ints, *[floats] * 3, *[int32] * 4, threads=ROW_THREADS)
def _categorical(mu, var, jcb, index, weight, delta_mu, delta_var, width, first, classes, step_w):
    scratch = cuda.shared.array(ROW_THREADS, float32)
    second = cuda.shared.array(ROW_THREADS, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    start = row * width + first
    label = index[row]
    if label < 0:
        for k in range(thread, classes, ROW_THREADS):
            delta_mu[start + k], delta_var[start + k] = ZERO, ZERO
    else:
        top, total = LOWEST, ZERO
        for k in range(thread, classes, ROW_THREADS):
            top = at_least(mu[start + k], top)
        top = _block_largest(top, scratch)
        for k in range(thread, classes, ROW_THREADS):
            i = start + k
            delta_mu[i] = exp(class_start(mu[i], top, var[i]))
            total += delta_mu[i]
        total = block_sum(total, second, ROW_THREADS)
        for k in range(thread, classes, ROW_THREADS):
            delta_mu[start + k] = at_least(delta_mu[start + k] / total, LEAST)
        turn, change = 0, ONE
        while turn < TURNS and not change <= SMALL:
            of_v, of_r, total, change = ZERO, ZERO, ZERO, ZERO
            for k in range(thread, classes, ROW_THREADS):
                i = start + k
                delta_var[i], v = class_residual(delta_mu[i], log(delta_mu[i]), mu[i], top, var[i])
                of_v += delta_mu[i] * v
                of_r += delta_mu[i] * v * delta_var[i]
            c = block_sum(of_r, scratch, ROW_THREADS) / block_sum(of_v, second, ROW_THREADS)
            for k in range(thread, classes, ROW_THREADS):
                i = start + k
                d = class_step(delta_var[i], c, delta_mu[i], var[i])
                delta_var[i] = delta_mu[i] * grown(d)
                total += delta_var[i]
                change = at_least(d - ONE, change)
            total = block_sum(total, scratch, ROW_THREADS)
            for k in range(thread, classes, ROW_THREADS):
                i = start + k
                p = at_least(delta_var[i] / total, LEAST)
                change = at_least(class_change(p, delta_mu[i], var[i]), change)
                delta_mu[i] = p
            change = _block_largest(change, second)
            turn += 1
        a, b = ZERO, ZERO
        for k in range(thread, classes, ROW_THREADS):
            i = start + k
            of_a, of_b = class_summands(delta_mu[i], ONE if k == label else ZERO, var[i])
            a += of_a
            b += of_b
        a, b = block_sum(a, scratch, ROW_THREADS), block_sum(b, second, ROW_THREADS)
        for k in range(thread, classes, ROW_THREADS):
            i = start + k
            dm, ds = class_deltas(delta_mu[i], ONE if k == label else ZERO, var[i], a, b)
            delta_mu[i], delta_var[i] = weighed(mu[i], var[i], jcb[i], weight[row * step_w], dm, ds)


def observe(
    kind: str, output: State, observed: Array, a: Array, b: Array, weight: Array, first: int, delta: Delta
) -> None:
    """Deltas of the outputs from `first` on, one for each column of `observed`, by `LIKELIHOODS[kind]`.

    observed: (rows, n), NaN: missing. a, b, weight: rows x n numbers, or one for all, flat.
    """
    n, steps = observed.size, [min(1, array.size - 1) for array in (a, b, weight)]
    arrays = *output, observed, a, b, weight, *delta[:2]
    _KERNELS[kind].launch(blocks(n, THREADS), *arrays, n, output.mu.shape[1], observed.shape[1], first, *steps)


def categorical(output: State, index: Array, weight: Array, first: int, classes: int, delta: Delta) -> None:
    """Deltas of the logits of `classes` classes from `first` on; index: the class of each row, below 0: missing.

    p is found by Newton's method (see `class_residual`). weight: one for each row, or one for all.
    """
    rows, width = output.mu.shape
    sizes = width, first, classes, min(1, weight.size - 1)
    _categorical.launch(rows, *output, index, weight, *delta[:2], *sizes)


def express_categorical(states: Any, labels: Any, weight: Any, deltas: Any, classes: int) -> bool:
    """False: there is no fast path on a GPU."""
    return False
