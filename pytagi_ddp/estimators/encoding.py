"""The inputs of networks for a table: categories as columns of zeros and ones, and bins of piecewise-linear
encodings."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from itertools import compress
from numbers import Real
from typing import Any

import numpy as np

from pytagi_ddp.estimators.inputs import labels_of, names_of, sample_weights
from pytagi_ddp.nn import PiecewiseLinearEncoding
from pytagi_ddp.warn import warn

MOST_CATEGORIES = 254  # of a column; rarer ones cannot be told apart
MOST_RARE = 0.1  # share of the samples with such categories that is not suspicious
NUMERALS = 10  # numbers or dates in a column of text that are suspicious
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")  # with commas between groups of three digits
YEAR_FIRST = re.compile(r"\d{4}([-./])\d{1,2}\1\d{1,2}([ T].*)?")
YEAR_LAST = re.compile(r"\d{1,2}([-./])\d{1,2}\1\d{4}([ T].*)?")
ROWS = 30  # of a column of text in which it is suspicious that most values occur only once
MANY, SHOWN = 5, 3  # values without a known category that are suspicious, and values that a warning shows
LEAST_SPREAD = 1e-3  # least standard deviation of the outputs of a bin, for its scale
LEAST_ENCODED = 0.1  # scale of an input with bins, relative to the largest one
OFTEN = 5  # least number of samples of a value that gets a unit
OTHER, ENOUGH = 0.05, 100  # share of the samples, and number, that is sufficient to learn rare and missing values
COVERED = 0.9  # least share of the samples that have such a value
MOST_VALUES = 600  # with a unit: the most frequent ones
HEIGHT = 1.5  # of their units
LEAST_END = np.float32(0.05)  # least width of the bins at the ends, which continue outside of the samples
DECLARED, TEXT = ("cat", "dictionary", "enum"), ("large_string", "string", "utf8")  # beginnings of types of columns


@dataclass(frozen=True)
class Encoding:
    """Arguments of a `PiecewiseLinearEncoding`."""

    edges: tuple[tuple[float, ...] | None, ...]
    ends: tuple[tuple[tuple[float, float], ...] | None, ...] | None = None
    values: tuple[tuple[float, ...] | None, ...] | None = None

    @property
    def outputs(self) -> int:
        bins = sum(1 if some is None else len(some) - 1 for some in self.edges)
        return bins + sum(len(some or ()) for some in self.values or ())

    def layer(self) -> PiecewiseLinearEncoding:
        return PiecewiseLinearEncoding(self.edges, self.ends, self.values, HEIGHT)


def with_values(encoding: Encoding | None, x: np.ndarray, bins: int) -> Encoding | None:
    """The encoding with units for the values that occur often, or None if no column has such values.

    A column has them if it has too many values for the bins, and nearly all samples have a value that occurs often.
    """
    numbers, counts, inputs = [], [], []
    for k, column in enumerate(x.T):
        found, times = np.unique(column[~np.isnan(column)], return_counts=True)
        often = times >= OFTEN
        if len(found) > bins + 1 and times[often].sum() >= COVERED * times.sum():
            numbers += found[often].tolist()
            counts += times[often].tolist()
            inputs += [k] * int(often.sum())
    if not numbers:
        return None
    values: list[list[float]] = [[] for _ in x.T]
    for i in np.sort(np.argsort(-np.array(counts), kind="stable")[:MOST_VALUES]):
        values[inputs[i]].append(numbers[i])
    kept = tuple(tuple(some) or None for some in values)
    return replace(encoding or Encoding((None,) * len(kept)), values=kept)


def encoding_of(x: np.ndarray, bins: int, scaled: bool) -> Encoding | None:
    """An encoding of the columns of x. The edges are quantiles, or all values where there are only a few.

    A column with fewer than three edges is not encoded; None: no column is encoded. NaN is ignored.

    Args:
        bins: largest number of bins of a column. scaled: whether outputs u become (u - mean)/sqrt(standard deviation),
            which gives more weight to bins with few samples.
    """
    columns = [column[~np.isnan(column)] for column in x.T]
    edges = tuple(_edges(column, bins) for column in columns)
    if not any(edges):
        return None
    if not scaled:
        return Encoding(edges)
    ends = tuple(None if some is None else _ends(column, some) for column, some in zip(columns, edges, strict=True))
    return Encoding(edges, ends)


def scaled_encoding(encoding: Encoding | None, scales: np.ndarray) -> Encoding:
    """The encoding whose bins are multiplied by the scale of their input.

    An input has a single bin, which is linear, if it had none, or if its scale is below `LEAST_ENCODED` of the largest.
    """
    nothing = (None,) * len(scales)
    given = encoding or Encoding(nothing)
    edges, ends, values = [], [], []
    kept = scales >= LEAST_ENCODED * scales.max()
    for k, (scale, keep) in enumerate(zip(scales.tolist(), kept, strict=True)):
        bins = (given.edges[k] if keep else None) or (0.0, 1.0)
        outputs = (given.ends or nothing)[k] if keep else None
        edges.append(bins)
        ends.append(tuple((scale * a, scale * b) for a, b in outputs or ((0.0, 1.0),) * (len(bins) - 1)))
        values.append((given.values or nothing)[k] if keep else None)
    return Encoding(tuple(edges), tuple(ends), tuple(values))


def _ends(column: np.ndarray, edges: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    low, width = np.array(edges[:-1]), np.diff(edges)
    u = np.clip((column[:, None] - low) / width, 0, 1)
    mean, scale = u.mean(0), np.sqrt(np.maximum(u.std(0), LEAST_SPREAD))
    return tuple(zip((-mean / scale).tolist(), ((1 - mean) / scale).tolist(), strict=True))


def _edges(column: np.ndarray, bins: int) -> tuple[float, ...] | None:
    found = np.unique(column)
    if len(found) > bins + 1:
        found = np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)).astype(np.float32))
    if len(found) < 3:
        return None
    first, last = min(found[0], found[1] - LEAST_END), max(found[-1], found[-2] + LEAST_END)
    return (float(first), *found[1:-1].tolist(), float(last))


@dataclass(frozen=True)
class CategoryInputs:
    """The inputs of a column of categories, and the samples that networks have learnt.

    Attributes:
        inputs: the columns of the standardised samples. values: their values for each category.
        counts: how many samples have each category.
    """

    inputs: slice
    values: np.ndarray
    counts: np.ndarray

    def count(self, x: np.ndarray) -> np.ndarray:
        return np.count_nonzero(x[:, self.inputs] > 0, 0)

    def unknown(self, x: np.ndarray) -> np.ndarray:
        """Which samples have a category that was not learnt, or none."""
        ones = x[:, self.inputs]
        return np.isnan(ones).any(1) | (ones[:, self.counts == 0] > 0).any(1)

    def drawn(self, places: np.ndarray) -> np.ndarray:
        """The values of one category for each place in [0, 1): it is drawn as often as it was learnt."""
        ends = np.cumsum(self.counts)
        return self.values[np.searchsorted(ends, places * ends[-1], "right")]


@dataclass
class Categories:
    """The categorical columns of a table. Each becomes one column per category, with 1 for the category of the sample
    and 0 elsewhere. Rare categories and missing values have one more column together, if there are enough of them among
    the first samples; a few do not show how much they differ. Nothing is known of any other value: it has only NaN.

    Attributes:
        known: the categories of each such column, by its number.
        numbers: the numbers of all other columns, in their order; they precede the columns of categories.
        others: the values of a column that have one more column together; None is a missing one.
    """

    known: dict[int, list[Hashable]] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    others: dict[int, set[Hashable]] = field(default_factory=dict)

    @classmethod
    def of(cls, X: Any, asked: Any, weights: Any = None) -> Categories:
        """The categories of X; `asked`: as the estimators' `categorical_features`; `weights`: as in `fit`.

        Raises:
            ValueError: columns that X does not have.

        Warns:
            UserWarning: a column of text, not declared as categories, whose values are numbers or dates, or most
                of whose values occur only once; or a column with many categories that are not among the most
                frequent ones.
        """
        columns = _columns_of(X, asked)
        if not columns:
            return cls()
        X = indexable(X)
        known: dict[int, list[Hashable]] = {}
        others: dict[int, set[Hashable]] = {}
        for k in columns:
            keys = _learnt(_keys(X, k), weights)
            counts = Counter(key for key in keys if key is not None)
            text = any(isinstance(key, str) for key in counts) and not _is_declared(_column(X, k))
            most = [key for key, _ in counts.most_common(MOST_CATEGORIES)]
            kept = sum(counts[key] for key in most)
            _warn_of_categories(names_of(X)[k], counts, kept, isinstance(asked, str) and text)
            known[k] = sorted(most, key=lambda key: (type(key).__name__, str(key)))
            if len(keys) - kept >= np.clip(OTHER * len(keys), OFTEN, ENOUGH):
                others[k] = set(keys) - set(most)
        return cls(known, [k for k in range(X.shape[1]) if k not in known], others)

    def split(self, X: Any, weights: Any = None) -> tuple[Any, np.ndarray]:
        """The numeric columns of X, `indexable` (None: there are none), and the columns that encode its categories.

        Warns:
            UserWarning: most values of a column are unknown, and it has at least five, or they are of another type.
                Values with the weight 0 do not count.
        """
        parts = []
        for k, categories in self.known.items():
            place = {category: position for position, category in enumerate(categories)}
            place |= dict.fromkeys(self.others.get(k, ()), len(categories))
            keys = _keys(X, k)
            found = np.array([place.get(key, -1) for key in keys], int)
            given = [key for key in _learnt(keys, weights) if key is not None]
            unknown = [key for key in given if key not in place]
            most = categories and 2 * len(unknown) > len(given)
            if most and (len(given) >= MANY or not _types(unknown) & _types(categories)):
                warn(
                    f"{len(unknown)} of {len(given)} values of column {names_of(X)[k]!r} of X are no category that was "
                    f"learnt, and count as unknown: {_shown(unknown)}; learnt were {_shown(categories)}. Give them as "
                    "in the first samples"
                )
            parts.append((found[:, None] == np.arange(self._width(k))).astype(np.float32))
            parts[-1][found < 0] = np.nan
        ones = np.concatenate(parts, 1)
        return (_columns(X, self.numbers) if self.numbers else None), ones

    def blocks(self) -> list[slice]:
        """The columns of each categorical column, without that of rare and missing values."""
        starts = np.cumsum([len(self.numbers), *map(self._width, self.known)]).tolist()
        return [
            slice(start, start + len(categories))
            for start, categories in zip(starts, self.known.values(), strict=False)
        ]

    def inputs(self) -> list[slice]:
        """The columns of each categorical column."""
        blocks = zip(self.known, self.blocks(), strict=True)
        return [slice(block.start, block.stop + (k in self.others)) for k, block in blocks]

    def of_others(self) -> list[int]:
        """The columns of rare and missing values."""
        return [block.stop for k, block in zip(self.known, self.blocks(), strict=True) if k in self.others]

    def sources(self, inputs: int) -> np.ndarray:
        """The number of the column from which each input comes."""
        if not self.known:
            return np.arange(inputs)
        return np.array(self.numbers + [k for k in self.known for _ in range(self._width(k))], int)

    def _width(self, k: int) -> int:
        return len(self.known[k]) + (k in self.others)


def _learnt(keys: list[Hashable], weights: Any) -> list[Hashable]:
    """The keys of the samples whose weight is not 0."""
    return list(compress(keys, sample_weights(weights, len(keys), learnt=False)))


def _warn_of_categories(name: Any, counts: Counter, kept: int, text: bool) -> None:
    """Warns of a column, given how often each value occurs, and how many rows have one of the most frequent ones: of
    text that should not be categories (if `text`), or of too many categories."""
    rows = counts.total()
    numbers = {key for key in counts if _is_number(key)}
    dates = {key for key in counts if isinstance(key, str) and (_is(YEAR_FIRST, key) or _is(YEAR_LAST, key))}
    found, kind = (numbers, "numbers") if len(numbers) > len(dates) else (dates, "dates")
    once = sum(count == 1 for count in counts.values())
    if text and len(found) >= max(NUMERALS, 0.9 * len(counts)):
        others = [key for key in counts if key not in found]
        but = f" (not {_shown(others)})" if others else ""
        how = _conversion(numbers)
        if kind == "dates":
            order = "" if all(_is(YEAR_FIRST, key) for key in dates) else ", dayfirst=True (or False)"
            how = f"(pd.to_datetime(column{order}, errors='coerce') - first_date) / pd.Timedelta(days=1)"
        warn(
            f"column {name!r} of X holds text, and {len(found)} of {len(counts)} different values are {kind}{but}: "
            f"they are taken as categories. Convert it, by {how}, or name it in categorical_features"
        )
    elif text and rows >= ROWS and once > 0.5 * rows:
        warn(
            f"column {name!r} of X holds text, and {once} of {rows} values occur only once: as categories, identifiers "
            "and free text tell nothing about new samples. Leave it out, encode it as numbers, or name it in "
            "categorical_features"
        )
    elif rows - kept > MOST_RARE * rows:
        warn(
            f"column {name!r} of X has {len(counts)} categories, and {(rows - kept) / rows:.0%} of the values are none "
            f"of the {MOST_CATEGORIES} most frequent ones, and cannot be told apart: encode it by TargetEncoder "
            "(scikit-learn) in a pipeline"
        )


def _is(pattern: re.Pattern[str], text: Any) -> bool:
    return pattern.fullmatch(text.strip()) is not None


def _conversion(numbers: set[Hashable]) -> str:
    """How pandas reads a column with these numbers, of which some are texts."""
    ways = ("", ".str.replace(',', '')", ".str.replace(',', '.')")
    plain, thousands, decimal = (f"pd.to_numeric(column{way}, errors='coerce')" for way in ways)
    texts = [key.strip() for key in numbers if isinstance(key, str) and "," in key]
    if not texts:
        return plain
    if not all(_is(THOUSANDS, text) for text in texts):
        return decimal
    sure = any(text.count(",") > 1 or "." in text for text in texts)
    return thousands if sure else f"{thousands}, or {decimal} if the commas are decimal"


def _is_number(value: Hashable) -> bool:
    """Whether a value is a number, or a text that is one, perhaps with a decimal comma or commas between thousands."""
    if not isinstance(value, str):
        return isinstance(value, Real) and not isinstance(value, bool)
    commas = ("", -1) if _is(THOUSANDS, value) else (".", 1)
    try:
        return math.isfinite(float(value.replace(",", *commas)))
    except ValueError:
        return False


def _types(values: list[Hashable]) -> set[str]:
    return {"number" if isinstance(value, Real) else type(value).__name__ for value in values}


def _shown(values: list[Hashable]) -> str:
    """Some of the values, and their types."""
    return f"{', '.join(map(repr, list(dict.fromkeys(values))[:SHOWN]))} ({', '.join(sorted(_types(values)))})"


def _columns_of(X: Any, asked: Any) -> list[int]:
    """Numbers of the columns of categories."""
    if asked is None or (isinstance(asked, str) and asked == "from_dtype"):
        table = asked is not None and hasattr(X, "columns") and len(getattr(X, "shape", ())) == 2
        return [k for k in range(X.shape[1]) if _holds_categories(_column(X, k))] if table else []
    if isinstance(asked, str) or not isinstance(asked, Iterable):
        raise ValueError(
            f"categorical_features is 'from_dtype', None, or a list of columns (a mask, numbers or names), got "
            f"{asked!r}"
        )
    features, chosen, names = np.shape(X)[1], np.asarray(asked), names_of(X)
    if chosen.dtype == bool and chosen.shape == (features,):
        return np.flatnonzero(chosen).tolist()
    found = [names.index(one) if one in names else one for one in chosen.tolist()]
    if chosen.dtype == bool or not all(isinstance(k, int) and -features <= k < features for k in found):
        raise ValueError(f"categorical_features has columns that X, with {features} columns, does not have: {asked!r}")
    return sorted({k % features for k in found})


def indexable(X: Any) -> Any:
    """Converts lists of rows to an array that keeps the types of their values; returns tables and arrays unchanged.

    Raises:
        ValueError: no rows and columns.
    """
    found = X if hasattr(X, "shape") else np.asarray(X, object)
    if len(found.shape) != 2:
        raise ValueError(
            f"X must have rows and columns, got {type(X).__name__} of the shape {found.shape}: one sample is a table "
            "of one row, such as pandas.DataFrame([record])"
        )
    return found


def _column(X: Any, k: int) -> Any:
    if hasattr(X, "iloc"):
        return X.iloc[:, k]
    if hasattr(X, "column_names"):
        return X.column(k)
    return X[:, k] if isinstance(X, np.ndarray) else X.to_series(k) if hasattr(X, "columns") else np.asarray(X)[:, k]


def _columns(X: Any, numbers: list[int]) -> Any:
    """A table or array of these columns."""
    if hasattr(X, "iloc"):
        return X.iloc[:, numbers]
    return X.select(numbers) if hasattr(X, "column_names") else X[:, numbers]


def _holds_categories(column: Any) -> bool:
    kind = _type_of(column)
    name = str(kind).lower()
    if _is_declared(column) or name == "str" or name.startswith(TEXT):
        return True
    return isinstance(kind, np.dtype) and kind.kind == "O" and any(isinstance(value, str) for value in column)


def _is_declared(column: Any) -> bool:
    """Whether its type says that a column holds categories."""
    kind = _type_of(column)
    return hasattr(kind, "categories") or str(kind).lower().startswith(DECLARED)


def _type_of(column: Any) -> Any:
    return getattr(column, "dtype", getattr(column, "type", None))


def _keys(X: Any, k: int) -> list[Hashable]:
    """The categories in a column; None where it is missing."""
    return labels_of(_column(X, k), f"column {names_of(X)[k]!r} of X")
