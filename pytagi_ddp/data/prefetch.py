"""Make the next items in a background thread while the current one is used."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import suppress
from queue import Empty, Queue
from typing import TypeVar

T = TypeVar("T")
_END = object()


def prefetch(items: Iterable[T], depth: int) -> Generator[T, None, None]:
    """Yield from `items`, made up to `depth` ahead by one daemon thread.

    The thread starts with the first item asked for and has ended when the generator is exhausted, closed or
    garbage-collected, so a loop left by `break`, an exception or Ctrl-C leaves no thread behind. An exception
    raised by `items` is raised here, with its traceback.

    Raises:
        ValueError: depth < 1.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    return _prefetch(items, depth)


def _prefetch(items: Iterable[T], depth: int) -> Generator[T, None, None]:
    queue: Queue = Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, queue, stop), name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stop.set()
        # The thread puts at most one more item after it was told to stop: an emptied queue has room for it.
        with suppress(Empty):
            while True:
                queue.get_nowait()
        # A garbage collection that happens to run in the thread itself cannot wait for it.
        if thread is not threading.current_thread():
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
