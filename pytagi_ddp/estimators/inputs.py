"""Samples, targets and weights of users: conversion to dense arrays, checks, and errors that name the invalid place."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
import sklearn
from scipy.sparse import issparse

from pytagi_ddp.quota import memory_limit
from pytagi_ddp.warn import warn
from pytagi_ddp.weights import checked_weights, warn_of_sum

ENCODE = (
    "Name columns of categories in categorical_features, or encode them by OneHotEncoder or OrdinalEncoder in a "
    "ColumnTransformer (scikit-learn), free text by TfidfVectorizer, and dates by a FunctionTransformer that returns "
    "numbers, such as days since the first one"
)
ONE_CLASS = (
    "A sample has one class: for several labels of each, give zeros and ones (MultiLabelBinarizer) to a "
    "MultiOutputClassifier (scikit-learn), or train a network with pytagi_ddp.likelihoods.Bernoulli"
)
BYTES = 20  # per dense number: float64, its deviation from the mean, and float32 after standardisation
NARROW = 0.05  # part of the standard deviation of y in which it is suspicious that most numbers lie
FAR = 5  # ranges of four fifths of y between a number that occurs more than once and all others: it may mean "missing"
PART = 0.5  # of the memory that may be used for them


def dense(X: Any) -> Any:
    """Converts a sparse X to a dense array; returns anything else unchanged.

    Raises:
        ValueError: it would take more than half of the memory. TypeError: a LazyFrame of polars.
    """
    if hasattr(X, "collect_schema") and not hasattr(X, "shape"):
        raise TypeError(f"X is a {type(X).__name__}, which has no values yet: give X.collect()")
    if not issparse(X):
        return X
    needed, memory = BYTES * X.shape[0] * X.shape[1] if X.ndim == 2 else 0, _memory()
    if needed > PART * memory:
        raise ValueError(
            f"X is sparse, {X.shape[0]} x {X.shape[1]}, and networks need it dense: {needed / 2**30:.1f} GiB of "
            f"{memory / 2**30:.1f} GiB memory. Make fewer columns of it, by TruncatedSVD or SelectKBest "
            "(scikit-learn); predict, and partial_fit, may be given fewer rows at a time"
        )
    return X.toarray()


def _memory() -> float:
    """Bytes of memory that this process may use: those of the machine, or fewer in a container or a batch job."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), memory_limit())


def names_of(X: Any) -> list[Any]:
    """The names of the columns, or their numbers."""
    return list(getattr(X, "column_names", getattr(X, "columns", range(np.shape(X)[1]))))


class Header:
    """Number and names of a table's columns, as scikit-learn before 1.9 asks for them. Tables of polars 2 have no
    `__dataframe__`."""

    def __init__(self, X: Any):
        self.shape, self._names = X.shape, names_of(X)

    def __dataframe__(self) -> Header:
        return self

    def column_names(self) -> list[str]:
        return self._names


def header_of(X: Any) -> Any:
    """A table or array from which scikit-learn can read number and names of the columns."""
    old = tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9)
    return Header(X) if old and hasattr(X, "columns") and not hasattr(X, "iloc") else X


@contextmanager
def explained(values: Any, name: str, columns: Sequence[int] | None = None) -> Iterator[None]:
    """Adds to the errors of a check of `values` the place of the first bad value, and what to do.

    columns: the numbers of the columns, if they have no names and are some of a larger array.

    Raises:
        ValueError: objects as targets, some of which are missing: scikit-learn's checks name no row.
    """
    try:
        if name == "y" and _missing(values).any():
            raise ValueError("Input y contains NaN")
        yield
    except (TypeError, ValueError) as error:
        advice = _advice(values, name, str(error), columns)
        if not advice:
            raise
        raise type(error)(f"{str(error).strip().splitlines()[0].rstrip('.')}. {advice}") from None


def _advice(values: Any, name: str, message: str, columns: Sequence[int] | None) -> str:
    """What to do about an error with this message; empty if there is no advice."""
    if f"{name} contains" in message and ("infinity" in message or "NaN" in message):
        bad = missing = _missing(values)
        if name == "X" or not missing.any():
            try:
                numbers = np.where(missing, np.nan, values).astype(np.float64)
            except (TypeError, ValueError):
                return ""
            bad = ~np.isfinite(numbers) if name == "y" else np.isinf(numbers)
        if not bad.any():
            return ""
        place = _place(values, columns, *np.argwhere(bad)[0])
        known = "leave out its row" if name == "y" else "leave out its row, or write NaN, which is a missing value"
        return f"The first one is in {place}: {known}"
    if name == "y" and ("y should be a 1d array" in message or "Sparse data was passed for y" in message):
        return ONE_CLASS
    if "Unknown label type: unknown" in message or "not supported between instances" in message:
        return "Give classes of one type: y.astype(int) if all are whole numbers, else y.astype(str)"
    if name == "X" and "must hold real numbers" in message:
        return ENCODE
    if name == "X" and ("could not convert string to float" in message or "float() argument must be" in message):
        rows = np.asarray(values, object)
        first = next((cell for cell in np.ndindex(rows.shape) if not _is_number(rows[cell])), None)
        if not first:
            return ENCODE
        advice = "Write NaN, which is a missing value" if is_missing(rows[first]) else ENCODE
        return f"It is in {_place(values, columns, *first)}. {advice}"
    return ""


def is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _missing(values: Any) -> np.ndarray:
    """Which of some objects are missing; False for arrays of other types."""
    found = np.asarray(values)
    if found.dtype != object or not found.ndim:
        return np.zeros(found.shape, bool)
    return np.array([is_missing(value) for value in found.flat], bool).reshape(found.shape)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return value is None
    return True


