"""Activations over flat arrays: (mu, var) -> (out_mu, out_var, out_jcb). In place (out is in) is allowed."""

from collections.abc import Callable

from pytagi_ddp.kernels.cuda.compile import blocks, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.cuda.geometry import block_size
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

THREADS = block_size(256)


def _elementwise(moments: Callable) -> Callable:
    """The activation whose formula for one unit is `moments`."""

    @kernel(floats, floats, floats, floats, floats, int32, threads=THREADS, name=f"activation_{moments.__name__}")
    def units(mu, var, out_mu, out_var, out_jcb, n):
        i = thread_index()
        if i < n:
            out_mu[i], out_var[i], out_jcb[i] = moments(mu[i], var[i])

    def activation(mu, var, out_mu, out_var, out_jcb):
        units.launch(blocks(mu.size, THREADS), mu, var, out_mu, out_var, out_jcb, mu.size)

    activation.__doc__ = moments.__doc__
    return activation


relu = _elementwise(relu_moments)
leaky_relu = _elementwise(leaky_relu_moments)
sigmoid = _elementwise(sigmoid_moments)
tanh = _elementwise(tanh_moments)
softplus = _elementwise(softplus_moments)
mixture_relu = _elementwise(mixture_relu_moments)
mixture_sigmoid = _elementwise(mixture_sigmoid_moments)
mixture_tanh = _elementwise(mixture_tanh_moments)


@kernel(floats, floats, floats, floats, floats, int32, threads=THREADS)
def _even_exp(mu, var, out_mu, out_var, out_jcb, n):
    i = thread_index()
    if i < n:
        if i % 2:
            out_mu[i], out_var[i], out_jcb[i] = exp_moments(mu[i], var[i])
        else:
            out_mu[i], out_var[i], out_jcb[i] = mu[i], var[i], 1


def even_exp(mu, var, out_mu, out_var, out_jcb):
    """Even positions are passed on; odd positions become log-normal (a predicted observation variance)."""
    _even_exp.launch(blocks(mu.size, THREADS), mu, var, out_mu, out_var, out_jcb, mu.size)
