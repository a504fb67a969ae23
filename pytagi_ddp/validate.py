"""Checks of arrays and numbers given by the user."""

import math
import operator
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def flat_float32(
    values: ArrayLike, what: str, size: int | None = None, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """`values`, of any library, real dtype, shape and strides (see `to_numpy`), as a flat float32 array.

    Contiguous float32 in host memory is not copied. With a `shape`, neighbouring dimensions may be joined, as in a flat
    array or in (4, 27) for (4, 3, 3, 3).

    Raises:
        TypeError: values that are not real numbers. ValueError: not `size` of them, or rows of unequal length; another
            shape, such as a transposed one.
    """
    array = to_numpy(values, what)
    if shape is not None and array.size == math.prod(shape) and not _ends(array.shape) <= _ends(shape):
        raise ValueError(
            f"{what} has the shape {shape}, or flat {(math.prod(shape),)}, got {array.shape}: is it transposed?"
        )
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        with np.errstate(over="ignore"):  # too large values become infinite, which callers check
            array = np.ascontiguousarray(array, np.float32)
    array = array.reshape(-1)
    if size is not None and array.size != size:
        raise ValueError(f"{what} must hold {size} values, got {array.size}")
    return array


def _ends(shape: tuple[int, ...]) -> set[int]:
    """The numbers of values before which a row of some dimension can end."""
    return {math.prod(shape[:k]) for k in range(len(shape) + 1)}


def same_order(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether arrays of as many values have one order: one shape has joined neighbouring dimensions of the other."""
    own, others = _ends(shape), _ends(other)
    return own <= others or own >= others


def check_finite(values: np.ndarray, what: str, remedy: str = "") -> None:
    """Raises ValueError if some of `values` are NaN or infinite; if some are NaN, the message ends with `remedy`."""
    bad = values.size - np.count_nonzero(np.isfinite(values))
    if bad:
        advice = remedy if np.isnan(values).any() else ""
        first = np.argwhere(~np.isfinite(values))[0]
        place = f", the first in row {first[0]}, column {first[1]}" if values.ndim == 2 else ""
        raise ValueError(f"{what}: {bad} of {values.size} values are NaN or infinite{place}{advice}")


def check_variances(values: np.ndarray, what: str) -> None:
    """Raises ValueError if some of the (finite) `values` are negative."""
    if values.size and values.min() < 0:
        raise ValueError(f"{what} holds variances and must not be negative, the smallest is {values.min()}")


def check_predictions(mu: np.ndarray, var: np.ndarray) -> None:
    """Raises FloatingPointError if moments of some samples are not finite."""
    finite = np.isfinite(mu) & np.isfinite(var)
    bad = np.count_nonzero(~finite.all(tuple(range(1, mu.ndim))))
    if bad:
        raise FloatingPointError(
            f"predictions of {bad} of {len(mu)} samples are not finite: numbers became too large for float32. "
            "Standardise the inputs, or make the prior smaller (gain_weight, gain_bias)"
        )


def round_up_variances(values: np.ndarray, what: str) -> np.ndarray:
    """The (finite) `values`, with values that are negative by rounding only set to 0.

    Raises:
        ValueError: one is below -eps max(1, largest value), with the eps of float32.
    """
    smallest = values.min(initial=0)
    if -np.finfo(np.float32).eps * max(1, values.max(initial=0)) <= smallest < 0:
        return np.maximum(values, 0)
    check_variances(values, what)
    return values


def as_integers(owner: str, least: int | None = None, most: int | None = None, /, **values: Any) -> list[int]:
    """Arguments of `owner` (a layer, a class or a function) as Python's integers, in their order.

    Raises:
        TypeError: one is not an integer; True and False are not. ValueError: one is below `least` or above `most`.
    """
    for name, value in values.items():
        try:
            number = operator.index(value)
            refused = isinstance(value, bool)
        except TypeError:
            refused = True
        if refused:
            raise TypeError(f"{owner}: {name} must be an integer, got {value!r:.50}")
        if least is not None and number < least:
            raise ValueError(f"{owner}: {name} must be at least {least}, got {value!r:.50}")
        if most is not None and number > most:
            raise ValueError(f"{owner}: {name} must be at most {most}, got {value!r:.50}")
    return list(map(operator.index, values.values()))


def as_numbers(owner: str, interval: str, /, **values: Any) -> list[float]:
    """Arguments of `owner` as floats in an `interval` such as "[0, 1)" or "(0, inf)", in their order.

    An array without dimensions is a number, too.

    Raises:
        TypeError: one is not a real number; True and False are not. ValueError: one is NaN or not in the interval.
    """
    least, most = map(float, interval[1:-1].split(","))
    numbers = []
    for name, value in values.items():
        if getattr(value, "shape", None) == ():
            value = value.item()
        if not isinstance(value, Real) or isinstance(value, bool):
            raise TypeError(f"{owner}: {name} must be a number, got {value!r:.50}")
        try:
            number = float(value)
        except OverflowError:  # an int of more than 308 digits
            number = math.inf if value == abs(value) else -math.inf
        at_end = (interval[0] == "[" and number == least) or (interval[-1] == "]" and number == most)
        if not (least < number < most or at_end):  # True for NaN
            raise ValueError(f"{owner}: {name} must be in {interval}, got {value!s:.50}")
        numbers.append(number)
    return numbers


def check_batch_size(value: Any) -> None:
    """Raises TypeError if the batch size of `predict` is not an integer, ValueError if it is below 1."""
    if not isinstance(value, Integral):
        raise TypeError(
            f"predict takes batch_size, an integer, in second place, got {type(value).__name__}; variances of inputs "
            "go by their name, var_x"
        )
    as_integers("predict", 1, batch_size=value)


def as_bools(owner: str, **values: Any) -> list[bool]:
    """Boolean arguments of `owner`, in their order.

    Raises:
        TypeError: one is not True, False, 1 or 0; most often an argument in the wrong place, such as a stride in place
            of `bias`.
    """
    for name, value in values.items():
        if not isinstance(value, Integral | np.bool_) or value not in (0, 1):
            raise TypeError(f"{owner}: {name} must be True or False, got {value!r}")
    return [bool(value) for value in values.values()]
