"""Elementwise activations. `out` also gets the Jacobian; it may share its memory with the input."""

from collections.abc import Callable

from pytagi_ddp.kernels.cuda.runtime.compile import Kernel, blocks, float32, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.formulas.activation import (
    ELEMENTWISE,
    exp_moments,
    parameters_of,
)
from pytagi_ddp.kernels.tensors import State

THREADS = 256


def _kernel_of(name: str, moments: Callable) -> Kernel:
    """The kernel over units with the formula `moments`."""
    parameters = len(parameters_of(moments))
    declare = kernel(*[floats] * 5, int32, *[float32] * parameters, threads=THREADS, name=f"activation_{name}")

    def units(mu, var, out_mu, out_var, out_jcb, n):
        i = thread_index()
        if i < n:
            out_mu[i], out_var[i], out_jcb[i] = moments(mu[i], var[i])

    def units_with_parameter(mu, var, out_mu, out_var, out_jcb, n, parameter):
        i = thread_index()
        if i < n:
            out_mu[i], out_var[i], out_jcb[i] = moments(mu[i], var[i], parameter)

    def units_with_two(mu, var, out_mu, out_var, out_jcb, n, first, second):
        i = thread_index()
        if i < n:
            out_mu[i], out_var[i], out_jcb[i] = moments(mu[i], var[i], first, second)

    return declare((units, units_with_parameter, units_with_two)[parameters])


_KERNELS = {name: _kernel_of(name, moments) for name, moments in ELEMENTWISE.items()}


@kernel(floats, floats, floats, floats, floats, int32, threads=THREADS)
def _even_exp(mu, var, out_mu, out_var, out_jcb, n):
    i = thread_index()
    if i < n:
        if i % 2:
            out_mu[i], out_var[i], out_jcb[i] = exp_moments(mu[i], var[i])
        else:
            out_mu[i], out_var[i], out_jcb[i] = mu[i], var[i], 1


def elementwise(name: str, x: State, out: State, *parameters: float) -> None:
    """The activation `name` of `formulas.activation.ELEMENTWISE`, with the parameters that follow (m, s)."""
    n = x.mu.size
    _KERNELS[name].launch(blocks(n, THREADS), x.mu, x.var, *out, n, *parameters)


def even_exp(x: State, out: State) -> None:
    """Even positions do not change; odd positions become log-normal (a predicted observation variance)."""
    n = x.mu.size
    _even_exp.launch(blocks(n, THREADS), x.mu, x.var, *out, n)
