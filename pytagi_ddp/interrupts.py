"""Ctrl-C that does not leave half done what belongs together."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_held: list[Callable[[], Any]] = []  # what an interrupt that has come calls, once it may


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C in the block is answered at its end, or where the block waits (`answer`); a second one at once.

    Whoever wants to answer Ctrl-C by something else than KeyboardInterrupt is asked then, too. In other threads, which
    Python never interrupts, the block is like any other.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def hold(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, handler)
        _held.append(lambda: handler(number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        answer()


def answer() -> None:
    """Answers an interrupt that was held back; to be called where a block waits for others."""
    if _held and threading.current_thread() is threading.main_thread():
        _held.pop()()
