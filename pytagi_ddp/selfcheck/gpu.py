"""Checks an installation on a GPU: every kernel against its CPU counterpart, steps in every way, and NCCL."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from pytagi_ddp import cuda
from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.distributed.engine.launcher import detect_launcher, find_mpirun, load_mpi, mpi_family
from pytagi_ddp.kernels.cuda.runtime import cubins
from pytagi_ddp.selfcheck.examples import TF32, TOLERANCE, WAYS, Example, Results, examples, steps_in_a_way

WORKERS = 16  # processes that compile, at most
PATIENCE = 60  # seconds for two ranks to start, train and end
PROGRAM = "pytagi_ddp.selfcheck.two_ranks"


class Row(NamedTuple):
    """A line of the report.

    Attributes:
        what: name of the check.
        result: "ok", "not tried: ..." or what is wrong.
        error: largest difference from the CPU, relative to the largest number of an array; None: nothing to compare.
        seconds: duration of the check.
    """

    what: str
    result: str
    error: float | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.result != "ok" and not self.result.startswith("not tried")


def check_gpu(device: str, say: Callable[[Row], None] = lambda row: None) -> list[Row]:
    """Runs all checks on one GPU. After a check that fails, which becomes a row like the others, the next one is run.

    Args:
        device: "cuda" or "cuda:<index>". say: is called with each row when it is known.

    Raises:
        RuntimeError: there is no such GPU; the message says why.
    """
    name = cuda.device_name(device)
    index = int(name.removeprefix("cuda:"))
    if not cuda.is_device_available(index):
        raise RuntimeError(cuda.why_not() or f"there are {cuda.get_device_count()} GPUs")
    rows = []
    before = cuda.get_current_device(), cuda.allow_tf32
    cuda.set_device(index)
    cuda.allow_tf32 = False
    try:
        for row in _rows(name, index):
            rows.append(row)
            say(row)
    finally:
        cuda.set_device(before[0])
        cuda.allow_tf32 = before[1]
    return rows


def _rows(name: str, index: int) -> Iterator[Row]:
    from pytagi_ddp.kernels.cuda.runtime.array import compute_capability  # here, because CuPy is loaded only for a GPU

    capability, ran = compute_capability(index), set[str]()
    yield _tried(f"kernels compile for {'.'.join(map(str, capability))}", partial(_compile_all, capability))
    for example in examples():
        yield _tried(example.name, partial(_compare, example, name, example.tolerance, ran))
        if example.tf32 and capability >= (8, 0):
            yield _tried(f"{example.name}, TF32", partial(_compare, example, name, TF32, ran, tf32=True))
    yield _tried("every kernel ran", partial(_nothing_missed, ran, capability))
    yield from _ways(name)
    yield _tried("NCCL, two ranks", _two_ranks)


class Failure(Exception):
    """A check gave a wrong result; `error` is its largest error."""

    def __init__(self, message: str, error: float | None = None):
        super().__init__(message)
        self.error = error


class NotTried(Exception):
    """A check needs something that is missing; the message says what."""


def _tried(what: str, function: Callable[[], float | None]) -> Row:
    """Runs a check and returns its row; `function` returns the largest error."""
    start = time.perf_counter()
    error: float | None = None
    try:
        error, result = function(), "ok"
    except NotTried as reason:
        result = f"not tried: {reason}"
    except Failure as failure:
        result, error = f"FAILED: {failure}", failure.error
    except Exception as problem:
        result = f"FAILED: {type(problem).__name__}: {problem}"
    return Row(what, result, error, time.perf_counter() - start)


# -- kernels --------------------------------------------------------------------------------------------------------


def _kernels(capability: tuple[int, int]) -> dict:
    """All kernels that a GPU of this compute capability can run, by name."""
    package = import_module("pytagi_ddp.kernels.cuda")
    for name in package.__all__:
        getattr(package, name)  # imports it
    registry = import_module("pytagi_ddp.kernels.cuda.runtime.compile").REGISTRY
    return {name: kernel for name, kernel in registry.items() if kernel.min_capability <= capability}


def _compile_all(capability: tuple[int, int]) -> None:
    """Compiles kernels that are not cached yet, in several processes, as one would take minutes."""
    if cubins.folder() is None:
        return  # each kernel compiles when it is first launched
    missing = [
        (name, variant)
        for name, kernel in _kernels(capability).items()
        for variant in kernel.variants()
        if not kernel.is_kept(capability, variant)
    ]
    workers = min(WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if not missing:
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(_compile, capability), missing))


def _compile(capability: tuple[int, int], kernel: tuple[str, tuple[bool, ...]]) -> None:
    """Puts a kernel's code into the cache, where launches find it; runs in a worker process."""
    name, variant = kernel
    _kernels(capability)[name].code(capability, variant)


def _compare(example: Example, device: str, tolerance: float, ran: set[str], tf32: bool = False) -> float:
    """The largest error of an example; `ran` receives the kernels that it launches."""
    from pytagi_ddp.kernels.cuda.runtime.recorder import recording

    expected = example.on("cpu")
    cuda.allow_tf32 = tf32
    try:
        with recording() as work:
            actual = example.on(device)
    finally:
        cuda.allow_tf32 = False
        ran.update(function.__name__ for function, _ in work)
    return _difference(actual, expected, tolerance)


