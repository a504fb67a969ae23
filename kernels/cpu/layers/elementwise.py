"""Whole-array operations between layers: sums of states and deltas, copies of columns, and the change of image layout.

Arrays are C-contiguous and, except in `copy_columns` and `transpose`, of any shape.
"""

from typing import Any

from pytagi_ddp.kernels.cpu.runtime.compile import PARALLEL_MIN, loop, portion
from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.kernels.tensors import Array, Delta, State

_transpose = load("layers._transpose")
call = load("runtime._replay").call


@loop("n n n")
def _add(thread, threads, a, b, out):
    base, share = portion(out.size, thread, threads)
    for each in range(share):
        i = base + each
        out[i] = a[i] + b[i]


@loop("n n")
def _multiply(thread, threads, out, factor):
    base, share = portion(out.size, thread, threads)
    for each in range(share):
        i = base + each
        out[i] *= factor[i]


@loop("n n n")
def _apply_jacobian(thread, threads, delta_mu, delta_var, jcb):
    base, share = portion(delta_mu.size, thread, threads)
    for each in range(share):
        i = base + each
        j = jcb[i]
        delta_mu[i] *= j
        delta_var[i] *= j * j


def _columns_exist(n: Any) -> bool:
    return 0 <= n.f <= n.f + n.c <= n.n and 0 <= n.s <= n.s + n.c <= n.m


@loop("rn =f rm =s =c", _columns_exist)
def _copy_columns(thread, threads, source, first, out, start, columns):
    base, share = portion(source.shape[0], thread, threads)
    for each in range(share):
        r = base + each
        for k in range(columns):
            out[r, start + k] = source[r, first + k]


def add(a: Array, b: Array, out: Array) -> None:
    """out = a + b; out may be a."""
    _add(a.reshape(-1), b.reshape(-1), out.reshape(-1))


def add_state(out: State | Delta, added: State | Delta) -> None:
    """out += added, both moments; variances do not change if `added` has none."""
    add(out.mu, added.mu, out.mu)
    if added.var is not None:
        add(out.var, added.var, out.var)


def multiply(out: Array, factor: Array) -> None:
    """out *= factor: the chain rule of consecutive activations."""
    _multiply(out.reshape(-1), factor.reshape(-1))


def apply_jacobian(delta: Delta, jcb: Array) -> None:
    """Deltas through an activation: delta.mu *= J, delta.var *= J^2."""
    _apply_jacobian(delta.mu.reshape(-1), delta.var.reshape(-1), jcb.reshape(-1))


def copy_columns(source: Array, first: int, out: Array, start: int, columns: int) -> None:
    """out[:, start:start + columns] = source[:, first:first + columns], of matrices with as many rows each.

    Raises:
        ValueError: columns that a matrix does not have, or other numbers of rows.
    """
    _copy_columns(source, first, out, start, columns)


def transpose(source: Array, out: Array) -> None:
    """out[b, j, i] = source[b, i, j]: channels-first to channels-last images and back."""
    call(_transpose.transpose, source, out, get_threads() if source.size >= PARALLEL_MIN else 1)
