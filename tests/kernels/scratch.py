"""Scratch memory of products with a margin behind it, to find out who writes further than it has asked for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.extension import load

MARGIN, UNTOUCHED = 100_000, 123


@contextmanager
def bounded() -> Iterator[list[np.ndarray]]:
    """Products write no further into scratch memory than they have asked for, or the end of the block fails.

    Gives the margins, one for each time that scratch memory was asked for.
    """
    margins: list[np.ndarray] = []

    def workspace(size: int) -> np.ndarray:
        memory = np.empty(size + MARGIN, np.float32)
        memory[size:] = UNTOUCHED
        margins.append(memory[size:])
        return memory[:size]

    with ExitStack() as stack:
        for name in ("runtime._replay", "layers._conv2d", "layers._attention"):
            stack.enter_context(mock.patch.object(load(name), "workspace", workspace))
        yield margins
    assert all((margin == UNTOUCHED).all() for margin in margins), "a product writes beyond its scratch memory"
