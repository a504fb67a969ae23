"""Sharing of compiled loops: one process compiles a loop, and the others wait and load it.

The ranks of a node reach a loop at the same time, and with an empty cache each would compile it. So a process that does
not find a loop in the cache acquires the lock of the loop, looks again, and compiles only if it is still missing. The
operating system releases the lock (`flock` of an open file) when its process ends in any way. Without such locks, every
process compiles, as with Numba alone.
"""

import contextlib
import fcntl
import io
import os
import pickle
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys

from pytagi_ddp.files import atomic_write, check_private
from pytagi_ddp.interrupts import answer
from pytagi_ddp.kernels.checksummed import read_checksummed, with_checksum
from pytagi_ddp.warn import warn

LAST_KNOWN_NUMBA = (0, 68)  # a later version may load in another way
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

    def acquire(self, timeout: float | None = None) -> bool:
        """Waits until this process has the lock, and returns whether it has; call `release` in either case.

        Signals are handled while it waits. It returns False after `timeout` seconds (None: after `WAIT_SECONDS`, and
        from then on at once), and if the file cannot be opened or its file system has no locks.
        """
        deadline = time.monotonic() + (FileLock.patience if timeout is None else timeout)
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            os.fchmod(self._file, 0o600)
            while True:
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        FileLock.patience = FileLock.patience if timeout is not None else 0.0
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


class ChecksummedFiles(IndexDataCacheFile):
    """Numba's files of one function, with checksums. Damaged files count as missing.

    The checksum follows the pickle, whose readers ignore it.
    """

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        atomic_write(filepath, with_checksum(content.getvalue()), private=True)

    # As those of Numba, from the bytes that were checked: another user may exchange the file meanwhile, if a folder
    # above it is open to all.
    def _load_index(self) -> dict:
        stream = io.BytesIO(read_checksummed(self._index_path) or pickle.dumps(None))
        if pickle.load(stream) != self._version:
            return {}
        try:
            stamp, overloads = pickle.load(stream)
        except ValueError:  # a Numba whose index has other parts
            return {}
        return overloads if stamp == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        content = read_checksummed(self._data_path(name))
        return None if content is None else pickle.loads(content)


class AnyFolder(FunctionCache._impl_class._locator_classes[0]):
    """Numba's location of the files of a function, without a test whether it is writable, or whether there is a source.

    The name of the folder contains a hash of all sources (`compile.cache_folder`), so that files need no other stamp.
    """

    @classmethod
    def from_function(cls, py_func: Callable, py_file: str) -> "AnyFolder":
        # A frozen application has relative names of sources: the cache does not depend on the working directory.
        located = cls(py_func, os.path.join(os.sep, py_file))
        located.ensure_cache_path()
        return located

    def get_source_stamp(self) -> str:
        return ""

    def ensure_cache_path(self) -> None:
        path = Path(self.get_cache_path())
        for folder in (path.parent, path):
            with contextlib.suppress(OSError):
                folder.mkdir(mode=0o700, exist_ok=True)


class InAnyFolder(FunctionCache._impl_class):
    """Numba's description of compiled code, in `AnyFolder`."""

    _locator_classes = [AnyFolder]  # noqa: RUF012


class SharedCache(FunctionCache):
    """Numba's cache of one function, with a lock for compiling."""

    _impl_class = InAnyFolder

    def __init__(self, function: Callable):
        super().__init__(function)
        self._cache_file = ChecksummedFiles(
            cache_path=self.cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )
        self._trusted = all(map(_is_private, (self.cache_path, Path(self.cache_path).parent)))
        self.lock = FileLock(Path(self.cache_path, f"{function.__module__}.{function.__qualname__}.lock"))

    def load_overload(self, sig, target_context):
        """The compiled code for a signature; None if this process has to compile it."""
        if not self._trusted:
            return None
        found = self._load(sig, target_context)
        if found is None and self.lock.acquire():
            found = self._load(sig, target_context)  # compiled by the process that had the lock
        return found

    def _load(self, sig, target_context):
        """Numba's `load_overload` without initialisation for compiling, which takes 0.15 s per process."""
        if numba.version_info.short > LAST_KNOWN_NUMBA:
            return super().load_overload(sig, target_context)
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig, data) -> None:
        """Stores compiled code. If that fails (full disk, read-only folder), the next process compiles again."""
        if self._trusted:
            with contextlib.suppress(OSError):
                super().save_overload(sig, data)


@cache
def _is_private(folder: str | Path) -> bool:
    """Whether a folder inside the cache is private to this user; warns if it exists and is not."""
    try:
        check_private(folder)
    except PermissionError as error:
        warn(f"every process compiles its loops again: {error}", RuntimeWarning)
        return False
    except OSError:
        return False
    return True


def share(dispatcher, folder: Path) -> None:
    """Gives a Numba dispatcher a `SharedCache` in `folder`."""
    settings = {"CACHE_DIR": str(folder), "CACHE_LOCATOR_CLASSES": ""}
    with global_compiler_lock:  # all threads share these settings
        previous = {name: getattr(numba.config, name) for name in settings if hasattr(numba.config, name)}
        try:
            for name in previous:  # old versions of Numba have no CACHE_LOCATOR_CLASSES
                setattr(numba.config, name, settings[name])
            dispatcher._cache = shared = SharedCache(dispatcher.py_func)
        finally:
            for name, value in previous.items():
                setattr(numba.config, name, value)
    compile_or_load = dispatcher.compile

    def compile_once(sig):
        with global_compiler_lock:  # only one thread of this process at a time may use the lock
            try:
                return compile_or_load(sig)
            finally:
                shared.lock.release()

    dispatcher.compile = compile_once
