"""Read pickled arrays, lists, dictionaries and strings; refuse everything else a pickle can hold.

A pickle is a program: `pickle.load` calls whatever the file names. The CIFAR-10 files need three names, all
of them NumPy's array reconstruction, and no other is ever looked up here.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

_RECONSTRUCT = np.empty(0).__reduce__()[0]  # moved between NumPy's modules over the years
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a data file") from None


def load_arrays(path: Path) -> Any:
    """Unpickle a file of arrays, lists, dictionaries, numbers and strings (Python 2 strings become bytes).

    Raises:
        ValueError: A truncated or corrupt file, or one that names anything but NumPy's array reconstruction.
    """
    data = path.read_bytes()
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{path}: {len(data)} bytes that are not a pickle of arrays: {error}") from error
