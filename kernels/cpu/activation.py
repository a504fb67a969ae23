"""Activations over flat arrays: (mu, var) -> (out_mu, out_var, out_jcb). In place (out is in) is allowed."""

from numba import prange

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


@loop
def relu(mu, var, out_mu, out_var, out_jcb):
    for i in prange(mu.size):
        out_mu[i], out_var[i], out_jcb[i] = relu_moments(mu[i], var[i])


@loop
def leaky_relu(mu, var, out_mu, out_var, out_jcb):
    for i in prange(mu.size):
        out_mu[i], out_var[i], out_jcb[i] = leaky_relu_moments(mu[i], var[i])


@loop
def sigmoid(mu, var, out_mu, out_var, out_jcb):
    for i in prange(mu.size):
        out_mu[i], out_var[i], out_jcb[i] = sigmoid_moments(mu[i], var[i])


@loop
def tanh(mu, var, out_mu, out_var, out_jcb):
    for i in prange(mu.size):
        out_mu[i], out_var[i], out_jcb[i] = tanh_moments(mu[i], var[i])


@loop
def softplus(mu, var, out_mu, out_var, out_jcb):
    for i in prange(mu.size):
        out_mu[i], out_var[i], out_jcb[i] = softplus_moments(mu[i], var[i])


@loop
def mixture_relu(mu, var, out_mu, out_var, out_jcb):
    for i in prange(mu.size):
        out_mu[i], out_var[i], out_jcb[i] = mixture_relu_moments(mu[i], var[i])


@loop
def mixture_sigmoid(mu, var, out_mu, out_var, out_jcb):
    for i in prange(mu.size):
        out_mu[i], out_var[i], out_jcb[i] = mixture_sigmoid_moments(mu[i], var[i])


@loop
def mixture_tanh(mu, var, out_mu, out_var, out_jcb):
    for i in prange(mu.size):
        out_mu[i], out_var[i], out_jcb[i] = mixture_tanh_moments(mu[i], var[i])


@loop
def even_exp(mu, var, out_mu, out_var, out_jcb):
    """Even positions are passed on; odd positions become log-normal (a predicted observation variance)."""
    for i in prange(mu.size):
        if i % 2:
            out_mu[i], out_var[i], out_jcb[i] = exp_moments(mu[i], var[i])
        else:
            out_mu[i], out_var[i], out_jcb[i] = mu[i], var[i], 1
