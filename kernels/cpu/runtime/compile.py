"""Compilation of CPU loops, and the cache of compiled code.

Numba's cache detects a change in the file of a kernel, but not in a formula that the kernel imports. So the name of the
cache folder contains a hash of every source file under `kernels/`: after an edit of any of them, all loops are compiled
again. Without source files, it is a hash of the `.pyc` files, or else of the version and of when the program was made.
Processes that start together share the compilation (see `shared_cache`).
"""

import errno
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial, update_wrapper
from pathlib import Path
from typing import Any

import numba
import numpy as np
import platformdirs

from pytagi_ddp._version import version
from pytagi_ddp.files import check_private
from pytagi_ddp.interrupts import held_back
from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.shapes import Shapes
from pytagi_ddp.kernels.cpu.runtime.shared_cache import SUFFIX, share
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.kernels.cpu.runtime.waiting import ADAPTED, describe
from pytagi_ddp.warn import warn

_replay = load("runtime._replay")
if describe() == ADAPTED:
    _replay.watch_cores()
call, current, flushed, run_loop = _replay.call, _replay.current, _replay.flushed, _replay.run_loop
FASTMATH = {"contract", "arcp", "nsz"}  # never "nnan": NaN marks a missing observation
PARALLEL_MIN = 32_768  # elements from which several threads are faster
UNIT = 64  # numbers: threads share large arrays in these units, so that the same numbers are computed by vectors


def _source_hash() -> str:
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[2]
    files = sorted(root.rglob("*.py")) or sorted(root.rglob("*.pyc"))
    for path in files:
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    if not files:  # a frozen application: modules are in the program, or beside it
        program = os.stat(sys.executable)
        digest.update(f"{version()} {program.st_size} {program.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


@cache
def cache_folder() -> Path | None:
    """The folder of this source tree's compiled loops, or None, with a warning, if there is none.

    It is below `$NUMBA_CACHE_DIR`, or else the user's cache directory, and private to this user (mode 0700). A folder
    to which another user except root could write is not used, because its code would be executed. A folder with
    compiled loops may be read-only, as in the image of a container; other loops are then not stored.
    """
    folder = None
    try:
        base = os.environ.get("NUMBA_CACHE_DIR") or _user_folder()
        folder = Path(base).absolute() / f"kernels-{_source_hash()}"  # the working directory may change
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        check_private(folder)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError) as error:
        if folder is not None and _may_be_read(folder):
            return folder
        warn(
            f"there is no place to keep compiled loops ({error}), so that every process compiles them again: set "
            f"NUMBA_CACHE_DIR to a folder that you, and nobody else, may write to{_hint(folder, error)}",
            RuntimeWarning,
        )
        return None


def _hint(folder: Path | None, error: Exception) -> str:
    """What its owner can do if the cache is there and cannot be read."""
    if folder is None or getattr(error, "errno", None) != errno.EACCES:
        return ""
    present = filter(os.path.isdir, (folder.parent, folder))
    if all(os.access(path, os.R_OK | os.X_OK) for path in present):
        return ""
    return f", or, if it was filled for all users, `chmod -R a+rX {folder.parent}` as its owner"


def _may_be_read(folder: Path) -> bool:
    """Whether the folder holds compiled loops that can be trusted."""
    try:
        check_private(folder)
        return any(folder.glob(f"*{SUFFIX}"))
    except OSError:
        return False


def _user_folder() -> str:
    folder = platformdirs.user_cache_dir("pytagi_ddp")
    if folder.startswith("~"):  # not every version of platformdirs checks this
        raise RuntimeError("this user has no home directory")
    return folder


def _jit(function: Callable, fastmath: set[str], apart: bool) -> Callable:
    kept = function.__module__.startswith("pytagi_ddp.kernels.")  # the folder's name depends on no other sources
    return _compiled(function, fastmath, apart, cache_folder() if kept else None)


