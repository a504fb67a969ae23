"""Ranks that are threads of this process and wait for work."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from pytagi_ddp.distributed.backends import use_own_communicators
from pytagi_ddp.distributed.engine.errors import FOLLOWED
from pytagi_ddp.distributed.engine.offspring import keep_from_children
from pytagi_ddp.distributed.engine.threads import ThreadMember, World
from pytagi_ddp.interrupts import held_back


class Crew:
    """Ranks on which `run` calls a function; the threads end with this object, or with `close`.

    Until then the kernels of this process use only 1/world_size of their threads. The number is not changed for every
    call, as that takes longer than a step of a small network.

    Args:
        world_size: number of ranks.
    """

    def __init__(self, world_size: int):
        from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads  # here: an import loads no kernels

        self.world_size = world_size
        self._world = World(world_size)
        self._tasks: list[SimpleQueue] = [SimpleQueue() for _ in range(world_size)]
        self._results: SimpleQueue = SimpleQueue()
        self._ended = ""
        self._at_work = threading.Lock()
        for rank, tasks in enumerate(self._tasks):
            arguments = (self._world, rank, tasks, self._results)
            threading.Thread(target=_serve, args=arguments, name=f"rank {rank}", daemon=True).start()
        before = get_threads()
        set_threads(max(1, before // world_size))
        self.close = weakref.finalize(self, _end, self._tasks, before, get_threads())
        keep_from_children(self)

    def end_in_child(self) -> None:
        """Called in a forked child, in which only the thread exists that has forked it."""
        self._ended = ": it was forked, and threads stay behind; make the network's DataParallel anew, or use its model"
        self.close.detach()

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple]) -> list:
        """Returns what ``function(*arguments[rank])`` gave on every rank, or on the first ones that have arguments.

        Ctrl-C is answered at the end; a second one interrupts the work of the ranks, and ends them.

        Raises:
            RuntimeError: the ranks have ended, or another thread uses them now.
            Exception: what a rank has raised; of several errors the first that is not a consequence of another rank's.
                If ranks were in a collective then, they end.
        """
        if self._ended or not self.close.alive:
            raise RuntimeError(f"the ranks of this process work no longer{self._ended}")
        if not self._at_work.acquire(blocking=False):
            raise RuntimeError("another thread uses the ranks of this process now: only one can at a time")
        with held_back():
            try:
                outcomes = self._outcomes(function, arguments)
            finally:
                self._at_work.release()
            errors = [error for _, _, error in outcomes if error is not None]
            if errors:
                self._go_on_after(errors[0])
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

    def _go_on_after(self, error: BaseException) -> None:
        """Lets the ranks go on after an error, if it did not interrupt a collective."""
        if any(member.operations.broken is not None for member in self._world.departed.values()):
            self._ended = f": {error!r} has cut a collective short; make the network's DataParallel anew"
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
            member.leave()  # whoever waits for this rank hears of it
        results.put((rank, result, error))
        del task, function, arguments, result, error


def _end(tasks: Sequence[SimpleQueue], before: int, during: int) -> None:
    from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads  # here: an import loads no kernels

    if get_threads() == during:  # and nobody has set another number since
        set_threads(before)
    for queue in tasks:
        queue.put(None)
