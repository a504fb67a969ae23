"""Parameters of a network in pytagi's csv files: one file each for mu_w, var_w, mu_b, var_b, one value per line."""

import os
import warnings
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from pytagi_ddp.files import AnyPath, as_path, atomic_file, file_size
from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.core.tensors import FIELDS
from pytagi_ddp.nn.files.state_dicts import Values, by_entry, check_file, savable

SUFFIXES = dict(zip(FIELDS, ("_1_mw.csv", "_2_Sw.csv", "_3_mb.csv", "_4_Sb.csv"), strict=True))


def save_csv(model: Network, prefix: AnyPath) -> None:
    values = savable(model)
    with ExitStack() as written:  # no file is replaced before all are written
        for field, suffix in SUFFIXES.items():
            arrays = [array for spec, array in values if spec.kind == "learned" and spec.field == field]
            text = "".join(f"{value:.9g}\n" for array in arrays for value in array)
            file = written.enter_context(atomic_file(f"{as_path(prefix)}{suffix}"))
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())  # a quota may be exceeded only here


def check_csv(model: Network, prefix: AnyPath) -> Values:
    """The values of the four files, for `state_dicts.put`; changes nothing."""
    found: Values = []
    for field, suffix in SUFFIXES.items():
        tensors = [spec for spec in model.arena.tensors if spec.kind == "learned" and spec.field == field]
        ends = np.cumsum([spec.size for spec in tensors])
        column = _numbers(Path(f"{as_path(prefix)}{suffix}"), sum(spec.size for spec in tensors))
        found += zip(tensors, np.split(column, ends)[:-1], strict=True)
    return check_file(model, by_entry(found), str(as_path(prefix)))


def _numbers(path: Path, count: int) -> np.ndarray:
    """The `count` numbers in a text file, read without taking more memory than they need.

    Raises:
        ValueError: a wrong number of values, or values that are not numbers.
    """
    file_size(path)  # raises an OSError that names the file, also for a pipe, which would block
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # from NumPy, for text that is not a number
            values = np.fromfile(path, np.float32, count + 1, sep=" ")
    except (ValueError, DeprecationWarning) as error:
        raise ValueError(f"{path} is not a file of numbers: {error}") from None
    if values.size != count:
        found = "more" if values.size > count else values.size
        raise ValueError(f"{path} holds {found} values, the network has {count}")
    return values
