"""Activations over the classes of a sample: arrays are (batch, classes).

`out` also gets the Jacobian, and may be the input itself: a thread writes the units that it has read, and values that
all threads need are read before the last barrier. One block per sample; sums are trees in shared memory.
"""

import math

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.compile import Kernel, block_sum, cuda, device, float32, floats, int32, kernel
from pytagi_ddp.kernels.formulas.activation import exp_moments, log_moments, mixture_relu_moments
from pytagi_ddp.kernels.formulas.softmax import (
    closed_form_softmax_moments,
    remax_jcb,
    remax_mean,
    remax_var,
    softmax_moments,
)
from pytagi_ddp.kernels.tensors import State

THREADS = 128
ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-np.inf)


@device
def _first_largest(mu, start, classes, values, places):
    """(mean, class) of the largest of `classes` means from `start` on, the first of equal ones, for all threads."""
    i = cuda.threadIdx.x
    value, place = LOWEST, classes - 1
    for k in range(i, classes, THREADS):
        if mu[start + k] > value:
            value, place = mu[start + k], k
    values[i] = value
    places[i] = place
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if i < half:
            v, p = values[i + half], places[i + half]
            if v > values[i] or (v == values[i] and p < places[i]):
                values[i] = v
                places[i] = p
        cuda.syncthreads()
        half //= 2
    return values[0], places[0]


@kernel(floats, floats, floats, floats, floats, int32, threads=THREADS)
def _softmax(mu, var, out_mu, out_var, out_jcb, classes):
    values = cuda.shared.array(THREADS, float32)
    scratch = cuda.shared.array(THREADS, float32)
    places = cuda.shared.array(THREADS, int32)
    start = cuda.blockIdx.x * classes
    m_top, top = _first_largest(mu, start, classes, values, places)
    s_top = var[start + top]
    total = ZERO
    for k in range(cuda.threadIdx.x, classes, THREADS):
        total += math.exp(mu[start + k] - m_top)
    total = block_sum(total, scratch, THREADS)
    for k in range(cuda.threadIdx.x, classes, THREADS):
        i = start + k
        a = math.exp(mu[i] - m_top) / total
        out_mu[i] = a
        out_var[i], out_jcb[i] = softmax_moments(a, var[i], s_top)


@kernel(floats, floats, floats, floats, floats, int32, threads=THREADS)
def _remax(mu, var, out_mu, out_var, out_jcb, classes):
    scratch = cuda.shared.array(THREADS, float32)
    second = cuda.shared.array(THREADS, float32)
    start = cuda.blockIdx.x * classes
    total, total_var = ZERO, ZERO
    for k in range(cuda.threadIdx.x, classes, THREADS):
        m, s, _c = mixture_relu_moments(mu[start + k], var[start + k])
        total += m
        total_var += s
    total = block_sum(total, scratch, THREADS)
    total_var = block_sum(total_var, second, THREADS)
    norm = ZERO
    for k in range(cuda.threadIdx.x, classes, THREADS):
        m, s, _c = mixture_relu_moments(mu[start + k], var[start + k])
        norm += remax_mean(m, s, total, total_var)
    norm = block_sum(norm, scratch, THREADS)
    for k in range(cuda.threadIdx.x, classes, THREADS):
        i = start + k
        z_var = var[i]
        m, s, c = mixture_relu_moments(mu[i], z_var)
        a = remax_mean(m, s, total, total_var) / norm
        v = remax_var(a, m, s, total, total_var)
        out_mu[i], out_var[i], out_jcb[i] = a, v, remax_jcb(a, v, m, s, c, z_var, total)


@kernel(floats, floats, floats, floats, floats, int32, threads=THREADS)
def _closed_form_softmax(mu, var, out_mu, out_var, out_jcb, classes):
    values = cuda.shared.array(THREADS, float32)
    scratch = cuda.shared.array(THREADS, float32)
    places = cuda.shared.array(THREADS, int32)
    start = cuda.blockIdx.x * classes
    m_top, _top = _first_largest(mu, start, classes, values, places)
    total, total_var = ZERO, ZERO
    for k in range(cuda.threadIdx.x, classes, THREADS):
        e, v, _j = exp_moments(mu[start + k] - m_top, var[start + k])
        total += e
        total_var += v
    total = block_sum(total, scratch, THREADS)
    total_var = block_sum(total_var, values, THREADS)
    log_total, log_total_var = log_moments(total, total_var)
    for k in range(cuda.threadIdx.x, classes, THREADS):
        i = start + k
        m, s = mu[i] - m_top, var[i]  # subtracting the largest mean keeps e^z finite
        e, _v, _j = exp_moments(m, s)
        out_mu[i], out_var[i], out_jcb[i] = closed_form_softmax_moments(m, s, e, total, log_total, log_total_var)


def softmax(x: State, out: State) -> None:
    """a = softmax(m), J = a(1 - a), variance J^2 (s + s of the largest class)."""
    _launch(_softmax, x, out)


def remax(x: State, out: State) -> None:
    """A_k = M_k / sum M, M = mixture ReLU of z; means normalised to sum 1."""
    _launch(_remax, x, out)


def closed_form_softmax(x: State, out: State) -> None:
    """e^z / sum e^z with log-normal factors; not renormalised."""
    _launch(_closed_form_softmax, x, out)


def _launch(samples: Kernel, x: State, out: State) -> None:
    batch, classes = x.mu.shape
    samples.launch(batch, x.mu, x.var, *out, classes)
