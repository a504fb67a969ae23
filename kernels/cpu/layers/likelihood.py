"""Deltas at the output layer, from observations of any kind. Outputs have variances and Jacobians."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion
from pytagi_ddp.kernels.cpu.runtime.extension import load
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

ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-np.inf)
BLOCK = 16  # rows

_express = load("runtime._express")
NOTHING = np.zeros((0, 1), np.float32)
NO_CLASSES = np.zeros(0, np.int32)
observation = None  # replaced by the formula in the loop below


def _observe(thread, threads, mu, var, jcb, y, a, b, weight, delta_mu, delta_var, first):
    outputs = y.shape[1]
    step_a, step_b, step_w = min(1, a.size - 1), min(1, b.size - 1), min(1, weight.size - 1)
    base, share = portion(mu.shape[0], thread, threads)
    for each in range(share):
        row = base + each
        for o in range(outputs):
            k, i = first + o, row * outputs + o
            dm, ds = ZERO, ZERO
            if y[row, o] == y[row, o]:
                m, s = mu[row, k], var[row, k]
                g, h = observation(m, s, y[row, o], a[i * step_a], b[i * step_b])
                dm, ds = weighed(m, s, jcb[row, k], weight[i * step_w], g, h)
            delta_mu[row, k], delta_var[row, k] = dm, ds


def _fits(n) -> bool:
    sizes = (1, n.b * n.n)
    return n.p in sizes and n.q in sizes and n.w in sizes and 0 <= n.first <= n.k - n.n


def _loop_of(name: str, formula: Callable) -> Callable:
    """The loop over observations with this formula, named after it (see `activation._loop_of`)."""
    function = FunctionType(_observe.__code__, globals() | {"observation": formula}, name)
    function.__qualname__ = name
    return loop("bk bk bk bn p q w bk bk =first", _fits)(function)


_LOOPS = {name: _loop_of(name, formula) for name, formula in LIKELIHOODS.items()}


@loop("bk bk bk b w bk bk =first =classes", lambda n: n.w in (1, n.b) and 0 <= n.first <= n.k - n.classes, apart=True)
def _categorical(thread, threads, mu, var, jcb, index, weight, delta_mu, delta_var, first, classes):
    rows, width = mu.shape
    step, end = min(1, weight.size - 1), first + classes
    whole = width if classes == width else 0  # then functions of all rows are vectorised together
    base, share = portion((rows + BLOCK - 1) // BLOCK, thread, threads)
    for each in range(share):
        block = base + each
        begin, stop = block * BLOCK, min(rows, block * BLOCK + BLOCK)
        together = delta_var.reshape(-1)[begin * whole : stop * whole]
        for row in range(begin, stop):
            m, s, e, top = mu[row, first:end], var[row, first:end], delta_var[row, first:end], LOWEST
            for k in range(classes):
                top = at_least(m[k], top)
            for k in range(classes):
                e[k] = class_start(m[k], top, s[k])
            if whole == 0:
                for k in range(classes):
                    e[k] = exp(e[k])
        for i in range(together.size):
            together[i] = exp(together[i])
        for row in range(begin, stop):
            p, e, total = delta_mu[row, first:end], delta_var[row, first:end], ZERO
            for k in range(classes):
                total += e[k]
            for k in range(classes):
                p[k] = at_least(e[k] / total, LEAST)
        found, all_found = 0, (1 << (stop - begin)) - 1  # a bit for each row
        for _turn in range(TURNS):
            if found == all_found:
                break
            for row in range(begin, stop):
                p, e = delta_mu[row, first:end], delta_var[row, first:end]
                for k in range(classes):
                    e[k] = p[k]
                if whole == 0:
                    for k in range(classes):
                        e[k] = log(e[k])
            for i in range(together.size):
                together[i] = log(together[i])
            for row in range(begin, stop):
                if found >> (row - begin) & 1:
                    continue
                m, s = mu[row, first:end], var[row, first:end]
                p, e = delta_mu[row, first:end], delta_var[row, first:end]
                top, of_v, of_r, total, change = LOWEST, ZERO, ZERO, ZERO, ZERO
                for k in range(classes):
                    top = at_least(m[k], top)
                for k in range(classes):
                    e[k], v = class_residual(p[k], e[k], m[k], top, s[k])
                    of_v += p[k] * v
                    of_r += p[k] * v * e[k]
                c = of_r / of_v
                for k in range(classes):
                    d = class_step(e[k], c, p[k], s[k])
                    e[k] = p[k] * grown(d)
                    total += e[k]
                    change = at_least(d - ONE, change)
                for k in range(classes):
                    new = at_least(e[k] / total, LEAST)
                    change = at_least(class_change(new, p[k], s[k]), change)
                    p[k] = new
                if change <= SMALL:
                    found |= 1 << (row - begin)
        for row in range(begin, stop):
            m, s, j = mu[row, first:end], var[row, first:end], jcb[row, first:end]
            p, e = delta_mu[row, first:end], delta_var[row, first:end]
            label, w, a, b = index[row], weight[row * step], ZERO, ZERO
            for k in range(classes):
                of_a, of_b = class_summands(p[k], ONE if label == k else ZERO, s[k])
                a += of_a
                b += of_b
            for k in range(classes):
                dm, ds = class_deltas(p[k], ONE if label == k else ZERO, s[k], a, b)
                dm, ds = weighed(m[k], s[k], j[k], w, dm, ds)
                p[k], e[k] = (dm, ds) if label >= 0 else (ZERO, ZERO)


def observe(
    kind: str, output: State, observed: Array, a: Array, b: Array, weight: Array, first: int, delta: Delta
) -> None:
    """Deltas of the outputs from `first` on, one for each column of `observed`, by `LIKELIHOODS[kind]`.

    observed: (rows, n), NaN: missing. a, b, weight: rows x n numbers, or one for all, flat.
    """
    _LOOPS[kind](*output, observed, a, b, weight, *delta[:2], first)


def categorical(output: State, index: Array, weight: Array, first: int, classes: int, delta: Delta) -> None:
    """Deltas of the logits of `classes` classes from `first` on; index: the class of each row, below 0: missing.

    p is found by Newton's method (see `class_residual`). weight: one for each row, or one for all.
    """
    _categorical(*output, index, weight, *delta[:2], first, classes)
    if not _express.has_categorical():
        nothing = (*[NOTHING] * 3, NO_CLASSES, NOTHING[:, 0], *[NOTHING] * 2, 0, 1)
        if (found := _categorical.entry(nothing)) is not None:
            _express.offer_categorical(*found)


def express_categorical(states: Any, labels: Any, weight: Any, deltas: Any, classes: int) -> bool:
    """The common case of `Categorical.update`; returns False in any other case."""
    return _express.categorical(states, labels, weight, deltas, classes)
