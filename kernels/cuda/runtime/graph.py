"""The parts of a training step, recorded once and then replayed: launch by launch, or as CUDA graphs with one call.

A replay uses the same memory as the recorded call. Layers keep their buffers while the batch size is the same. The key
of a part has all else that may change: batch size, mode, addresses from outside.
"""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from pytagi_ddp import cuda as options
from pytagi_ddp.kernels.cuda.runtime.array import Arrays, address, cupy, on_device
from pytagi_ddp.kernels.cuda.runtime.recorder import Work, is_recording, prepared, recording, replay

keeps_calls = False


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`."""
    return function(*arguments)


class Graphs:
    """The recorded parts of one network's training step, on one GPU.

    A part runs in Python the first time (buffers are made, kernels compiled), is recorded the second time, and replayed
    from then on. If a part comes with another key, all recordings are dropped, because saved values and buffers of
    layers may differ from the recorded ones.

    A recording is a list of launches and copies (`pytagi_ddp.cuda.replay_launches`), which are queued one by one, or
    captured as a CUDA graph and queued by one call (`use_graphs`). Without either option, or within another recording,
    parts run in Python.
    """

    def __init__(self, array: Arrays):
        self._index = array.index
        self.express = Express()
        self.plan = None
        self._parts: dict[str, _Part] = {}

    def run(self, name: str, key: Hashable, memory: tuple, function: Callable[[], Any]) -> Any:
        """Calls `function`, or replays its work for the same key, with the result of the recorded call.

        Args:
            key: all values that the launches depend on.
            memory: arrays outside the buffers of the network; None for an absent one.
            function: only queues work on the GPU, so that it can be replayed.

        Raises:
            RuntimeError: `function` transfers data to or from the host while it is recorded (`refuse_host_transfer`).
            ValueError: `pytagi_ddp.cuda.use_graphs` is neither True nor False.
        """
        graphs = options.use_graphs
        if graphs not in (False, True):
            raise ValueError(f"pytagi_ddp.cuda.use_graphs must be True or False, got {graphs!r}")
        if is_recording() or not (graphs or options.replay_launches):
            self.clear()
            return function()
        # The key includes the thread, because its launches use its own workspace.
        settings = graphs, options.allow_tf32, threading.current_thread()
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
                if graphs and not part.graph:
                    part.become_graph()
                part.launch()
        return part.result

    def clear(self) -> None:
        """Drops all recordings. To be called when the launches of layers change."""
        self._parts.clear()


class Express:
    """The fast path of public calls: on a GPU there is none."""

    one_thread: Any = None

    def forward(self, *_: Any) -> None:
        """None: the general code is used, as with all functions here."""

    backward = step = offer_forward = offer_backward = offer_step = forward


class _Part:
    """One part: its key and, after `record`, its result and the function that replays it.

    Attributes:
        graph: whether `launch` launches a CUDA graph.
    """

    def __init__(self, key: Hashable):
        self.key = key
        self.result: Any = None
        self.launch: Any = None  # a function without arguments
        self.graph = False
        self._work: Work = []  # keeps the recorded memory alive

    def record(self, function: Callable[[], Any]) -> None:
        """Runs `function`, and records the work that it queues."""
        with recording(for_replay=True) as self._work:
            self.result = function()
        self.launch = partial(replay, prepared(self._work))

    def become_graph(self) -> None:
        """Makes `launch` queue the recorded work as a CUDA graph; does not queue it."""
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                self.launch()
            finally:
                graph = stream.end_capture()  # also after an error, because a capturing stream cannot be used
        self.launch, self.graph = graph.launch, True
