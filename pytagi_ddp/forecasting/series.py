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
        values: (steps, columns) float64, or (steps, series, columns) if each series has covariates for itself; NaN:
            missing. names: of the columns. flat: whether it was given as one column.
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
        return self.values.shape[-1]

    def first(self, steps: int) -> Panel:
        """The first ones of the time steps."""
        times = None if self.times is None else self.times.first(steps)
        return self._replace(values=self.values[:steps], times=times)


def read(data: Any, what: str, times: Any = None) -> Panel:
    """A panel from an array, a column, a table, or a mapping from names to arrays of any length.

    Arrays of a mapping end at the same time step. Values before the beginning of a shorter array are missing.

    Args:
        data: (steps,) or (steps, columns) numbers; NaN, None and masked ones are missing.
        what: the name of `data` in messages. times: of the steps; None: those of the index of an object of pandas or
            xarray, if it does not hold whole numbers.

    Raises:
        TypeError: no numbers. ValueError: no steps, infinite numbers, more than two dimensions, irregular times, or an
            index without times.
    """
    if isinstance(data, Mapping):
        values, index = _from_mapping(data, what)
        names, flat = list(data), False
    else:
        values, index = to_numpy(data, what).astype(np.float64), _index(data, what)
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
    if times is not None:
        return Panel(values, names, flat, Times.read(times, len(values)))
    return Panel(values, names, flat, _times_of(index, what))


def read_covariates(data: Any, what: str, series: Panel) -> Panel:
    """Covariates of all series, or of each for itself: a mapping from their names, or a table with their columns.

    Raises:
        TypeError, ValueError: as `read`; or series that have different columns or numbers of them.
    """
    names = series.names
    if series.width == 1 or names == list(range(series.width)):
        return read(data, what)
    if not isinstance(data, Mapping) or set(data) != set(names):
        found = read(data, what)
        if found.flat or sorted(map(str, found.names)) != sorted(map(str, names)):
            return found
        order = [found.names.index(name) for name in names]
        return found._replace(values=found.values[:, order, None], names=[what])
    parts = [read(data[name], f"{what}[{name!r}]") for name in names]
    parts = [part._replace(names=[what]) if part.flat else part for part in parts]
    longest = max(parts, key=lambda part: part.steps)
    values = np.full((longest.steps, len(parts), longest.width), np.nan)
    for k, part in enumerate(parts):
        if part.names != longest.names:
            raise ValueError(f"{what} must have the same columns for each series, got {longest.names} and {part.names}")
        begin = longest.steps - part.steps
        check_times(part, f"{what}[{names[k]!r}]", longest.times, begin)
        values[begin:, k] = part.values
    return longest._replace(values=values)


def times_of(data: Any, what: str) -> Times | None:
    """The times of the index of an object of pandas or xarray; None: it has none.

    Raises:
        ValueError: an index without times, or with irregular ones.
    """
    return _times_of(_index(data, what), what)


def _from_mapping(data: Mapping, what: str) -> tuple[np.ndarray, Any]:
    """(steps, series) values, and the index of the longest series, as `_index`."""
    columns = {name: to_numpy(column, f"{what}[{name!r}]") for name, column in data.items()}
    for name, column in columns.items():
        if column.ndim != 1:
            raise ValueError(f"{what}[{name!r}] must have one dimension, got the shape {column.shape}")
    if not columns:
        raise ValueError(f"{what} has no series")
    longest = max(columns, key=lambda name: len(columns[name]))
    index = _index(data[longest], f"{what}[{longest!r}]")
    values = np.full((len(columns[longest]), len(columns)), np.nan)
    for k, (name, column) in enumerate(columns.items()):
        own, start = _index(data[name], f"{what}[{name!r}]"), len(values) - len(column)
        if (own is None) != (index is None) or (index is not None and not own.equals(index[start:])):
            raise ValueError(
                f"{what}[{name!r}] and {what}[{longest!r}] must end at the same time step: their indices differ"
            )
        values[start:, k] = column
    return values, index


def _index(data: Any, what: str) -> Any:
    """The index of a pandas object, or of the first dimension of one of xarray.

    It is None if there is none, or it holds whole numbers.

    Raises:
        ValueError: whole numbers that do not grow by the same number from step to step.
    """
    index = getattr(data, "index", None)  # lists have a method of this name
    if hasattr(data, "indexes"):  # of xarray
        index = data.indexes.get(next(iter(data.dims), None))
    dtype = getattr(index, "dtype", None)
    if dtype is None:
        return None
    if dtype.kind not in "iu":
        return index
    numbers = np.asarray(index).astype(np.int64)
    between = np.diff(numbers)
    if len(between) and (between[0] <= 0 or np.ptp(between) > 0):
        k = int(np.flatnonzero(between != max(between[0], 1))[0])
        raise ValueError(
            f"the index of {what} holds {numbers[k]} before {numbers[k + 1]}, and {what} must have a row for each time "
            f"step: sort it, insert missing ones with NaN ({what}.reindex), or, if no step is missing, number them by "
            f"{what}.reset_index(drop=True)"
        )
    return None


def _times_of(index: Any, what: str) -> Times | None:
    """The times that an index of pandas holds, as dates or as text; None of None."""
    if index is None:
        return None
    if index.nlevels > 1:
        raise ValueError(
            f"the index of {what} has the levels {list(index.names)}, and one row is needed for each time step: make "
            f"many series the columns of a table ({what}.unstack(level)), or pass times="
        )
    try:
        return Times.read(index, len(index))
    except TypeError as error:
        raise ValueError(
            f"the index of {what}, {type(index).__name__} from {index[0]!r}, holds no dates ({error}): convert it by "
            f"pd.to_datetime, pass times=, or number the steps by {what}.reset_index(drop=True)"
        ) from None


def check_times(covariate: Panel, what: str, times: Times | None, first: int = 0) -> None:
    """Checks that covariates with times of their own have these times from step `first` on, and those that follow.

    Raises:
        ValueError: they have not.
    """
    if covariate.times is None or times is None:
        return
    found, end = covariate.times.values, first + covariate.steps
    needed = times.extended(max(0, end - len(times.values))).values[first:end]
    different = np.flatnonzero(found != needed)
    if len(different):
        k = different[0]
        raise ValueError(
            f"{what} must {'have the times of y, and be' if k else 'begin'} at {needed[k]}"
            f"{f' at its step {k}' if k else ''}, got {found[k]}"
        )
