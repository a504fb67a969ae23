"""Turns of threads that use one estimator.

A network serves one thread at a time, so the predictions of an estimator take turns. Networks of each thread's own
would cost a new thread 10 ms and their memory, many times a prediction; the kernels use every core as it is.
"""

import os
import threading
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

_turns: WeakKeyDictionary = WeakKeyDictionary()  # estimator -> its lock; a copy or a pickle has one of its own
_guard = threading.Lock()  # of `_turns` and `_held`
_held: list[Any] = []  # locks that a fork has taken


def turn(estimator: object) -> AbstractContextManager[Any]:
    """Inside `with turn(estimator):` there is one thread at a time; the others wait."""
    lock = _turns.get(estimator)
    if lock is None:
        with _guard:
            lock = _turns.setdefault(estimator, threading.RLock())
    return lock


# A forked process has locks and networks as they are at that moment, and none of the other threads. So a fork waits
# until no thread is inside.


def _before_fork() -> None:
    with _guard:
        locks = list(_turns.values())
    for lock in locks:
        lock.acquire()
    _guard.acquire()
    _held.extend(locks)


def _after_fork() -> None:
    for lock in _held:
        lock.release()
    _held.clear()
    _guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
