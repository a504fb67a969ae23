"""The engine for one process."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytagi_ddp.distributed.engine.handle import FinishedWork, Work
from pytagi_ddp.distributed.engine.interface import Communicator
from pytagi_ddp.distributed.engine.staging import copy


class SerialCommunicator(Communicator):
    """A single process, without MPI."""

    backend = "serial"

    def __init__(self) -> None:
        super().__init__(rank=0, world_size=1, local_rank=0, local_world_size=1)

    def _all_reduce(self, buffer: np.ndarray, op: str) -> Work:
        return FinishedWork()

    def _reduce(self, buffer: np.ndarray, op: str, root: int) -> None:
        pass

    def _broadcast(self, buffer: np.ndarray, root: int) -> Work:
        return FinishedWork()

    def _reduce_scatter(self, send: np.ndarray, receive: np.ndarray, op: str) -> Work:
        copy(send, receive)
        return FinishedWork()

    def _all_gather(self, send: np.ndarray, receive: np.ndarray) -> Work:
        copy(send, receive)
        return FinishedWork()

    def _all_to_all(self, send: np.ndarray, receive: np.ndarray) -> None:
        copy(send, receive)

    def _send(self, array: np.ndarray, peer: int) -> Work:
        raise AssertionError("there is no peer")

    _receive = _send

    def _split(self, color: int | None, key: int | None) -> SerialCommunicator | None:
        return None if color is None else SerialCommunicator()

    def _broadcast_object(self, obj: Any, root: int) -> Any:
        return obj

    def _all_gather_object(self, obj: Any, channel: str = "gather") -> list:
        return [obj]

    def _barrier(self, timeout: float | None) -> None:
        pass
