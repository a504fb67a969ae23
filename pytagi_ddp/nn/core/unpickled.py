"""Arrays that have come out of a pickle, as memory that may be written to."""

from typing import Any

import numpy as np


def writable(value: Any, _around: tuple[int, ...] = ()) -> Any:
    """`value`, with copies in place of arrays that cannot be written to; in dicts, lists and tuples, too.

    A pickle with buffers of its own (protocol 5: ray, dask, `joblib.load(mmap_mode="r")`, joblib's processes from 1 MB
    on) leaves arrays in the memory that it came in, which is read-only or a file. Every `__setstate__` of an object
    that computes in its arrays calls this function. What need not be copied stays the same object.
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
