"""Ranks as threads of this process: a job without a launcher."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pytagi_ddp.distributed.backends import use_own_communicators
from pytagi_ddp.distributed.engine.errors import FOLLOWED
from pytagi_ddp.distributed.engine.threads import ThreadMember, World
from pytagi_ddp.nn.core.init import use_own_generator
from pytagi_ddp.validate import as_integers

Result = TypeVar("Result")


def run_threads(program: Callable[..., Result], world_size: int, *arguments: Any) -> list[Result]:
    """Runs ``program(*arguments)`` on `world_size` ranks, each a thread, and returns their results in order.

    Inside, `pytagi_ddp.distributed` works as under mpirun, with the same bits: `rank()`, `DDPSequential`, samplers,
    checkpoints. Each rank draws parameters from a copy of this thread's generator. The ranks share the threads of the
    kernels (`set_threads`).

        >>> from pytagi_ddp.distributed import initialize, run_threads
        >>> def program():
        ...     return initialize().all_gather_object("a rank")
        >>> run_threads(program, 2)
        [['a rank', 'a rank'], ['a rank', 'a rank']]

    It is for notebooks, tests and several GPUs in one program. Ranks of one process share Python's interpreter lock, so
    that small networks do not run faster; for many cores, start processes (`python -m pytagi_ddp.launch`).

    Args:
        program: called on every rank.
        world_size: number of ranks.

    Raises:
        ValueError: fewer than one rank.
        Exception: an error of a rank; of several, the first that is not a consequence of another rank's.
    """
    from pytagi_ddp.kernels.cpu.runtime.threads import Division  # here: an import loads no kernels

    (ranks,) = as_integers("run_threads", 1, world_size=world_size)
    world = World(ranks)
    results: list[Any] = [None] * ranks
    errors: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        member = ThreadMember(world, rank)
        use_own_communicators()
        use_own_generator()
        try:
            results[rank] = program(*arguments)
            member.check_end()
        except BaseException as error:
            errors.append((rank, error))
        finally:
            member.leave()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(ranks)]
    division = Division(ranks)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        world.interrupted = True  # ends the waiting of all ranks
        raise
    finally:
        division.end(undo=True)
    if errors:
        _, error = next((e for e in errors if not isinstance(e[1], FOLLOWED)), errors[0])
        raise error
    return results
