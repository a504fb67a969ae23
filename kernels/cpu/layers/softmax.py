"""Activations over the classes of a sample: arrays are (batch, classes).

`out` also receives the Jacobian, and may be the input itself.
"""

import math

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion
from pytagi_ddp.kernels.formulas.activation import exp_moments, log_moments, mixture_relu_moments
from pytagi_ddp.kernels.formulas.softmax import (
    closed_form_softmax_moments,
    remax_jcb,
    remax_mean,
    remax_var,
    softmax_moments,
)
from pytagi_ddp.kernels.tensors import State

ZERO = np.float32(0)


@loop("bk bk bk bk bk")
def _softmax(thread, threads, mu, var, out_mu, out_var, out_jcb):
    classes = mu.shape[1]
    base, share = portion(mu.shape[0], thread, threads)
    for each in range(share):
        b = base + each
        top = 0
        for k in range(classes):
            if mu[b, k] > mu[b, top]:
                top = k
        m_top, s_top = mu[b, top], var[b, top]
        total = ZERO
        for k in range(classes):
            out_mu[b, k] = math.exp(mu[b, k] - m_top)
            total += out_mu[b, k]
        for k in range(classes):
            a = out_mu[b, k] / total
            out_mu[b, k] = a
            out_var[b, k], out_jcb[b, k] = softmax_moments(a, var[b, k], s_top)


@loop("bk bk bk bk bk", fastmath={"nsz"})  # no reordering: the same bits in place, where it is not vectorised
def _remax(thread, threads, mu, var, out_mu, out_var, out_jcb):
    classes = mu.shape[1]
    base, share = portion(mu.shape[0], thread, threads)
    for each in range(share):
        b = base + each
        total, total_var = ZERO, ZERO
        for k in range(classes):
            m, s, c = mixture_relu_moments(mu[b, k], var[b, k])
            total += m
            total_var += s
        norm = ZERO
        for k in range(classes):
            m, s, c = mixture_relu_moments(mu[b, k], var[b, k])
            norm += remax_mean(m, s, total, total_var)
        for k in range(classes):
            z_var = var[b, k]
            m, s, c = mixture_relu_moments(mu[b, k], z_var)
            a = remax_mean(m, s, total, total_var) / norm
            v = remax_var(a, m, s, total, total_var)
            out_mu[b, k], out_var[b, k] = a, v
            out_jcb[b, k] = remax_jcb(a, v, m, s, c, z_var, total)


@loop("bk bk bk bk bk")
def _closed_form_softmax(thread, threads, mu, var, out_mu, out_var, out_jcb):
    classes = mu.shape[1]
    base, share = portion(mu.shape[0], thread, threads)
    for each in range(share):
        b = base + each
        top = mu[b, 0]  # subtracting the largest mean keeps e^z finite
        for k in range(classes):
            top = max(top, mu[b, k])
        total, total_var = ZERO, ZERO
        for k in range(classes):
            e, v, _ = exp_moments(mu[b, k] - top, var[b, k])
            total += e
            total_var += v
        log_total, log_total_var = log_moments(total, total_var)
        for k in range(classes):
            m, s = mu[b, k] - top, var[b, k]
            e, _, _ = exp_moments(m, s)
            out_mu[b, k], out_var[b, k], out_jcb[b, k] = closed_form_softmax_moments(
                m, s, e, total, log_total, log_total_var
            )


def softmax(x: State, out: State) -> None:
    """a = softmax(m), J = a(1 - a), variance J^2 (s + s of the largest class)."""
    _softmax(x.mu, x.var, *out)


def remax(x: State, out: State) -> None:
    """A_k = M_k / sum M, M = mixture ReLU of z; means normalised to sum 1."""
    _remax(x.mu, x.var, *out)


def closed_form_softmax(x: State, out: State) -> None:
    """e^z / sum e^z with log-normal factors; not renormalised."""
    _closed_form_softmax(x.mu, x.var, *out)
