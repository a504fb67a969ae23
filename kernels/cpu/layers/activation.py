"""Elementwise activations. `out` also gets the Jacobian; it may share its memory with the input.

The loops work in place. A loop between different arrays would be compiled with a check for overlaps, and would run ten
times slower, without vector instructions, if they overlap, as they nearly always do in a network.
"""

from collections.abc import Callable
from types import FunctionType

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.array import copy
from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion
from pytagi_ddp.kernels.formulas.activation import ELEMENTWISE, exp_moments, parameters_of
from pytagi_ddp.kernels.tensors import State

moments = None  # replaced by the formula in the loops below, one for each number of parameters


def _units(thread, threads, mu, var, jcb):
    base, share = portion(mu.size, thread, threads)
    for each in range(share):
        i = base + each
        mu[i], var[i], jcb[i] = moments(mu[i], var[i])


def _units_with_parameter(thread, threads, mu, var, jcb, parameter):
    base, share = portion(mu.size, thread, threads)
    for each in range(share):
        i = base + each
        mu[i], var[i], jcb[i] = moments(mu[i], var[i], parameter)


def _units_with_two(thread, threads, mu, var, jcb, first, second):
    base, share = portion(mu.size, thread, threads)
    for each in range(share):
        i = base + each
        mu[i], var[i], jcb[i] = moments(mu[i], var[i], first, second)


def _loop_of(name: str, formula: Callable) -> Callable:
    """The loop over units, in place, with this formula.

    The formula is a global of the loop, and the loop has the name of the activation, because Numba caches by name, and
    does not cache closures over functions.
    """
    parameters = len(parameters_of(formula))
    pattern = (_units, _units_with_parameter, _units_with_two)[parameters]
    function = FunctionType(pattern.__code__, globals() | {"moments": formula}, name)
    function.__qualname__ = name
    return loop("n n n" + " _" * parameters)(function)


_LOOPS = {name: _loop_of(name, formula) for name, formula in ELEMENTWISE.items()}


@loop("n n n")
def _even_exp(thread, threads, mu, var, jcb):
    base, share = portion(mu.size, thread, threads)
    for each in range(share):
        i = base + each
        if i % 2:
            mu[i], var[i], jcb[i] = exp_moments(mu[i], var[i])
        else:
            jcb[i] = 1


def elementwise(name: str, x: State, out: State, *parameters: float) -> None:
    """The activation `name` of `formulas.activation.ELEMENTWISE`, with the parameters that follow (m, s)."""
    _in_place(_LOOPS[name], x, out, *map(np.float32, parameters))


def even_exp(x: State, out: State) -> None:
    """Even positions do not change; odd positions become log-normal (a predicted observation variance)."""
    _in_place(_even_exp, x, out)


def _in_place(in_place: Callable, x: State, out: State, *parameters: np.float32) -> None:
    if not np.may_share_memory(x.mu, out.mu):
        copy(x.mu, out.mu)
        copy(x.var, out.var)
    in_place(out.mu.reshape(-1), out.var.reshape(-1), out.jcb.reshape(-1), *parameters)
