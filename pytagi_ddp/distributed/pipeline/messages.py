"""Messages between neighbouring stages. Receives start before the message is needed, and sends do not wait.

NCCL runs messages in the order in which they were started, so two ranks that both start to receive before they send
would wait for each other. With NCCL, messages therefore go through host memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.engine.handle import Handle
from pytagi_ddp.kernels.protocol import ArrayFunctions
from pytagi_ddp.nn.core.state import Array


class RingBuffer:
    """Buffers for messages, used in turn; each grows to the largest message."""

    def __init__(self, messages: int, empty: Callable[[int], Array]):
        self._empty = empty
        self._memory: list[Array | None] = [None] * messages
        self._next = 0

    def take(self, shape: tuple[int, ...]) -> tuple[int, Array]:
        """The number of the next buffer, and an array in it."""
        k, size = self._next, math.prod(shape)
        self._next = (k + 1) % len(self._memory)
        memory = self._memory[k]
        if memory is None or memory.size < size:
            memory = self._memory[k] = self._empty(size)
        return k, memory[:size].reshape(shape)


class SendQueue:
    """Messages to another rank, sent in the background.

    Args:
        group: a group of both ranks. peer: the other rank. name: a description of the messages, for errors.
        messages: number of messages in flight before `send` waits.
    """

    def __init__(self, group: Communicator, peer: int, name: str, messages: int, array: ArrayFunctions):
        self._group, self._peer, self._name, self._array = group, peer, name, array
        self._buffers = RingBuffer(messages, _memory(group, array))
        self._handles: dict[int, Handle] = {}

    def send(self, *arrays: Array) -> None:
        """Sends a copy of arrays of one shape."""
        k, buffer = self._buffers.take((len(arrays), *arrays[0].shape))
        if k in self._handles:
            self._handles.pop(k).wait()
        for source, target in zip(arrays, buffer, strict=True):
            if type(source) is type(target):
                self._array.copy(source, target)
            else:
                np.copyto(target, self._array.to_host(source))
        self._handles[k] = self._group.start_send(buffer, self._peer, self._name)

    def finish(self) -> None:
        """Returns when all messages have been sent."""
        while self._handles:
            self._handles.popitem()[1].wait()


class ReceiveQueue:
    """Messages from another rank, in their order.

    Args:
        messages: number of the last messages that stay in memory. The others are as in `SendQueue`.
    """

    def __init__(self, group: Communicator, peer: int, name: str, messages: int, array: ArrayFunctions):
        self._group, self._peer, self._name, self._place = group, peer, name, array.place
        self._buffers = RingBuffer(messages + 1, _memory(group, array))
        self._asked: deque[tuple[Handle, Array]] = deque()

    def ask(self, shape: tuple[int, ...]) -> None:
        """Starts to receive the next message, of this shape."""
        _, buffer = self._buffers.take(shape)
        self._asked.append((self._group.start_receive(buffer, self._peer, self._name), buffer))

    def take(self) -> Array:
        """The first message that `ask` has requested and `take` has not returned."""
        handle, buffer = self._asked.popleft()
        handle.wait()
        return self._place(buffer) if isinstance(buffer, np.ndarray) else buffer


def _memory(group: Communicator, array: ArrayFunctions) -> Callable[[int], Array]:
    """The function that allocates the memory of messages."""
    return (lambda size: np.empty(size, np.float32)) if group.backend == "nccl" else array.empty
