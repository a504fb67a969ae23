"""Sizes of blocks of threads."""

from pytagi_ddp.kernels.cuda.compile import SIMULATOR


def block_size(threads: int) -> int:
    """`threads`, or at most 32 in the simulator, where time goes by the thread."""
    return min(threads, 32) if SIMULATOR else threads