def _difference(actual: Results, expected: Results, tolerance: float) -> float:
    """The largest difference, relative to the largest number of its array.

    Raises:
        Failure: the difference is above `tolerance`; the message names the array.
    """
    worst, place = 0.0, ""
    for name, want in expected.items():
        got = actual[name].reshape(want.shape)
        if want.size:
            error = float(np.abs(got - want).max() / max(np.abs(want).max(), np.finfo(np.float32).tiny))
            if not error <= worst:  # NaN counts as the worst
                worst, place = error, name
    if not worst <= tolerance:
        raise Failure(f"{place!r} differs by {worst:.2g} of its largest number; allowed are {tolerance:.2g}", worst)
    return worst


def _nothing_missed(ran: set[str], capability: tuple[int, int]) -> None:
    if missed := _kernels(capability).keys() - ran:
        raise Failure(f"{len(missed)} did not: {', '.join(sorted(missed))}")


# -- steps and ranks ------------------------------------------------------------------------------------------------


def _ways(device: str) -> Iterator[Row]:
    """Checks that the same steps give the same bits in each of `WAYS`."""
    walked: Results = {}

    def first() -> float:
        walked.update(steps_in_a_way(device, "walked"))
        return _difference(walked, steps_in_a_way("cpu", "walked"), 10 * TOLERANCE)

    def again(way: str) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = steps_in_a_way(device, way)
        differ = [name for name, values in walked.items() if found[name].tobytes() != values.tobytes()]
        if differ or not walked:
            raise Failure(f"other bits than walked, first in {differ[0]!r}" if differ else "nothing to compare with")
        for warning in caught:
            if issubclass(warning.category, RuntimeWarning):
                raise Failure(str(warning.message))

    for way in WAYS:
        yield _tried(f"training steps {way}", first if way == "walked" else partial(again, way))


def _two_ranks() -> float:
    """Checks that two ranks on two GPUs learn the same as one process."""
    if (count := cuda.get_device_count()) < 2:
        raise NotTried(f"there {'is' if count == 1 else 'are'} {count} GPU")
    if not cuda.is_nccl_available():
        raise NotTried("CuPy finds no NCCL")
    if detect_launcher() is not None:
        raise NotTried("this process was started by a launcher of ranks, and cannot start others")
    try:
        mpirun = find_mpirun(mpi_family(load_mpi(None).Get_library_version()))
    except (ImportError, LaunchError) as problem:
        raise NotTried(f"ranks cannot be started: {problem}") from problem
    command = [str(mpirun), "-np", "2", sys.executable, "-m", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Failure((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    error = float(done.stdout.split()[-1])
    if not error <= TOLERANCE:
        raise Failure(f"ranks differ from one process by {error:.2g}; allowed are {TOLERANCE:.2g}", error)
    return error


# -- the report -----------------------------------------------------------------------------------------------------


def table(row: Row) -> str:
    """A row as text."""
    error = "" if row.error is None else f"{row.error:.1e}"
    short = "FAILED" if row.failed else row.result
    return f"{row.what:48}{short:8}{error:>10}{row.seconds:9.2f} s"


def report(device: str, say: Callable[[str], None] = print) -> tuple[int, list[Row]]:
    """Prints each check as it ends, then the failures; returns the exit code and the rows.

    Exit codes: 0: nothing failed; 1: something failed; 2: there is no GPU, and the output says why and what to do.
    """
    reason = cuda.why_not()
    if reason is not None:
        say(f"no GPU to check: {reason}")
        return 2, []
    for line in describe(device):
        say(line)
    say(f"\n{'what':48}{'result':8}{'error':>10}{'time':>11}")
    rows = check_gpu(device, lambda row: say(table(row)))
    failed = [row for row in rows if row.failed]
    for row in failed:
        say(f"\n{row.what}\n    {row.result}")
    seconds = sum(row.seconds for row in rows)
    tried = sum(row.result == "ok" for row in rows)
    say(f"\n{len(failed)} failed, {tried} hold, {len(rows) - tried - len(failed)} not tried, in {seconds:.0f} s")
    say("This GPU does not work as it should." if failed else "This GPU works.")
    return (1 if failed else 0), rows


def describe(device: str) -> Iterator[str]:
    """Lines about the GPU, its driver and libraries."""
    index = int(cuda.device_name(device).removeprefix("cuda:"))
    total, free = cuda.get_device_memory(index)
    yield f"cuda:{index}: {cuda.get_device_properties(index)}, {free / 2**30:.1f} GiB of {total / 2**30:.1f} free"
    try:
        yield f"identity: {cuda.get_device_uuid(index)}"
    except Exception as error:
        yield f"identity: not told ({error})"
    driver = cuda.driver_version()
    yield f"driver: {f'for CUDA {driver // 1000}.{driver % 1000 // 10}' if driver else 'does not tell its version'}"
    yield f"CUDA_VISIBLE_DEVICES: {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}"
