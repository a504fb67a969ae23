"""Preparation of the next items in a background thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import suppress
from queue import Empty, Queue
from typing import TypeVar

T = TypeVar("T")
_END = object()


def prefetch(items: Iterable[T], depth: int) -> Generator[T, None, None]:
    """Yield from `items`, of which a daemon thread prepares up to `depth`, at least 1, in advance.

    The thread starts with the first item and ends when the generator is exhausted, closed or garbage-collected, also if
    a loop ends by `break`, an exception or Ctrl-C. An exception of `items` is raised here, with its traceback.
    """
    queue: Queue = Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, queue, stop), name="prefetch", daemon=True)
    try:
        thread.start()
        while True:
            item, error = queue.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stop.set()
        # After the request to stop, the thread puts at most one more item, for which an emptied queue has room.
        with suppress(Empty):
            while True:
                queue.get_nowait()
        # At the end of the program the thread stands still, and from Python 3.13 on would be waited for without an end.
        if not sys.is_finalizing():
            with suppress(RuntimeError):  # in a garbage collection of the thread itself, or if it has not started
                thread.join()


def _fill(items: Iterable[T], queue: Queue, stop: threading.Event) -> None:
    try:
        for item in items:
            queue.put((item, None))
            if stop.is_set():
                return
        queue.put((_END, None))
    except BaseException as error:
        queue.put((None, error))
