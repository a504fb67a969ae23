"""Rank programs on MPI ranks whose GPUs are stand-ins: for `tests.mpi.shared.on_ranks(..., several=several)`.

The NCCL engine is the library's own. Only CuPy, which contains NCCL, is a stand-in (`standin`).
"""

from tests.mpi import rank


def several(calls: list[tuple[str, dict]]) -> None:
    """`tests.mpi.rank.several`, each rank with a GPU of its own. A problem of the machine ends the job."""
    from pytagi_ddp.distributed.engine.launcher import detect_launcher
    from tests.cuda.ptx.machine import SHUFFLED, machine
    from tests.cuda.ptx.stand_in import stand_in

    stand_in(detect_launcher().rank)
    machine.order = SHUFFLED
    rank.several(calls, check)


def check() -> None:
    """Raises if the machine has found a problem."""
    if found := problems():
        raise AssertionError("\n".join(found))


def problems() -> list[str]:
    """What the machine has found since this was asked last."""
    import cupy

    from tests.cuda.ptx.machine import machine

    for stream in list(cupy.cuda.streams.values()):
        stream.synchronize()
    found = [str(problem) for problem in machine.problems]
    machine.problems.clear()
    return found
