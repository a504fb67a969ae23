"""Sizes of blocks of threads."""

from pytagi_ddp.kernels.cuda.runtime.compile import SIMULATOR


def block_size(threads: int) -> int:
    """`threads`, but at most 32 in the simulator, whose time is proportional to the number of threads."""
    return min(threads, 32) if SIMULATOR else threads
