"""Series, covariates and their times, from arrays and frames, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.arrays import is_table, to_numpy
from pytagi_ddp.forecasting.times import NUMBERS, Times
from pytagi_ddp.warn import warn


class Panel(NamedTuple):
    """One or many series, or covariates, over the same time steps.

    Attributes:
        values: (steps, columns) float64, or (steps, series, columns) if each series has covariates for itself; NaN:
            missing. names: of the columns. flat: whether it was given as one column.
        times: of the steps, or their numbers; None: there are none. named: whether names were given.
    """

    values: np.ndarray
    names: list[Any]
    flat: bool
    times: Times | None
    named: bool = True

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

    def without(self, steps: int) -> Panel:
        """The time steps without the first ones."""
        times = None if self.times is None else self.times.without(steps)
        return self._replace(values=self.values[steps:], times=times)


def read(data: Any, what: str, times: Any = None) -> Panel:
    """A panel from an array, a column, a table, or a mapping from names to arrays of any length.

    Arrays of a mapping end at the same time step, and so must their indices. Values before the beginning of a shorter
    array are missing.

    Args:
        data: (steps,) or (steps, columns) numbers; NaN, None and masked ones are missing.
        what: the name of `data` in messages. times: of the steps, dates or whole numbers; None: those of the index of
            an object of pandas or xarray.

    Raises:
        TypeError: no numbers. ValueError: no steps, infinite numbers, more than two dimensions, irregular times, or an
            index without times.
    """
    if isinstance(data, Mapping):
        values, index = _from_mapping(data, what)
        names, flat, named = list(data), False, True
    elif isinstance(data, list | tuple) and any(hasattr(one, "to_frame") for one in data):
        raise TypeError(
            f"{what} is a {type(data).__name__} of columns: give a mapping from their names, {{'a': column}}"
        )
    else:
        values, index = _numbers(data, what), _index(data)
        flat = values.ndim == 1
        if values.ndim not in (1, 2):
            horizon = ". The number of time steps is the argument horizon of Forecaster" if values.ndim == 0 else ""
            raise ValueError(f"{what} must have the shape (steps,) or (steps, columns), got {values.shape}{horizon}")
        values = values[:, None] if flat else values
        given = names_of(data)
        names, named = list(range(values.shape[1])) if given is None else given, given is not None
        if flat and (name := getattr(data, "name", None)) is not None:
            names, named = [name], True
    if not values.size:
        raise ValueError(f"{what} holds no value")
    if np.isinf(values).any():
        step, column = np.argwhere(np.isinf(values))[0]
        raise ValueError(f"{what} is infinite at step {step} of {names[column]!r}: mark what is missing by NaN")
    if times is not None:
        return Panel(values, names, flat, Times.read(times, len(values)), named)
    return Panel(values, names, flat, _times_of(index, what), named)


def names_of(data: Any) -> list[Any] | None:
    """The names of the columns of a table; None: there are none, or they are the numbers that pandas gives them."""
    columns = getattr(data, "columns", None)
    if columns is None:
        return None
    numbered = hasattr(columns, "stop") and columns.name is None and list(columns) == list(range(len(columns)))
    return None if numbered else list(columns)


def read_covariates(data: Any, what: str, series: Panel) -> Panel:
    """Covariates of all series, or of each for itself: a mapping from their names, or a table with their columns.

    Raises:
        TypeError, ValueError: as `read`; or series that have different columns or numbers of them.

    Warns:
        UserWarning: columns with the names of some series only, which are for all series.
    """
    names = series.names
    if not series.named or not isinstance(data, Mapping) or set(data) != set(names):
        found = read(data, what)
        if not series.named or not found.named or found.flat:
            return found
        if set(found.names) != set(names):
            if len(found.names) > 1 and set(found.names) < set(names):
                missing = next(name for name in names if name not in found.names)
                warn(
                    f"{what} has the series {found.names}, and not {missing!r}: so these are covariates of all series. "
                    "If each series has its own, add a column of NaN where nothing is known"
                )
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
        begin, name = longest.steps - part.steps, f"{what}[{names[k]!r}]"
        if aligned(part, name, longest.times, begin).steps != part.steps:
            raise ValueError(
                f"{name} and the longest ones of {what} must end at the same time step: their times differ"
            )
        values[begin:, k] = part.values
    return longest._replace(values=values)


def times_of(data: Any, what: str) -> Times | None:
    """The times of the index of an object of pandas or xarray; None: it has none.

    Raises:
        ValueError: an index without times, or with irregular ones.
    """
    return _times_of(_index(data), what)


def _numbers(data: Any, what: str) -> np.ndarray:
    """The numbers of an array, a column or a table; a table with a column of dates is told where these belong."""
    try:
        return to_numpy(data, what).astype(np.float64)
    except TypeError as error:
        if not is_table(data) or len(getattr(data, "shape", ())) != 2:
            raise
        raise TypeError(
            f"{error}. Dates are the index, as {what}.set_index('ds')['y'], or are passed as times=; many series are "
            f"the columns of {what}.pivot(index='ds', columns='unique_id', values='y'); categories are columns of "
            f"numbers, as pd.get_dummies({what}, dtype=float)"
        ) from None


def _from_mapping(data: Mapping, what: str) -> tuple[np.ndarray, Any]:
    """(steps, series) values, and the index of the longest series, as `_index`."""
    columns = {name: to_numpy(column, f"{what}[{name!r}]") for name, column in data.items()}
    for name, column in columns.items():
        if column.ndim != 1:
            raise ValueError(f"{what}[{name!r}] must have one dimension, got the shape {column.shape}")
    if not columns:
        raise ValueError(f"{what} has no series")
    longest, indices = max(map(len, columns.values())), {name: _index(data[name]) for name in columns}
    dated = [name for name, index in indices.items() if index is not None]
    first = max(dated, key=lambda name: len(columns[name]), default=None)
    index = indices.get(first)
    values = np.full((longest, len(columns)), np.nan)
    for k, (name, column) in enumerate(columns.items()):
        own = indices[name]
        if index is not None and not (
            index.dtype.kind in "iu" if own is None else own.equals(index[len(index) - len(own) :])
        ):
            raise ValueError(
                f"{what}[{name!r}] and {what}[{first!r}] must end at the same time step, but their indices differ: "
                "insert missing steps with NaN (pd.concat(..., axis=1)), or give arrays that end together (.to_numpy())"
            )
        values[longest - len(column) :, k] = column
    return values, index if index is not None and len(index) == longest else None


def _index(data: Any) -> Any:
    """The index of a pandas object, or of the first dimension of one of xarray; None: there is none."""
    index = getattr(data, "index", None)  # lists have a method of this name
    if hasattr(data, "indexes"):  # of xarray
        index = data.indexes.get(next(iter(data.dims), None))
    return index if hasattr(index, "dtype") else None


def _times_of(index: Any, what: str) -> Times | None:
    """The times that an index of pandas holds, as dates, text or whole numbers; None of None."""
    if index is None:
        return None
    if index.nlevels > 1:
        raise ValueError(
            f"the index of {what} has the levels {list(index.names)}, and one row is needed for each time step: make "
            f"many series the columns of a table ({what}.unstack(level)), or pass times="
        )
    try:
        return Times.read(index, len(index), f"the index of {what}")
    except TypeError as error:
        raise ValueError(
            f"the index of {what}, {type(index).__name__} from {index.tolist()[0]!r}, holds no dates ({error}): "
            f"convert it by pd.to_datetime, pass times=, or number the steps by {what}.reset_index(drop=True)"
        ) from None


def aligned(covariate: Panel, what: str, times: Times | None, first: int = 0) -> Panel:
    """The covariates of the time steps of a series from step `first` on, and of those that follow.

    Earlier ones are left out if both have dates, or both have numbers. Else the covariates begin at this step.

    Raises:
        ValueError: they have other times than the series, or only one of them has a time zone.
    """
    own = covariate.times
    if own is None or times is None or not own.comparable(times):
        return covariate
    check_zones(own, what, times, "y")
    begin = times.extended(1).values[first]
    earlier = int((own.values < begin).sum())
    found, advice = covariate.without(earlier), "; give an array (.to_numpy()) if its numbers mean nothing"
    advice = advice if own.unit == NUMBERS else ""
    if not found.steps:
        raise ValueError(f"{what} must begin at {begin}, got {own.values[0]} to {own.values[-1]}{advice}")
    end = first + found.steps
    needed = times.extended(max(0, end - len(times.values))).values[first:end]
    different = np.flatnonzero(own.values[earlier:] != needed)
    if len(different):
        k = different[0]
        at = k + earlier
        place = f"have the times of y, and be at {needed[k]} at its step {at}" if at else f"begin at {begin}"
        raise ValueError(f"{what} must {place}, got {own.values[at]}{advice}")
    return found


def check_zones(found: Times, what: str, times: Times, of: str) -> None:
    """Checks that both have a time zone, or none.

    Raises:
        ValueError: only one has.
    """
    if (found.zone is None) != (times.zone is None):
        raise ValueError(
            f"the times of {what} have {found.zone_in_words()}, and those of {of} have {times.zone_in_words()}: use "
            "tz_localize"
        )


def continued(panel: Panel, learnt: Panel) -> Panel:
    """A past of the series that were learnt; steps without numbers have those of these series, and none if these have
    none.

    Raises:
        ValueError: another time zone; numbers with another distance, or if the series that were learnt have none.
    """
    times, known = panel.times, learnt.times
    if known is None and times is not None and times.unit == NUMBERS:
        if times.values[0] != 0 or times.step != 1:
            raise ValueError(
                f"the index of y begins at {times.values[0]}, and that of fit had none: give an array (.to_numpy())"
            )
        return panel._replace(times=None)
    if known is None or (times is not None and not times.comparable(known)):
        return panel
    if times is None:
        more = max(0, panel.steps - learnt.steps)
        return panel._replace(times=known.extended(more).first(panel.steps)) if known.unit == NUMBERS else panel
    check_zones(times, "y", known, "fit")
    if str(times.zone) != str(known.zone):
        raise ValueError(
            f"the times of y have {times.zone_in_words()}, and those of fit have {known.zone_in_words()}: use "
            "tz_convert"
        )
    if known.unit == NUMBERS and times.step != known.step and panel.steps > 1:
        raise ValueError(f"the numbers of y grow by {times.step}, and those of fit by {known.step}")
    return panel
