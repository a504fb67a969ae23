"""Series, covariates and their times, from arrays and frames, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.forecasting.times import Times


class Panel(NamedTuple):
    """One or many series, or covariates, over the same time steps.

    Attributes:
        values: (steps, columns) float64; NaN: missing. names: of the columns. flat: whether it was given as one column.
        times: of the steps; None where none were given.
    """

    values: np.ndarray
    names: list[Any]
    flat: bool
    times: Times | None

    @property
    def steps(self) -> int:
        return len(self.values)


def read(data: Any, what: str, times: Any = None) -> Panel:
    """A panel from an array, a column, a table, or a mapping from names to arrays of any length.

    Arrays of a mapping end at the same time step; shorter ones are missing before they begin.

    Args:
        data: (steps,) or (steps, columns) numbers; NaN, None and masked ones are missing.
        what: the name of `data` in messages. times: of the steps; None: those of the index of a pandas object.

    Raises:
        TypeError: no numbers. ValueError: no steps, infinite numbers, more than two dimensions, or irregular times.
    """
    if isinstance(data, Mapping):
        names, columns = list(data), [to_numpy(column, f"{what}[{name!r}]") for name, column in data.items()]
        if not columns:
            raise ValueError(f"{what} has no series")
        values = np.full((max(len(np.atleast_1d(column)) for column in columns), len(columns)), np.nan)
        for k, column in enumerate(columns):
            if column.ndim != 1:
                raise ValueError(f"{what}[{names[k]!r}] must have one dimension, got {column.ndim}")
            values[len(values) - len(column) :, k] = column
        flat = False
    else:
        values = to_numpy(data, what).astype(np.float64)
        flat = values.ndim == 1
        if values.ndim not in (1, 2):
            raise ValueError(f"{what} must be one series (steps,) or several (steps, series), got {values.ndim} axes")
        values = values.reshape(len(values), -1)
        names = list(getattr(data, "columns", range(values.shape[1])))
        if flat and (name := getattr(data, "name", None)) is not None:
            names = [name]
    if not values.size:
        raise ValueError(f"{what} holds no value")
    if np.isinf(values).any():
        step, column = np.argwhere(np.isinf(values))[0]
        raise ValueError(f"{what} is infinite at step {step} of {names[column]!r}: mark what is missing by NaN")
    if times is None and type(getattr(data, "index", None)).__name__ in ("DatetimeIndex", "PeriodIndex"):
        times = data.index
    return Panel(values, names, flat, None if times is None else Times.read(times, len(values)))
