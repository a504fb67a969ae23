"""Activations over flat arrays: (mu, var, out_mu, out_var, out_jcb); out may be the input itself, or lie apart.

The loops themselves work in place. A loop from one pair of arrays to another is compiled with a check whether they
overlap, and where they do, as nearly always in a network, it runs without vector instructions, ten times slower.
"""

from collections.abc import Callable
from functools import update_wrapper

import numpy as np
from numba import prange

from pytagi_ddp.kernels.cpu.array import copy
from pytagi_ddp.kernels.cpu.compile import loop
from pytagi_ddp.kernels.formulas.activation import (
    exp_moments,
    leaky_relu_moments,
    mixture_relu_moments,
    mixture_sigmoid_moments,
    mixture_tanh_moments,
    relu_moments,
    sigmoid_moments,
    softplus_moments,
    tanh_moments,
)


def activation(function: Callable) -> Callable:
    """Compiles a loop in place, (mu, var, jcb), and makes it a kernel (mu, var, out_mu, out_var, out_jcb)."""
    in_place = loop(function)

    def run(mu, var, out_mu, out_var, out_jcb):
        if not np.may_share_memory(mu, out_mu):
            copy(mu, out_mu)
            copy(var, out_var)
        in_place(out_mu, out_var, out_jcb)

    return update_wrapper(run, function)


@activation
def relu(mu, var, jcb):
    for i in prange(mu.size):
        mu[i], var[i], jcb[i] = relu_moments(mu[i], var[i])


@activation
def leaky_relu(mu, var, jcb):
    for i in prange(mu.size):
        mu[i], var[i], jcb[i] = leaky_relu_moments(mu[i], var[i])


@activation
def sigmoid(mu, var, jcb):
    for i in prange(mu.size):
        mu[i], var[i], jcb[i] = sigmoid_moments(mu[i], var[i])


@activation
def tanh(mu, var, jcb):
    for i in prange(mu.size):
        mu[i], var[i], jcb[i] = tanh_moments(mu[i], var[i])


@activation
def softplus(mu, var, jcb):
    for i in prange(mu.size):
        mu[i], var[i], jcb[i] = softplus_moments(mu[i], var[i])


@activation
def mixture_relu(mu, var, jcb):
    for i in prange(mu.size):
        mu[i], var[i], jcb[i] = mixture_relu_moments(mu[i], var[i])


@activation
def mixture_sigmoid(mu, var, jcb):
    for i in prange(mu.size):
        mu[i], var[i], jcb[i] = mixture_sigmoid_moments(mu[i], var[i])


@activation
def mixture_tanh(mu, var, jcb):
    for i in prange(mu.size):
        mu[i], var[i], jcb[i] = mixture_tanh_moments(mu[i], var[i])


@activation
def even_exp(mu, var, jcb):
    """Even positions are passed on; odd positions become log-normal (a predicted observation variance)."""
    for i in prange(mu.size):
        if i % 2:
            mu[i], var[i], jcb[i] = exp_moments(mu[i], var[i])
        else:
            jcb[i] = 1
