"""Arrays of other libraries as NumPy arrays."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

IN_HOST_MEMORY = (1, 3)  # device types of DLPack: CPU, and CPU memory that CUDA has pinned


def to_numpy(values: ArrayLike, what: str) -> np.ndarray:
    """`values` as a NumPy array, without a copy where NumPy can read their memory.

    It takes what NumPy takes: numbers, nested lists, and everything with `__array__`, such as arrays of JAX and
    TensorFlow and tables of pandas and polars. In addition it takes tensors of PyTorch, also with a gradient, of
    bfloat16, or on a GPU; nullable columns of pandas and masked arrays, whose missing values become NaN; bfloat16 of
    JAX, as float32; and arrays in host memory that have only DLPack (`__dlpack__`).

    Args:
        values: the array. what: its name in messages.

    Raises:
        TypeError: columns that do not hold numbers (the message names them); an array in the memory of another device,
            or of a kind that its library does not convert (sparse). ValueError: rows of unequal length.
    """
    if type(values) is np.ndarray:
        return values
    detach = getattr(values, "detach", None)
    source: Any = values
    try:
        source = values if detach is None else detach().cpu()
        if np.ma.is_masked(source):  # NumPy would use the values behind the mask
            number = np.issubdtype(source.dtype, np.number) or source.dtype == bool
            return source.astype(np.result_type(source.dtype, np.float32) if number else object).filled(np.nan)
        if hasattr(source, "__dlpack__") and not hasattr(source, "__array__"):
            array = np.from_dlpack(source)
        elif str(getattr(source, "dtype", "")) == "torch.bfloat16":
            array = np.asarray(source.float())
        else:
            array = np.asarray(source)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{what} must be an array of numbers: {error}") from None
    except (TypeError, RuntimeError, BufferError) as error:
        raise TypeError(f"{what} {_why_not(source)}: {error}") from None
    if hasattr(source, "to_numpy") and (array.dtype == object or _has_times(source)):
        _check_columns(source, what)
        if hasattr(source, "to_pandas"):  # of polars: decimal numbers, and None for what is missing
            return array.astype(np.float64)
        return source.to_numpy(dtype=np.float64, na_value=np.nan)
    if array.dtype.kind == "V" and array.dtype.names is None and np.can_cast(array.dtype, np.float32):
        return array.astype(np.float32)
    return array


def _why_not(source: Any) -> str:
    device = getattr(source, "__dlpack_device__", None)
    try:
        elsewhere = device is not None and device()[0] not in IN_HOST_MEMORY
    except Exception:  # this kind of array has no DLPack; the error that is raised next says more
        elsewhere = False
    if elsewhere:
        return "lies in another device's memory; bring it to the host first (CuPy: x.get(), PyTorch: x.cpu())"
    return "must be an array that NumPy can read"


def _check_columns(table: Any, what: str) -> None:
    """Raises TypeError, naming them, if some columns of a table (or the single column) do not hold numbers."""
    if not hasattr(table, "columns"):
        kinds = {getattr(table, "name", None): table.dtype}
    else:
        kinds = dict(zip(table.columns, table.dtypes, strict=True))
    others = [f"{name!r} ({kind})" for name, kind in kinds.items() if not _is_number(kind)]
    if others:
        named = ", ".join(others)
        raise TypeError(
            f"{what} must hold real numbers, and these columns do not: {named}; encode them, or leave them out"
        )


def _has_times(table: Any) -> bool:
    """Whether a table of polars has columns of dates or times, which it would convert to numbers."""
    return any(kind.is_temporal() for kind in getattr(table, "dtypes", ()) if hasattr(kind, "is_temporal"))


def _is_number(kind: Any) -> bool:
    """Whether a column's type, of pandas or of polars, is numeric."""
    if hasattr(kind, "is_numeric"):
        return kind.is_numeric() or str(kind) == "Boolean"
    return getattr(kind, "kind", "O") in "fiub"
