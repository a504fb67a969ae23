"""Pickles whose arrays come back in memory that cannot be written to, as ray, dask and joblib make them."""

import pickle
from typing import Any


def out_of_band(thing: Any) -> Any:
    """`thing` as it comes out of a pickle with read-only buffers of its own."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(thing, 5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer) for buffer in buffers])
