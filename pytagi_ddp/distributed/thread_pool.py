"""A pool of threads, each of which is a rank."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from pytagi_ddp.distributed.backends import use_own_communicators
from pytagi_ddp.distributed.engine.child_process import keep_from_children
from pytagi_ddp.distributed.engine.errors import FOLLOWED
from pytagi_ddp.distributed.engine.threads import ThreadMember, World
from pytagi_ddp.interrupts import held_back


class ThreadPool:
    """Threads that are ranks. `run` calls a function on each. The threads end with `close`, or with this object.

    While the pool exists, the kernels of each rank use 1/world_size of their threads.
    """

    def __init__(self, world_size: int):
        from pytagi_ddp.kernels.cpu.runtime.threads import Division  # here, so that an import does not load kernels

        self._world = World(world_size)
        self._tasks: list[SimpleQueue] = [SimpleQueue() for _ in range(world_size)]
        self._results: SimpleQueue = SimpleQueue()
        self._ended = ""
        self._lock = threading.Lock()
        for rank, tasks in enumerate(self._tasks):
            arguments = (self._world, rank, tasks, self._results)
            threading.Thread(target=_serve, args=arguments, name=f"rank {rank}", daemon=True).start()
        self.close = weakref.finalize(self, _end, self._tasks, Division(world_size).end)
        keep_from_children(self)

    def end_in_child(self) -> None:
        """Called in a forked child process, which does not have the threads."""
        self._ended = ": this process was forked without them; make a new DataParallel, or use the network in it"
        self.close.detach()

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple]) -> list:
        """Returns the results of ``function(*arguments[rank])`` on every rank, or on the first ones with arguments.

        A first Ctrl-C is raised when all ranks have finished. A second one interrupts the ranks and ends them.
        Of several errors, the first is raised that is not a consequence of another rank's. The ranks end if it
        interrupted a collective.
        """
        if self._ended or not self.close.alive:
            raise RuntimeError(f"the ranks of this process have ended{self._ended}")
        with held_back():
            if not self._lock.acquire(blocking=False):
                raise RuntimeError("another thread uses the ranks of this process now: one thread at a time")
            try:
                outcomes = self._outcomes(function, arguments)
            finally:
                self._lock.release()
            errors = [error for _, _, error in outcomes if error is not None]
            if errors:
                self._continue_after(errors[0])
                raise next((error for error in errors if not isinstance(error, FOLLOWED)), errors[0])
        return [result for _, result, _ in outcomes]

    def _outcomes(self, function: Callable[..., Any], arguments: Sequence[tuple]) -> list[tuple]:
        """(rank, result, error) of each rank that has arguments."""
        try:
            for tasks, given in zip(self._tasks, arguments, strict=False):
                tasks.put((function, given))
            return sorted((self._results.get() for _ in arguments), key=lambda outcome: outcome[0])
        except BaseException:
            self._world.interrupted, self._ended = True, ": they were interrupted"
            self.close()
            raise

    def _continue_after(self, error: BaseException) -> None:
        """Lets the ranks continue after an error, unless it interrupted a collective."""
        if any(member.operations.broken is not None for member in self._world.departed.values()):
            self._ended = f": {error!r} interrupted a collective; make a new DataParallel of the network"
            self.close()
        self._world.departed.clear()


def _serve(world: World, rank: int, tasks: SimpleQueue, results: SimpleQueue) -> None:
    """The thread of a rank."""
    member = ThreadMember(world, rank)
    use_own_communicators()
    while (task := tasks.get()) is not None:
        function, arguments = task
        result, error = None, None
        try:
            result = function(*arguments)
        except BaseException as raised:
            error = raised
            member.leave()
        results.put((rank, result, error))
        del task, function, arguments, result, error


def _end(tasks: Sequence[SimpleQueue], end_division: Callable[[], None]) -> None:
    end_division()
    for queue in tasks:
        queue.put(None)
