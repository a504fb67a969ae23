"""Messages between neighbouring stages: each is asked for before it is needed, and nobody waits until one is read.

NCCL runs messages in the order in which they were started, so that two ranks that have asked for one before they send
theirs would wait for each other. There they go through host memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.handle import Handle
from pytagi_ddp.kernels.protocol import ArrayFunctions
from pytagi_ddp.nn.state import Array


class Ring:
    """Memory for so many messages, which are used in turn and grow to the largest."""

    def __init__(self, messages: int, empty: Callable[[int], Array]):
        self._empty = empty
        self._memory: list[Array | None] = [None] * messages
        self._next = 0

    def take(self, shape: tuple[int, ...]) -> tuple[int, Array]:
        """The number of the next memory, and an array there."""
        k, size = self._next, math.prod(shape)
        self._next = (k + 1) % len(self._memory)
        memory = self._memory[k]
        if memory is None or memory.size < size:
            memory = self._memory[k] = self._empty(size)
        return k, memory[:size].reshape(shape)


class Outgoing:
    """Messages to a rank, which are on their way while this one goes on.

    Args:
        group: of both ranks. peer: the other one. name: what they are, for errors.
        messages: how many may be on their way before `send` waits.
    """

    def __init__(self, group: Communicator, peer: int, name: str, messages: int, array: ArrayFunctions):
        self._group, self._peer, self._name, self._array = group, peer, name, array
        self._ring = Ring(messages, _memory(group, array))
        self._handles: dict[int, Handle] = {}

    def send(self, *arrays: Array) -> None:
        """Sends a copy of arrays of one shape."""
        k, buffer = self._ring.take((len(arrays), *arrays[0].shape))
        if k in self._handles:
            self._handles.pop(k).wait()
        for source, target in zip(arrays, buffer, strict=True):
            if type(source) is type(target):
                self._array.copy(source, target)
            else:
                np.copyto(target, self._array.to_host(source))
        self._handles[k] = self._group.start_send(buffer, self._peer, self._name)

    def finish(self) -> None:
        """Returns when all have gone."""
        while self._handles:
            self._handles.popitem()[1].wait()


class Incoming:
    """Messages from a rank, in the order in which it sends them.

    Args:
        group, peer, name: as of `Outgoing`.
        messages: how many stay as they are after they have been taken, until others come in their places.
    """

    def __init__(self, group: Communicator, peer: int, name: str, messages: int, array: ArrayFunctions):
        self._group, self._peer, self._name, self._place = group, peer, name, array.place
        self._ring = Ring(messages + 1, _memory(group, array))
        self._asked: deque[tuple[Handle, Array]] = deque()

    def ask(self, shape: tuple[int, ...]) -> None:
        """Makes room for the next message."""
        _, buffer = self._ring.take(shape)
        self._asked.append((self._group.start_receive(buffer, self._peer, self._name), buffer))

    def take(self) -> Array:
        """The first message that was asked for and has not been taken."""
        handle, buffer = self._asked.popleft()
        handle.wait()
        return self._place(buffer) if isinstance(buffer, np.ndarray) else buffer


def _memory(group: Communicator, array: ArrayFunctions) -> Callable[[int], Array]:
    """What makes the memory of messages."""
    return (lambda size: np.empty(size, np.float32)) if group.backend == "nccl" else array.empty
