"""Locks of estimators.

Only one thread at a time may use a network, so each estimator has a lock for its predictions. A copy of the network for
each thread would cost 10 ms, many times a prediction, and memory. The kernels use all cores anyway.
"""

import os
import threading
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

import pytagi_ddp.kernels.formulas.formula  # noqa: F401  # a fork acquires the lock of its compiler after those here

_locks: WeakKeyDictionary = WeakKeyDictionary()  # estimator -> its lock; a copy or a pickle has its own
_guard = threading.Lock()  # of `_locks` and `_held`
_held: list[Any] = []  # locks that a fork has acquired


def lock_of(estimator: object) -> AbstractContextManager[Any]:
    """The lock of an estimator. Inside `with lock_of(estimator):` there is one thread at a time; the others wait."""
    lock = _locks.get(estimator)
    if lock is None:
        with _guard:
            lock = _locks.setdefault(estimator, threading.RLock())
    return lock


# A forked process has copies of locks and networks, but no other thread. So a fork waits until no thread holds a lock.


def _before_fork() -> None:
    with _guard:
        locks = list(_locks.values())
    for lock in locks:
        lock.acquire()
    _guard.acquire()
    _held.extend(locks)


def _after_fork() -> None:
    for lock in _held:
        lock.release()
    _held.clear()
    _guard.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
