"""What `kernels.cuda.graph` is for a GPU: on the CPU, calling a kernel costs next to nothing, so parts just run."""

from collections.abc import Callable, Hashable
from typing import Any


class Graphs:
    """Runs the parts of a training step."""

    def __init__(self, array: Any):
        pass

    def run(self, name: str, key: Hashable, memory: tuple, function: Callable[[], Any]) -> Any:
        return function()

    def clear(self) -> None:
        pass
