"""Metrics combined over all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytagi_ddp.distributed.backends import Backend, get_distributed_backend

OPS = ("sum", "mean", "max", "min")


def all_reduce_metrics(
    backend: Backend, metrics: Mapping[str, float | tuple[float, float]], op: str = "mean"
) -> dict[str, float]:
    """Combines metrics of all ranks, in float64 and one collective. Every rank gets the same result.

    A pair (sum, number of samples) becomes the mean over all samples, sum s_r / sum n_r, with a single rounding;
    without samples it is NaN. Unlike a mean of means, it is correct for different numbers of samples.

    Args:
        backend: name given to `initialize`, or a communicator.
        metrics: the same names on every rank: numbers, or pairs (sum, count).
        op: how plain numbers are combined: "sum", "mean" (over ranks), "max" or "min"; NaN on any rank gives NaN.

    Raises:
        ValueError: an unknown op; other names on some rank, or a pair on one rank and a number on another.
        TypeError: a value that is neither a number nor a pair, on any rank.
    """
    if op not in OPS:
        raise ValueError(f"all_reduce_metrics: unknown op {op!r}; known are {', '.join(map(repr, OPS))}")
    own = {name: _plain(metrics[name]) for name in metrics}
    everyone = get_distributed_backend(backend).all_gather_object(own, "all_reduce_metrics")
    for rank, theirs in enumerate(everyone):
        for name, value in theirs.items():
            if isinstance(value, str):
                raise TypeError(f"metric {name!r} on rank {rank} is {value}, not a number or a pair (sum, count)")
    kinds = {float: "a number", tuple: "a pair", type(None): "nothing"}
    for rank, theirs in enumerate(everyone):
        for name in everyone[0] | theirs:
            first, other = (kinds[type(values.get(name))] for values in (everyone[0], theirs))
            if first != other:
                raise ValueError(f"metric {name!r} is {first} on rank 0 and {other} on rank {rank}")
    return {name: _combine([values[name] for values in everyone], op) for name in metrics}


def _plain(value: Any) -> float | tuple[float, float] | str:
    """The value as a number or a pair; a description of anything else, for the error on all ranks."""
    pair = isinstance(value, tuple | list) and len(value) == 2
    try:
        if isinstance(value, str | bytes):  # `float` would read it
            raise TypeError(value)
        return (float(value[0]), float(value[1])) if pair else float(value)
    except OverflowError:
        return "beyond float64"
    except (TypeError, ValueError):
        return type(value).__name__


def _combine(values: list, op: str) -> float:
    if isinstance(values[0], tuple):
        total, count = (_sum(column) for column in zip(*values, strict=True))
        return total / count if count else math.nan
    if op in ("max", "min"):
        return math.nan if any(map(math.isnan, values)) else {"max": max, "min": min}[op](values)
    return _sum(values) / (len(values) if op == "mean" else 1)


def _sum(values: Sequence[float]) -> float:
    """The sum, rounded once; an ordinary sum for infinities, and if it is too large for a float64."""
    try:
        return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
    except OverflowError:
        return sum(values)
