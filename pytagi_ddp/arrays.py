"""Arrays, columns and tables of other libraries as NumPy arrays."""

from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

IN_HOST_MEMORY = (1, 3)  # device types of DLPack: CPU, and CPU memory that CUDA has pinned
NUMBERS, TEXT = "fiub", "UST"  # kinds of NumPy's types


def to_numpy(values: Any, what: str, text: bool = False) -> np.ndarray:
    """`values` as a NumPy array of real numbers, without a copy where NumPy can read their memory.

    It takes numbers, nested lists, and all objects with `__array__`, such as arrays of JAX and TensorFlow. It also
    takes columns and tables of pandas, polars and PyArrow with numbers or bools (nullable, decimal and Arrow-backed
    ones, and categories that are numbers), masked arrays and arrays of objects. Missing values in these (null, NA,
    None, masked) become NaN. It takes tensors of PyTorch with a gradient, of bfloat16 or
    on a GPU, bfloat16 of JAX as float32, and arrays in host memory that have only DLPack (`__dlpack__`).

    Args:
        values: the array. what: its name in messages. text: take text, too (names of classes), as an array of it.

    Raises:
        TypeError: dates, times, text or other objects that are not real numbers (the message names their columns); an
            array in the memory of another device, or of a kind that its library does not convert (sparse). ValueError:
            rows of unequal length; an integer or fraction beyond the range of float64.
    """
    if type(values) is np.ndarray and values.dtype.kind in NUMBERS:
        return values
    if hasattr(values, "column_names"):  # PyArrow's tables, which it converts only if their columns have one type
        named = zip(values.column_names, values.columns, strict=True)
        columns = [to_numpy(column, f"column {name!r} of {what}", text) for name, column in named]
        return np.stack(columns, 1) if columns else np.empty((len(values), 0))
    table = is_table(values)
    if table and not text:
        _refuse([column for column in _kinds(values) if not _may_be_numbers(column[1])], what)
    array = _read(values, what)
    if array.dtype.kind in NUMBERS:
        return array
    if array.dtype.kind == "V" and array.dtype.names is None and np.can_cast(array.dtype, np.float32):
        return array.astype(np.float32)
    types = set(map(type, array.flat)) if array.dtype == object else set()
    if array.dtype == object and _all_numbers(array) and (table or any(map(_is_number, types))):
        return _from_objects(array, what)
    is_text = array.dtype.kind in TEXT or str in types
    if text and is_text:
        return array.astype(str) if types == {str} else array
    if table and array.ndim:
        parts = array.T if array.ndim == 2 else [array]
        _refuse([k for k, part in zip(_kinds(values), parts, strict=False) if not _all_numbers(part)], what)
    if array.shape == () and array.dtype == object:  # no array at all
        how = ": give it dense (.toarray()), in batches if it is large" if hasattr(values, "nnz") else ""
        raise TypeError(f"{what} must hold real numbers, got {type(array.item()).__name__}{how}")
    held = f" ({', '.join(sorted(kind.__name__ for kind in types))})" if types else ""
    by = ", names of classes by np.unique(..., return_inverse=True)[1]" if is_text else ""
    raise TypeError(
        f"{what} must hold real numbers, got dtype {array.dtype}{held}; encode what it holds as numbers{by}"
    )


def is_table(values: Any) -> bool:
    """Whether `values` are a column or table, of pandas, polars or PyArrow: they can have values that are missing."""
    return hasattr(values, "to_numpy") or hasattr(values, "column_names")


def _read(values: Any, what: str) -> np.ndarray:
    """`values` as NumPy reads them, which may be as objects."""
    source = values
    try:
        source = values.detach().cpu() if hasattr(values, "detach") else values
        if isinstance(source, np.ma.MaskedArray) and np.ma.is_masked(source):  # NumPy would use the masked values
            number = source.dtype.kind in NUMBERS
            masked: Any = source.astype(np.result_type(source.dtype, np.float32) if number else object)
            return masked.filled(np.nan)
        if hasattr(source, "__dlpack__") and not hasattr(source, "__array__"):
            return np.from_dlpack(source)
        return np.asarray(source.float() if str(getattr(source, "dtype", "")) == "torch.bfloat16" else source)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{what} must be an array of numbers: {error}") from None
    except (TypeError, RuntimeError, BufferError) as error:
        raise TypeError(f"{what} {_why_not(source)}: {error}") from None


def _why_not(source: Any) -> str:
    device = getattr(source, "__dlpack_device__", None)
    try:
        elsewhere = device is not None and device()[0] not in IN_HOST_MEMORY
    except Exception:  # this kind of array has no DLPack; the error that is raised next says more
        elsewhere = False
    if elsewhere:
        return "lies in another device's memory; bring it to the host first (CuPy: x.get(), PyTorch: x.cpu())"
    return "must be an array that NumPy can read"


def _kinds(table: Any) -> list[tuple[Any, Any]]:
    """(name, type) of each column of a table, or of the one column, whose name may be missing."""
    if hasattr(table, "columns"):
        return list(zip(table.columns, table.dtypes, strict=True))
    return [(getattr(table, "name", None), getattr(table, "dtype", getattr(table, "type", None)))]


def _refuse(columns: list[tuple[Any, Any]], what: str) -> None:
    """Raises TypeError if there are `columns`, which are (name, type) of those that do not hold numbers."""
    if not columns:
        return
    if len(columns) == 1 and columns[0][0] in (None, ""):
        kind = _named(columns[0][1])
        raise TypeError(f"{what} must hold real numbers, got a column of {kind}; encode what it holds as numbers")
    named = ", ".join(f"{name!r} ({_named(kind)})" for name, kind in columns)
    raise TypeError(f"{what} must hold real numbers, and these columns do not: {named}; encode them, or leave them out")


def _named(kind: Any) -> str:
    if hasattr(kind, "is_numeric"):
        return str(kind).partition("(")[0]  # without all its categories
    categories = getattr(kind, "categories", None)
    return str(kind) if categories is None else f"{kind} of {categories.dtype}"


def _may_be_numbers(kind: Any) -> bool:
    """Whether a column of this type, of pandas or polars, may hold numbers. Of objects, they themselves say it."""
    if hasattr(kind, "is_numeric"):
        if hasattr(kind, "shape"):  # polars' type of arrays of one shape
            return _may_be_numbers(kind.inner)
        return kind.is_numeric() or str(kind) in ("Boolean", "Null", "Object")
    categories, scalar = getattr(kind, "categories", None), getattr(kind, "type", None)
    if categories is not None:
        return _may_be_numbers(categories.dtype)
    if isinstance(scalar, type) and issubclass(scalar, str | bytes | date | time | timedelta):
        return False
    return getattr(kind, "kind", "O") in NUMBERS + "O"


def _is_number(kind: type) -> bool:
    return issubclass(kind, Real | Decimal | np.bool_)


def _all_numbers(array: np.ndarray) -> bool:
    """Whether all objects are numbers or missing."""
    kinds = set(map(type, array.flat))
    return all(_is_number(kind) or kind is type(None) or kind.__name__ == "NAType" for kind in kinds)


def _from_objects(array: np.ndarray, what: str) -> np.ndarray:
    """Objects that are numbers or missing, as float64."""
    try:
        numbers = [float(value) if _is_number(type(value)) else np.nan for value in array.flat]
    except OverflowError as error:  # integers of Python, and fractions, have no limit
        raise ValueError(f"{what} has a number that is too large: {error}") from None
    return np.array(numbers, np.float64).reshape(array.shape)
