"""Kernel calls of a part of a training step, recorded and replayed from C; `kernels.cuda.graph` does it for GPUs.

A step of a small network spends most of its time in Python: walking through the layers, checking shapes, calling
kernels one by one. But for one batch size and mode, these are always the same calls on the same memory.
"""

from collections.abc import Callable, Hashable
from typing import Any

from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads

_replay = load("runtime._replay")
Express = load("runtime._express").Express

PARTS = 100  # parts that are kept at most: a program may use ever new batch sizes
use_graphs = True  # False: every step walks through the layers
keeps_calls = True
call = _replay.call
UNKNOWN: tuple[Any, Any] = None, object()


class Graphs:
    """The recorded parts of one network's training step.

    A part runs as Python the first time (buffers are made, loops compiled), is recorded while it runs the second time,
    and replayed from then on. Parts with several keys are kept side by side: training with one batch size and
    predicting with another, say. When a run makes new buffers, all recordings are dropped, as they may name old ones.
    """

    def __init__(self, array: Any):
        self._parts: dict[Hashable, tuple[Any, Any]] = {}  # plans, None until calls are recorded, and results
        self.express = Express()
        self.plan: Any = None  # plan of the part that ran last, if it was replayed

    def run(self, name: str, key: Hashable, memory: tuple, function: Callable[[], Any]) -> Any:
        """Calls `function`, or replays what it did for the same key, with the result of the recorded call.

        Args:
            name: of the part.
            key: all that the calls depend on.
            memory: arrays from outside of the network's own buffers; None for one that is absent.
            function: calls kernels, and does nothing else that a replay would miss.
        """
        self.plan = None
        if not use_graphs:
            self.clear()
            return function()
        key = (name, key, get_threads(), *(None if a is None else _replay.address(a) for a in memory))
        plan, result = self._parts.get(key, UNKNOWN)
        if plan is not None:
            plan.run()
            self.plan = plan
            return result
        before = _replay.allocations()
        try:
            if result is UNKNOWN[1]:
                result = function()
            else:
                with _replay.recording() as plan:
                    result = function()
        except BaseException:
            self.clear()  # new buffers may have been made
            raise
        if _replay.allocations() != before or len(self._parts) >= PARTS:
            self.clear()
        self._parts[key] = plan if _replay.allocations() == before else None, result
        return result

    def clear(self) -> None:
        """Forgets all parts; call when layers change what they call."""
        self._parts.clear()
        self.express.clear()
        self.plan = None
