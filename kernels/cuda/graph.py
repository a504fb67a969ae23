"""CUDA graphs: the launches of a part of a training step, captured once and then replayed with one call.

What a graph replays works on the very memory of the captured call. Layers keep their buffers as long as the batch
size stays, so the key of a part names whatever else may change: batch size, mode, addresses that come from outside.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from pytagi_ddp import cuda as options
from pytagi_ddp.kernels.cuda.array import SIMULATOR, Arrays, SimulatedArrays, address, cupy, on_device
from pytagi_ddp.kernels.cuda.recorder import Work, recording, replay


class Graphs:
    """The captured parts of one network's training step, on one GPU.

    A part runs as Python the first time (buffers are made, kernels compiled), is captured the second time, and
    replayed from then on. As soon as a part comes with another key, all graphs are dropped: what the layers remember
    of their last forward pass, and perhaps their buffers, are no longer what was captured.

    Does nothing but call the part while `pytagi_ddp.cuda.use_graphs` is False.
    """

    def __init__(self, array: Arrays | SimulatedArrays):
        self._index = array.index
        self.express = Express()
        self.plan = None
        self._parts: dict[str, _Part] = {}

    def run(
        self,
        name: str,
        key: Hashable,
        memory: tuple,
        function: Callable[[], Any],
        prepare: Callable[[], None] | None = None,
    ) -> Any:
        """`function()`, or a replay of what it did for the same key; the result is that of the captured call.

        Args:
            name: of the part.
            key: what decides on the launches.
            memory: arrays that come from outside the network's own buffers; None stands for one that is not there.
            prepare: not called, as parts are dropped before layers could remember another pass than the last.
            function: queues work on the GPU and does nothing else that a replay would miss.
        """
        if not options.use_graphs:
            self._parts.clear()
            return function()
        key = (key, options.allow_tf32, *(None if a is None else address(a) for a in memory))
        part = self._parts.get(name)
        if part is None or part.key != key:
            if part is not None:
                self._parts.clear()
            self._parts[name] = _Part(key)
            return function()
        with on_device(self._index):
            if part.launch is None:
                part.capture(function)
                if SIMULATOR:  # there, recording is doing
                    return part.result
            part.launch()
        return part.result

    def clear(self) -> None:
        """Forgets all graphs; call when layers change what they launch."""
        self._parts.clear()


class Express:
    """What `kernels.cpu.graph` has for the public calls of small networks; on a GPU the general way serves."""

    def offer_forward(self, plan, key, state, out):
        pass

    def forward(self, net, mu_x, var_x, training):
        return None

    def offer_backward(self, plan, key, start, end):
        pass

    def backward(self, net):
        return False

    def offer_step(self, plan, factors, non_finite):
        pass

    def step(self, cap):
        return None


class _Part:
    """One part: its key, and after `capture` its result and how to launch it."""

    def __init__(self, key: Hashable):
        self.key = key
        self.result: Any = None
        self.launch: Callable[[], None] | None = None
        self._work: Work = []  # keeps the captured memory alive

    def capture(self, function: Callable[[], Any]) -> None:
        if SIMULATOR:
            with recording() as self._work:
                self.result = function()
            self.launch = partial(replay, self._work)
            return
        stream = cupy.cuda.Stream(non_blocking=True)
        with recording() as self._work, stream, cupy.cuda.using_allocator(_refuse):
            stream.begin_capture()
            try:
                self.result = function()
            finally:
                graph = stream.end_capture()  # also after an error: a stream left capturing is of no use
        self.launch = graph.launch


def _refuse(nbytes: int):
    raise RuntimeError(
        f"{nbytes} bytes of GPU memory were asked for while a CUDA graph is captured; the graph would outlive them. "
        "Set pytagi_ddp.cuda.use_graphs = False and report this"
    )
