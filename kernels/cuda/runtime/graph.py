"""The parts of a training step, recorded once and then replayed: launch by launch, or as CUDA graphs with one call.

A replay uses the same memory as the recorded call. Layers keep their buffers while the batch size is the same. The key
of a part has all else that may change: batch size, mode, addresses from outside.
"""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from pytagi_ddp import cuda as options
from pytagi_ddp.kernels.cuda.runtime.array import Arrays, address, cupy, on_device
from pytagi_ddp.kernels.cuda.runtime.recorder import Work, is_recording, prepared, recording, replay
from pytagi_ddp.warn import warn

keeps_calls = False
_without_graphs: set[int] = set()  # GPUs on which a graph failed under "auto"


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`."""
    return function(*arguments)


class Graphs:
    """The recorded parts of one network's training step, on one GPU.

    A part runs in Python the first time (buffers are made, kernels compiled), is recorded the second time, and replayed
    from then on. If a part comes with another key, all recordings are dropped, because saved values and buffers of
    layers may differ from the recorded ones.

    A recording is a list of launches and copies (`pytagi_ddp.cuda.replay_launches`), which are queued one by one, or
    captured as a CUDA graph and queued by one call (`use_graphs`). With "auto" the first graph of each part and key
    must give the same bits as the list. Without either option, or within another recording, parts run in Python.
    """

    def __init__(self, array: Arrays):
        self._index = array.index
        self.express = Express()
        self.plan = None
        self._parts: dict[str, _Part] = {}
        self._equal: set[Hashable] = set()  # parts whose graphs give the bits of single launches

    def run(self, name: str, key: Hashable, memory: tuple, function: Callable[[], Any]) -> Any:
        """Calls `function`, or replays its work for the same key, with the result of the recorded call.

        Args:
            key: all values that the launches depend on.
            memory: arrays outside the buffers of the network; None for an absent one.
            function: only queues work on the GPU, so that it can be replayed.

        Raises:
            RuntimeError: `function` transfers data to or from the host while it is recorded (`refuse_host_transfer`).
            ValueError: `pytagi_ddp.cuda.use_graphs` is not one of its three values.
        """
        graphs = options.use_graphs
        if graphs not in (False, True, "auto"):
            raise ValueError(f'pytagi_ddp.cuda.use_graphs must be False, True or "auto", got {graphs!r}')
        if is_recording() or not (graphs or options.replay_launches):
            self.clear()
            return function()
        # The key includes the thread, because its launches use its own workspace.
        settings = graphs, options.allow_tf32, threading.current_thread()
        what = name, key, options.allow_tf32
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
            elif part.graph or not graphs or self._index in _without_graphs:
                part.launch()
            elif graphs == "auto" and what not in self._equal:
                self._compare(part, what)
            else:
                part.become_graph()
                part.launch()
        return part.result

    def _compare(self, part: "_Part", what: Hashable) -> None:
        """Runs a part once. If a graph gives the same bits, it is used from now on; else this GPU uses none."""
        error = part.try_graph()
        if error is None:
            self._equal.add(what)
            return
        _without_graphs.add(self._index)
        reason = str(error) or type(error).__name__
        message = f"cuda:{self._index}: no CUDA graphs, launches are replayed one by one instead ({reason})"
        warn(message, RuntimeWarning)

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

    def try_graph(self) -> Exception | None:
        """Runs the work once, and becomes a graph if that gives the same bits; otherwise returns the reason as an
        error.

        The work is queued launch by launch and its results are read; then its memory is restored, and the graph is
        launched. In both cases the memory has the results of single launches afterwards. It takes two copies of the
        memory on the host.
        """
        replayed = self.launch
        try:
            self.become_graph()
            captured = self.launch
            before = self._read()
        except Exception as error:
            self.launch, self.graph = replayed, False
            replayed()
            return error
        replayed()
        after = self._read()
        try:
            self._write(before)
            captured()
            differ = sum(not np.array_equal(new, old) for new, old in zip(self._read(), after, strict=True))
            if not differ:
                return None
            raise RuntimeError(f"{differ} of {len(after)} arrays have other bits than after single launches")
        except Exception as error:
            self.launch, self.graph = replayed, False
            self._write(after)
            return error

    def _memory(self) -> list:
        """All arrays that the work reads or writes, each once."""
        found = {}
        for _, arguments in self._work:
            for a in arguments:
                for one in a if isinstance(a, list) else [a]:
                    if isinstance(one, cupy.ndarray) and one.size:
                        found[address(one), one.nbytes] = one
        return list(found.values())

    def _read(self) -> list[np.ndarray]:
        """Contents of the arrays of `_memory`, as bytes, so that NaN equals NaN."""
        return [a.get().reshape(-1).view(np.uint8) for a in self._memory()]

    def _write(self, contents: list[np.ndarray]) -> None:
        for a, values in zip(self._memory(), contents, strict=True):
            a.data.copy_from_host_async(values.ctypes.data, a.nbytes)
        cupy.cuda.get_current_stream().synchronize()  # `values` is pageable and may be freed after this function
