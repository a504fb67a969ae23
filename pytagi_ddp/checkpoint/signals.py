"""Stopping of a training on a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from types import FrameType
from typing import Any

# SIGTERM: sent by batch systems before they kill. SIGUSR1: can be requested from them earlier.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopOnSignal:
    """Within `with StopOnSignal(net):`, signals call `net.request_stop()`.

    The next exchange (the next step, or with `every=k` the next merge) shares the request with all ranks, so that
    `net.stop_requested` becomes True with the same step on every rank. Further signals have no effect. The earlier
    handlers are restored at the end of the block.

    Args:
        ddp: the network in training: a `DDPSequential`, `FSDPSequential` or `PipelineSequential`; or a `Trainer`.
        signals: the signals.

    Attributes:
        received: the first signal that this rank got, or None.

    Raises:
        TypeError: another kind of network.
        ValueError: entered in a thread other than the main one, where Python sets no handlers.
        OSError: a signal that cannot be handled, such as SIGKILL.

    Example:
        >>> with StopOnSignal(net):
        ...     for x, labels in loader:
        ...         train_on(x, labels)  # forward, update, backward, net.step()
        ...         step += 1
        ...         if net.stop_requested:
        ...             checkpoints.save(net, TrainingPosition.of(loader, step), settings)
        ...             break
    """

    def __init__(self, ddp: Any, signals: Iterable[int] = STOP_SIGNALS):
        if not callable(getattr(ddp, "request_stop", None)):
            raise TypeError(
                "StopOnSignal takes a DDPSequential (also on one process), FSDPSequential or PipelineSequential, got "
                f"{type(ddp).__name__}"
            )
        self._ddp = ddp
        self._signals = tuple(signals)
        self._former: dict[int, Any] = {}
        self.received: int | None = None

    def __enter__(self) -> StopOnSignal:
        try:
            for number in self._signals:
                self._former[number] = signal.signal(number, self._stop)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._former:
            number, handler = self._former.popitem()
            # None: a handler that was not set from Python, which cannot be restored from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._ddp.request_stop()
        if self.received is None:
            known = number in set(signal.Signals)  # real-time signals have no name
            self.received = signal.Signals(number) if known else number
