"""The decorator of every formula."""

import os

from numba import njit
from numba.core.compiler_lock import global_compiler_lock

formula = njit(inline="always")

# A forked process has a copy of the compiler's lock, but no other thread. So a fork waits until no thread compiles.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)
