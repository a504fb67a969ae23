"""Kernel calls of the parts of a training step, recorded and replayed from C; see `kernels.cuda.graph` for GPUs.

A step of a small network spends most of its time in Python: calling layers, checking shapes, calling kernels one by
one. For one batch size and mode, these are always the same calls on the same memory.
"""

from collections.abc import Callable, Hashable
from typing import Any

from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads

_replay = load("runtime._replay")
Express = load("runtime._express").Express

PARTS = 100  # limit of recorded parts, because a program may use many batch sizes
use_graphs = True  # False: every step calls the layers
keeps_calls = True
call = _replay.call
UNKNOWN: tuple[Any, Any] = None, object()


class Graphs:
    """The recorded parts of one network's training step.

    A part runs in Python the first time (buffers are made, loops compiled), is recorded the second time, and replayed
    from then on. There can be recordings for several keys, for example for training with one batch size and predicting
    with another. When a run makes new buffers, all recordings are dropped, because they may use old ones.
    """

    def __init__(self, array: Any):
        self._parts: dict[Hashable, tuple[Any, Any]] = {}  # plans, None until calls are recorded, and results
        self.express = Express()
        self.plan: Any = None  # plan of the part that ran last, if it was replayed

    def run(self, name: str, key: Hashable, memory: tuple, function: Callable[[], Any]) -> Any:
        """Calls `function`, or replays its calls for the same key, with the result of the recorded call.

        Args:
            key: all values that the calls depend on.
            memory: arrays outside the buffers of the network; None for an absent one.
            function: calls kernels only, so that it can be replayed.
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
        """Drops all parts. To be called when the calls of layers change."""
        self._parts.clear()
        self.express.clear()
        self.plan = None