def inner(function: Callable, fastmath: set[str] = FASTMATH, apart: bool = False) -> Callable:
    """Compiles a function for loops to call. Options are those of `loop`; the code is not cached by itself.

    LLVM inlines it. Otherwise the process that compiles a loop would call the code of the function's own module, and
    a process that loads the loop would call the copy in the loop's module, which may round differently.
    """
    return _compiled(function, fastmath, apart, forceinline=True)


def _compiled(
    function: Callable, fastmath: set[str], apart: bool, folder: Path | None = None, **options: bool
) -> Callable:
    compiled = numba.njit(error_model="numpy", fastmath=fastmath, nogil=True, **options)(function)
    if not numba.config.DISABLE_JIT:
        if folder is not None:
            share(compiled, folder)
        # After an exception in between, modules of LLVM would be freed twice, or locks would stay taken.
        compiled.compile = held_back(always=True)(compiled.compile)
        if apart:
            compiled._compiler._customize_flags = _without_aliases
    return compiled


def _without_aliases(flags: Any) -> Any:
    flags.noalias = True
    return flags


def _kind(argument: Any) -> Any:
    """What decides for which type Numba compiles."""
    if isinstance(argument, np.ndarray):
        return argument.dtype.num, argument.ndim, argument.flags.num
    return type(argument)


@inner
def portion(n, thread, threads):
    """The first of n iterations that are those of a thread, and their number.

    A loop adds the first one to each number (`i = base + each`). Of a loop that begins there, LLVM would not know that
    no index is negative, and it would not vectorise it.
    """
    unit = UNIT if n >= PARALLEL_MIN else 1
    units = (n + unit - 1) // unit
    first = max(units * thread // threads * unit, 0)
    return first, min(units * (thread + 1) // threads * unit, n) - first


def loop(
    shapes: str,
    fits: Callable[[Any], bool] | None = None,
    fastmath: set[str] = FASTMATH,
    apart: bool = False,
    flush: bool = True,
) -> Callable[[Callable], Any]:
    """Compiles a loop, when it is first needed. Only a loop without `flush` may return a value.

    If its first parameters are `thread` and `threads`, several threads call it at once for large arrays (the first one
    decides), each with its number, and it computes the iterations that `portion` says.

    Args:
        shapes, fits: shapes of the other arguments, see `Shapes`.
        fastmath: transformations of sums and products that the compiler may apply, as in `numba.njit`. With none of
            them, and without `flush`, a loop has the same bits on every machine.
        apart: whether no two arrays of a call share memory. Loops that write several arrays are only vectorised with
            this.
        flush: whether subnormal numbers count as zero (flush.h).
    """

    def decorate(function: Callable) -> Any:
        compiled = cache(partial(_jit, function, fastmath=fastmath, apart=apart))
        whole = (0, 1) if function.__code__.co_varnames[:2] == ("thread", "threads") else ()
        expected = Shapes(function, shapes, fits, len(whole))
        entries: dict[tuple, tuple[int, int] | None] = {}  # by the kinds of arguments

        def run(*arguments):
            expected.check(arguments)
            threads = get_threads() if whole and arguments[0].size >= PARALLEL_MIN else 1
            if (threads > 1 or current() is not None) and (found := entry(arguments)) is not None:
                run_loop(*found, arguments, threads, flush)
            elif flush:
                call(flushed, compiled(), 1, (*whole, *arguments))
            else:
                return call(compiled(), *whole, *arguments)
            return None

        def entry(arguments):
            kinds = tuple([_kind(argument) for argument in arguments])
            if kinds not in entries:
                from pytagi_ddp.kernels.cpu.runtime.entries import entry_of  # here, as one thread rarely needs it

                entries[kinds] = entry_of(compiled(), whole, arguments)
            return entries[kinds]

        wrapped: Any = update_wrapper(run, function)
        wrapped.entry, wrapped.shapes = entry, expected
        return wrapped

    return decorate
