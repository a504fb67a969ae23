"""The parts of a training step, recorded once and then replayed: launch by launch, or as CUDA graphs with one call.

A replay works on the very memory of the recorded call. Layers keep their buffers as long as the batch size stays, so
the key of a part names whatever else may change: batch size, mode, addresses that come from outside.
"""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from pytagi_ddp import cuda as options
from pytagi_ddp.kernels.cuda.array import SIMULATOR, Arrays, SimulatedArrays, address, cupy, on_device
from pytagi_ddp.kernels.cuda.recorder import Work, is_recording, prepared, recording, replay


class Graphs:
    """The recorded parts of one network's training step, on one GPU.

    A part runs as Python the first time (buffers are made, kernels compiled), is recorded the second time, and
    replayed from then on. As soon as a part comes with another key, all recordings are dropped: what the layers
    remember of their last forward pass, and perhaps their buffers, are no longer what was recorded.

    With `pytagi_ddp.cuda.use_graphs` a recording is a CUDA graph; else, with `replay_launches`, a list of launches and
    copies that are queued one by one. With neither, and while somebody else records, parts just run.
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
        """`function()`, or a replay of what it did for the same key; the result is that of the recorded call.

        Args:
            name: of the part.
            key: what decides on the launches.
            memory: arrays that come from outside the network's own buffers; None stands for one that is not there.
            prepare: not called, as parts are dropped before layers could remember another pass than the last.
            function: queues work on the GPU and does nothing else that a replay would miss.

        Raises:
            RuntimeError: `function` was to be recorded, and reads or sends something (`recorder.meets_host`).
        """
        if is_recording() or not (options.use_graphs or options.replay_launches):
            self.clear()
            return function()
        # A thread has a workspace of its own, in which its launches lie: no other may replay them beside it.
        settings = options.use_graphs, options.allow_tf32, threading.current_thread()
        key = (key, *settings, *(None if a is None else address(a) for a in memory))
        part = self._parts.get(name)
        if part is None or part.key != key:
            if part is not None:
                self.clear()
            self._parts[name] = _Part(key)
            return function()
        with on_device(self._index):
            if part.launch is None:
                part.record(function)
            else:
                part.launch()
        return part.result

    def clear(self) -> None:
        """Forgets all recordings; call when layers change what they launch."""
        self._parts.clear()


class Express:
    """What `kernels.cpu.graph` has for the public calls of small networks; on a GPU the general way serves."""

    one_thread: Any = None

    def offer_forward(self, plan, key, state, out):
        pass

    def forward(self, net, passes, mu_x, var_x, training):
        return None

    def offer_backward(self, plan, key, start, end):
        pass

    def backward(self, net, passes):
        return False

    def offer_step(self, plan, factors, non_finite):
        pass

    def step(self, samples):
        return None


class _Part:
    """One part: its key, and after `record` its result and how to do it again."""

    def __init__(self, key: Hashable):
        self.key = key
        self.result: Any = None
        self.launch: Callable[[], None] | None = None
        self._work: Work = []  # keeps the recorded memory alive

    def record(self, function: Callable[[], Any]) -> None:
        """Does the work of `function`, and keeps it."""
        if options.use_graphs and not SIMULATOR:
            self.launch = self._capture(function)
            self.launch()
            return
        with recording(for_replay=True) as self._work:
            self.result = function()
        self.launch = partial(replay, prepared(self._work))

    def _capture(self, function: Callable[[], Any]) -> Callable[[], None]:
        stream = cupy.cuda.Stream(non_blocking=True)
        with recording(for_replay=True) as self._work, stream, cupy.cuda.using_allocator(_refuse):
            stream.begin_capture()
            try:
                self.result = function()
            finally:
                graph = stream.end_capture()  # also after an error: a stream left capturing is of no use
        return graph.launch


def _refuse(nbytes: int):
    raise RuntimeError(
        f"{nbytes} bytes of GPU memory were asked for while a CUDA graph is captured; the graph would outlive them. "
        "Set pytagi_ddp.cuda.use_graphs = False and report this"
    )
