"""Holds back Ctrl-C while work is done that must not be left half done."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_held: list[Callable[[], Any]] = []  # calls that answer interrupts which are held back
_displaced: Callable[..., Any] | None = None  # inside a block: the handler of Ctrl-C outside of it


@contextmanager
def held_back(always: bool = False) -> Iterator[None]:
    """Ctrl-C in the block is handled at its end, or where the block waits (`answer`); a second one at once.

    The handler that was installed before is called, even if it raises no KeyboardInterrupt. A block has no effect
    inside another block, in another thread (which Python never interrupts), or for a process that is forked inside it.

    Args:
        always: delay a second one too, and inside another block: for code that an exception would break permanently.
    """
    global _displaced
    handler, outer = signal.getsignal(signal.SIGINT), _displaced
    in_main = threading.current_thread() is threading.main_thread()
    if not callable(handler) or not in_main or (outer is not None and not always):
        yield
        return
    came = False

    def hold(number: int, frame: Any) -> None:
        nonlocal came
        if not always:
            signal.signal(signal.SIGINT, handler)
        if not (came and _held):  # one that has been answered does not stand for the next
            _held.append(lambda: handler(number, frame))
        came = True

    if outer is None:
        _held.clear()  # what a second interrupt has left of a block before
    signal.signal(signal.SIGINT, hold)
    try:
        _displaced = handler if outer is None else outer
        yield
    finally:
        _displaced = outer
        signal.signal(signal.SIGINT, handler)
        if came or outer is None:
            answer()


def answer() -> None:
    """Handles a delayed interrupt, if any. A block calls it where it waits for other processes."""
    if _held and threading.current_thread() is threading.main_thread():
        _held.pop()()


def _leave_in_child() -> None:
    global _displaced
    if _displaced is not None:
        signal.signal(signal.SIGINT, _displaced)
    _displaced = None
    _held.clear()


os.register_at_fork(after_in_child=_leave_in_child)
