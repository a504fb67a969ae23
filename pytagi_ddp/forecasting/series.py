"""Series, covariates and their times, from arrays and frames, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.forecasting.times import Times

WITH_TIMES = ("DatetimeIndex", "PeriodIndex")


class Panel(NamedTuple):
    """One or many series, or covariates, over the same time steps.

    Attributes:
        values: (steps, columns) float64; NaN: missing. names: of the columns. flat: whether it was given as one column.
        times: of the steps; None: there are none.
    """

    values: np.ndarray
    names: list[Any]
    flat: bool
    times: Times | None

    @property
    def steps(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def first(self, steps: int) -> Panel:
        """The first ones of the time steps."""
        times = None if self.times is None else self.times.first(steps)
        return self._replace(values=self.values[:steps], times=times)


def read(data: Any, what: str, times: Any = None) -> Panel:
    """A panel from an array, a column, a table, or a mapping from names to arrays of any length.

    Arrays of a mapping end at the same time step. Values before the beginning of a shorter array are missing.

    Args:
        data: (steps,) or (steps, columns) numbers; NaN, None and masked ones are missing.
        what: the name of `data` in messages. times: of the steps; None: those of the index of a pandas object.

    Raises:
        TypeError: no numbers. ValueError: no steps, infinite numbers, more than two dimensions, or irregular times.
    """
    if isinstance(data, Mapping):
        values, index = _from_mapping(data, what)
        names, flat = list(data), False
    else:
        values, index = to_numpy(data, what).astype(np.float64), _time_index(data)
        flat = values.ndim == 1
        if values.ndim not in (1, 2):
            raise ValueError(f"{what} must have the shape (steps,) or (steps, columns), got {values.shape}")
        values = values[:, None] if flat else values
        names = list(getattr(data, "columns", range(values.shape[1])))
        if flat and (name := getattr(data, "name", None)) is not None:
            names = [name]
    if not values.size:
        raise ValueError(f"{what} holds no value")
    if np.isinf(values).any():
        step, column = np.argwhere(np.isinf(values))[0]
        raise ValueError(f"{what} is infinite at step {step} of {names[column]!r}: mark what is missing by NaN")
    times = index if times is None else times
    return Panel(values, names, flat, None if times is None else Times.read(times, len(values)))


def _from_mapping(data: Mapping, what: str) -> tuple[np.ndarray, Any]:
    """(steps, series) values, and the time index of the longest series, if they have one."""
    columns = {name: to_numpy(column, f"{what}[{name!r}]") for name, column in data.items()}
    for name, column in columns.items():
        if column.ndim != 1:
            raise ValueError(f"{what}[{name!r}] must have one dimension, got the shape {column.shape}")
    if not columns:
        raise ValueError(f"{what} has no series")
    longest = max(columns, key=lambda name: len(columns[name]))
    index = _time_index(data[longest])
    values = np.full((len(columns[longest]), len(columns)), np.nan)
    for k, (name, column) in enumerate(columns.items()):
        own, start = _time_index(data[name]), len(values) - len(column)
        if (own is None) != (index is None) or (index is not None and not own.equals(index[start:])):
            raise ValueError(
                f"{what}[{name!r}] and {what}[{longest!r}] must end at the same time step: their indices differ"
            )
        values[start:, k] = column
    return values, index


def _time_index(data: Any) -> Any:
    """The index of a pandas object if it has times; else None."""
    index = getattr(data, "index", None)
    return index if type(index).__name__ in WITH_TIMES else None


def check_times(covariate: Panel, what: str, times: Times | None, first: int = 0) -> None:
    """Checks that covariates with times of their own begin at step `first` of these times.

    Raises:
        ValueError: they do not.
    """
    if covariate.times is None or times is None:
        return
    start, needed = covariate.times.values[0], times.values[first]
    if start != needed:
        raise ValueError(f"{what} must begin at {needed}, got {start}")
