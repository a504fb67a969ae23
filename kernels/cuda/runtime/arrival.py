"""Results that are being copied from the GPU."""

from collections.abc import Callable

import numpy as np


class Arrival(np.lib.mixins.NDArrayOperatorsMixin):
    """Acts as a NumPy array; any use of it waits until the copy from the GPU is complete.

    So a training loop that does not read the outputs does not wait for them. `np.asarray` returns the array itself.

    Args:
        values: the memory that is being filled.
        wait: returns when it is filled; None if it is filled already.
    """

    def __init__(self, values: np.ndarray, wait: Callable[[], None] | None):
        self._values, self._wait = values, wait

    def _arrived(self) -> np.ndarray:
        if self._wait is not None:
            self._wait()
            self._wait = None
        return self._values

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.array(self._arrived(), dtype, copy=copy)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        if out:
            options["out"] = tuple(map(_array_of, out))
        return getattr(ufunc, method)(*map(_array_of, inputs), **options)

    def __array_function__(self, function, types, arguments, options):
        return function(*map(_array_of, arguments), **{name: _array_of(value) for name, value in options.items()})

    def __getattr__(self, name: str):
        if name.startswith("_"):  # copy and pickle look for hooks before the object has any values
            raise AttributeError(name)
        return getattr(self._arrived(), name)

    def __reduce__(self):
        return Arrival, (self._arrived(), None)

    def __len__(self) -> int:
        return len(self._arrived())

    def __iter__(self):
        return iter(self._arrived())

    def __getitem__(self, key):
        return self._arrived()[key]

    def __setitem__(self, key, value) -> None:
        self._arrived()[key] = value

    def __bool__(self) -> bool:
        return bool(self._arrived())

    def __float__(self) -> float:
        return float(self._arrived())

    def __repr__(self) -> str:
        return repr(self._arrived())


def _array_of(value):
    if isinstance(value, list | tuple):
        return type(value)(map(_array_of, value))
    return value._arrived() if isinstance(value, Arrival) else value
