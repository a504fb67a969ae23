"""Writable memory for arrays from a pickle."""

from typing import Any

import numpy as np


def writable(value: Any, _around: tuple[int, ...] = ()) -> Any:
    """`value` with read-only arrays replaced by copies, also in dicts, lists and tuples.

    A pickle with out-of-band buffers (protocol 5: ray, dask, `joblib.load(mmap_mode="r")`, joblib's processes from 1 MB
    on) leaves arrays in read-only memory or in a file. Every `__setstate__` of an object that writes to its arrays
    calls this function. Other values stay the same objects.
    """
    if isinstance(value, np.ndarray):
        writes = value.flags.writeable and value.flags.aligned and not isinstance(value, np.memmap)
        return value if writes else np.array(value)
    if id(value) in _around:  # a container that holds itself
        return value
    around = (*_around, id(value))
    if type(value) is dict:
        changed: Any = {key: writable(item, around) for key, item in value.items()}
        return changed if any(changed[key] is not item for key, item in value.items()) else value
    if type(value) is list or isinstance(value, tuple):
        items = [writable(item, around) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if type(value) is list else value._make(items) if hasattr(value, "_make") else tuple(items)
    return value