def _place(values: Any, columns: Sequence[int] | None, row: int, column: int | None = None) -> str:
    if column is None:
        return f"row {row}"
    names = getattr(values, "column_names", getattr(values, "columns", columns))
    return f"row {row}, column {column if names is None else repr(list(names)[column])}"


def extremes(y: np.ndarray, std: np.ndarray) -> Iterator[tuple[int, int, str]]:
    """Extremes, compared with which most numbers of a target are nearly equal, or which may mean that one is missing:
    (row, target, beginning of a warning).

    Args:
        y: (n, targets); NaN is ignored. std: the standard deviation of each.
    """
    low, median, high = np.nanquantile(y, (0.1, 0.5, 0.9), axis=0)
    narrow = (low < high) & (high - low < NARROW * std)
    for k, value, times in codes(np.sort(np.where(narrow, np.nan, y), 0), FAR):
        yield (
            int(np.flatnonzero(y[:, k] == value)[0]),
            k,
            f"y has {value:.6g} in {times} rows, and all other numbers are far from it: such a code for missing "
            "values changes all predictions. Correct the extremes",
        )
    for k in np.flatnonzero(narrow).tolist():
        row = int(np.nanargmax(np.abs(y[:, k] - median[k])))
        yield (
            row,
            k,
            f"y has {y[row, k]:.6g}, and four of five of its numbers are between {low[k]:.6g} and {high[k]:.6g}: "
            "networks can hardly tell these apart. Correct the extremes",
        )


def codes(values: np.ndarray, far: float) -> Iterator[tuple[int, float, int]]:
    """Numbers that may mean that a number is missing, such as -9999: (column, number, how often it occurs).

    It is the lowest or the highest one, occurs more than once, and its distance from the next one is more than `far`
    times the range of four fifths of the column.

    Args:
        values: sorted columns; NaN, which is ignored, is last.
    """
    last, columns = np.maximum(np.count_nonzero(~np.isnan(values), 0) - 1, 0), np.arange(values.shape[1])

    def quantiles(q: float) -> np.ndarray:
        below = (q * last).astype(int)
        here, above = values[below, columns], values[np.minimum(below + 1, last), columns]
        return here + (q * last - below) * (above - here)

    low, high = quantiles(0.1), quantiles(0.9)
    ends = np.stack([values[0], values[last, columns]])
    times = np.stack([np.count_nonzero(values == end, 0) for end in ends])
    next_to = np.stack([values[np.minimum(times[0], last), columns], values[np.maximum(last - times[1], 0), columns]])
    between = (ends[0] < next_to) & (next_to < ends[1])  # otherwise there are fewer than three values
    found = between & (times > 1) & (low < high) & (far * (high - low) < np.abs(next_to - ends))
    for k, end in np.argwhere(found.T).tolist():
        yield k, float(ends[end, k]), int(times[end, k])


def warn_of_extremes(y: np.ndarray, std: np.ndarray, rows: np.ndarray) -> None:
    """Warns of targets with extremes; rows: the number of each sample in the caller's y."""
    for row, k, found in extremes(y, std):
        target = f", target {k}" if y.shape[1] > 1 else ""
        scale = "its logarithm" if (y[:, k] > 0).all() else "np.arcsinh(y)"
        warn(f"row {rows[row]}{target}: {found}, leave out their rows, or learn y on another scale, such as {scale}")


def sample_weights(sample_weight: Any, samples: int, learnt: bool = True) -> np.ndarray:
    """One weight for each sample, float64; 1 for None, and one number is the weight of all.

    Raises:
        ValueError: as `checked_weights`, or all weights are 0.

    Warns:
        UserWarning: weights to learn with that leave hardly any evidence, or far too much.
    """
    if sample_weight is None:
        return np.ones(samples)
    one = isinstance(sample_weight, Real) or getattr(sample_weight, "shape", None) == ()
    given = np.full(samples, sample_weight) if one else sample_weight
    weights = checked_weights(given, samples, "sample_weight")
    if not weights.any():
        raise ValueError("sample_weight: all weights are zero, and no sample is left to learn from")
    if learnt:
        warn_of_sum("sample_weight", weights.sum(), int(np.count_nonzero(weights)))
    return weights


def checked_groups(groups: Any) -> np.ndarray:
    """The number of each sample's group.

    Raises:
        ValueError: not a list of labels, or a label is missing.
    """
    labels = labels_of(groups, "groups")
    if None in labels:
        raise ValueError(f"groups has no label in row {labels.index(None)}: give every sample one")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], int)


def labels_of(column: Any, name: str) -> list[Hashable]:
    """The values of a column of any library and type; None where one is missing.

    Raises:
        ValueError: more than one column. TypeError: values that are no labels, such as lists.
    """
    masked = np.ma.isMaskedArray(column)
    if hasattr(getattr(column, "type", None), "index_type"):  # PyArrow to 22 converts no unsigned indices, as of polars
        column = column.cast(column.type.value_type)
    values = column
    if not masked:  # a list may hold text and numbers, which would all become text
        kept = object if isinstance(column, list | tuple) else None
        values = np.asarray(column.astype(object) if hasattr(column, "iloc") else column, kept)
    if values.ndim != 1:
        raise ValueError(f"{name} must hold one label for each sample, got the shape {values.shape}")
    labels = list(values) if values.dtype.kind in "mM" else values.tolist()  # which makes integers of nanoseconds
    for row, label in enumerate(labels):
        if not isinstance(label, Hashable):
            raise TypeError(f"{name} must hold labels, such as text, got a {type(label).__name__} in row {row}")
    return [None if label is np.ma.masked or is_missing(label) else label for label in labels]
