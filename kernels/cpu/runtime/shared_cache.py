"""Sharing of compiled loops: one process compiles a loop, and the others wait and load it.

The ranks of a node reach a loop at the same time, and with an empty cache each would compile it. So a process that does
not find a loop in the cache acquires the lock of the loop, looks again, and compiles only if it is still missing. The
operating system releases the lock (`flock` of an open file) when its process ends in any way. Without such locks, every
process compiles, as with Numba alone.
"""

import contextlib
import fcntl
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from pytagi_ddp.files import atomic_write
from pytagi_ddp.interrupts import answer
from pytagi_ddp.kernels.checksummed import read_checksummed, with_checksum

LAST_KNOWN_NUMBA = (0, 68)  # a later version may load in another way
SUFFIX = ".code"  # of files with compiled code
POLL_SECONDS = 0.02  # a loop compiles in 0.1 to 0.6 s
WAIT_SECONDS = 10.0  # then the other process is assumed to be stopped, and this one does not wait any more


class FileLock:
    """A lock between processes of a user. If it is not available, processes continue without it.

    Other users cannot open the file.

    Args:
        path: the locked file; created when needed, never written to or removed.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file: int | None = None

    patience = WAIT_SECONDS  # shared by all locks: 0 after a time-out

    def acquire(self) -> bool:
        """Waits until this process has the lock, and returns whether it has; call `release` in either case.

        Signals are handled while it waits. It returns False after `WAIT_SECONDS`, and from then on at once, and if the
        file cannot be opened or its file system has no locks.
        """
        deadline = time.monotonic() + FileLock.patience
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            os.fchmod(self._file, 0o600)
            while True:
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        FileLock.patience = 0.0
                        return False
                    answer()
                    time.sleep(POLL_SECONDS)
        except OSError:
            return False

    def release(self) -> None:
        """Releases the lock for the next process; does nothing if this process does not have it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)  # closing is not enough if a forked child has the file open
            os.close(self._file)
            self._file = None


class SharedCache(NullCache):
    """Numba's cache of one function: a file with a checksum for each signature, and a lock for compiling.

    Args:
        folder: of the files. Its name depends on the sources of all loops (`compile.cache_folder`), so that names of
            files need not.
    """

    def __init__(self, function: Callable, folder: Path):
        self._name, self._folder = f"{function.__module__}.{function.__qualname__}", folder
        self.lock = FileLock(folder / f"{self._name}.lock")

    def load_overload(self, sig, target_context):
        """The compiled code for a signature; None if this process has to compile it."""
        found = self._load(sig, target_context)
        if found is None and self.lock.acquire():
            found = self._load(sig, target_context)  # compiled by the process that had the lock
        return found

    def _load(self, sig, target_context):
        content = read_checksummed(self._file(sig, target_context))
        if content is None:
            return None
        if numba.version_info.short > LAST_KNOWN_NUMBA:
            target_context.refresh()
        else:  # without initialisation for compiling, which takes 0.15 s per process
            rtsys.initialize(target_context)
        return CompileResult._rebuild(target_context, *pickle.loads(content))

    def save_overload(self, sig, data) -> None:
        """Stores compiled code. If that fails (full disk, read-only folder), the next process compiles again."""
        assert not data.library.has_dynamic_globals  # addresses of this process
        with contextlib.suppress(OSError):
            content = with_checksum(dumps(data._reduce()))
            atomic_write(self._file(sig, data.target_context), content, private=True)

    def _file(self, sig, target_context) -> Path:
        """The file for a signature, on processors like this one, with this Numba and Python, and checks of indices."""
        made_by = numba.__version__, sys.version_info[:2], sys.abiflags, bool(numba.config.BOUNDSCHECK)
        key = repr((sig, *target_context.codegen().magic_tuple(), *made_by))
        return self._folder / f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{SUFFIX}"


def share(dispatcher, folder: Path) -> None:
    """Gives a Numba dispatcher a `SharedCache` in `folder`."""
    dispatcher._cache = shared = SharedCache(dispatcher.py_func, folder)
    compile_or_load = dispatcher.compile

    def compile_once(sig):
        with global_compiler_lock:  # only one thread of this process at a time may use the lock
            try:
                return compile_or_load(sig)
            finally:
                shared.lock.release()

    dispatcher.compile = compile_once
