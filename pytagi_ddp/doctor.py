"""Checks this machine for pytagi_ddp, and lists what to install if something is missing.

``python -m pytagi_ddp.doctor`` prints one line per finding. The exit code is 0 if a run on the CPU would work, else 1.
It is also 1 if MPI is installed and its ranks do not start. Libraries that could crash or hang (MPI, CuPy) are checked
in a separate process.

``python -m pytagi_ddp.doctor --gpu`` tests the GPU instead: every kernel is compared with that of the CPU, and whole
training steps, TF32 and NCCL are tried. It exits with 0 if all tests pass, 1 if one fails, and 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from pytagi_ddp import cuda
from pytagi_ddp.blas import blas_in_use
from pytagi_ddp.distributed.engine import shared_memory
from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.distributed.engine.launcher import (
    MPICH_LIKE,
    check_launcher,
    detect_launcher,
    find_mpirun,
    how_to_get_mpi,
    mpi_family,
    mpirun_version,
    short_version,
)
from pytagi_ddp.text import first_sentence


class Finding(NamedTuple):
    """One line of the report: topic, what was found, what to do about it (if anything), and what does not work so.

    needed: no run does. needed_by_ranks: a run of several ranks does not.
    """

    topic: str
    text: str
    advice: str = ""
    needed: bool = False
    needed_by_ranks: bool = False


def examine() -> list[Finding]:
    """Makes all checks, in the order of the report. A check that raises an error becomes a finding, too."""
    findings: list[Finding] = []
    with contextlib.suppress(ImportError):  # imported first, as in a program: this decides how threads wait
        import_module("pytagi_ddp.kernels.cpu.runtime.threads")
    for check in (_python, _numerics, _products, _kernels, _threads, _mpi, _shared_memory, _gpus):
        try:
            findings += check()
        except Exception as error:
            findings.append(Finding(check.__name__.strip("_"), f"cannot tell: {error!r}"))
    return findings


def _python() -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()} ({sys.executable}), {platform.platform()}")


def _numerics() -> Iterator[Finding]:
    from threadpoolctl import threadpool_info

    for name in ("numpy", "scipy", "numba"):
        try:
            module = __import__(name + ".linalg" if name == "scipy" else name)
        except Exception as error:
            yield Finding(name, f"does not import: {error}", f"pip install --force-reinstall {name}", needed=True)
            continue
        text = module.__version__
        for pool in threadpool_info():
            if pool["user_api"] == "blas" and f"{name}.libs" in pool["filepath"]:
                text += f", BLAS {pool['internal_api']} {pool['version']} ({pool.get('architecture', 'unknown core')})"
        yield Finding(name, text)


def _products() -> Iterator[Finding]:
    blas = blas_in_use()
    yield Finding("Products", str(blas), blas.advice)


def _kernels() -> Iterator[Finding]:
    try:
        threads = import_module("pytagi_ddp.kernels.cpu").threads
        blas = import_module("pytagi_ddp.kernels.cpu.products._blas")
        if blas.has_openmp:
            amx = blas.best_way() == blas.Way.AMX
            yield Finding("CPU kernels", "built; AMX for large products" if amx else "built")
        else:
            yield Finding("CPU kernels", "built without OpenMP: one thread", threads.WITHOUT_OPENMP)
    except Exception as error:
        yield Finding("CPU kernels", "do not load", str(error), needed=True)


def _threads() -> Iterator[Finding]:
    import numba  # here, as the next ones: the doctor must start if these are not built

    from pytagi_ddp.kernels.cpu.runtime import shared_cache, threads, waiting

    names = ("PYTAGI_DDP_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    settings = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ) or "no variable set"
    yield Finding("Cores", f"{threads.usable_cores()} usable of {os.cpu_count()}")
    count = 1 if threads.why_one() else threads.default_threads()
    advice = ""
    if numba.version_info.short > shared_cache.LAST_KNOWN_NUMBA:
        major, minor = shared_cache.LAST_KNOWN_NUMBA
        advice = f"Numba's loops use one; for more: pip install 'numba<{major}.{minor + 1}'"
    yield Finding("Threads", f"{count} per rank here ({settings})", advice)
    yield Finding("Threads wait", waiting.describe())


def _mpi() -> Iterator[Finding]:
    advice = f"{how_to_get_mpi(detect_launcher())}   (for more than one rank)"
    try:
        yield Finding("mpi4py", importlib.metadata.version("mpi4py"))
    except importlib.metadata.PackageNotFoundError:
        yield Finding("mpi4py", "not installed", advice)
        return
    library, error = _mpi_library()
    if not library:
        yield Finding("MPI library", f"does not load: {error}", advice, needed_by_ranks=True)
        return
    yield Finding("MPI library", short_version(library))
    yield from _launcher(library)


@functools.cache
def _mpi_library() -> tuple[str, str]:
    """The version text of the MPI library that mpi4py loads; or "", and why there is none."""
    code = "from pytagi_ddp.distributed.engine.launcher import load_mpi; print(load_mpi(None).Get_library_version())"
    return _ask([sys.executable, "-c", code])


def _launcher(library: str) -> Iterator[Finding]:
    launch = detect_launcher()
    if launch is None:
        yield Finding("Ranks", "not started by a launcher: 1 rank")
    else:
        ranks = f"rank {launch.rank} of {launch.world_size or 'unknown'}, started by {launch.launcher}"
        try:
            check_launcher(launch, library)
            yield Finding("Ranks", ranks)
        except LaunchError as error:
            yield Finding("Ranks", f"{ranks}, which does not fit", str(error), needed_by_ranks=True)
    family = mpi_family(library)
    on_path = shutil.which("mpirun")
    belongs = mpi_family(mpirun_version(on_path)) if on_path else "none"
    try:
        right = find_mpirun(family)
    except LaunchError as error:
        yield Finding("mpirun", "none that belongs to this MPI library", str(error))
        return
    yield Finding("mpirun", f"{right} belongs to {family}")
    if on_path is None or belongs != family:
        text = "none" if on_path is None else f"{on_path} belongs to {belongs}, not to {family}"
        yield Finding("mpirun on PATH", text, f"start with {right}, or with python -m pytagi_ddp.launch -np 2 ...")
    if launch is None:
        yield _trial(str(right))


def _trial(mpirun: str) -> Finding:
    code = (
        "import numpy as np; from pytagi_ddp.distributed.communicator import create_communicator; "
        "c = create_communicator('mpi', timeout=20); x = np.ones(1); c.all_reduce(x); c.rank or print(int(x[0]))"
    )
    answer, error = _ask([mpirun, "-np", "2", sys.executable, "-c", code])
    if answer.split()[-1:] == ["2"]:  # libraries below MPI may have something to say before
        return Finding("Trial", "2 ranks start, add and end")
    text = f"2 ranks do not work together: {answer.strip() or error}"
    return Finding("Trial", text, _how_to_start(error), needed_by_ranks=True)


# Cases that Open MPI's mpirun refuses, and the settings that allow them.
_REFUSALS = {
    "run as root": "run as another user; or, as in a container that has only root: export OMPI_ALLOW_RUN_AS_ROOT=1 "
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "not enough slots": "there are fewer cores here than ranks: start with mpirun --oversubscribe (Open MPI 5: "
    "--map-by :OVERSUBSCRIBE)",
}


def _how_to_start(error: str) -> str:
    """What to do about the error of an mpirun; the error itself if that is not known."""
    return next((advice for sign, advice in _REFUSALS.items() if sign in error), error)


def _shared_memory() -> Iterator[Finding]:
    free = shared_memory.free_bytes()
    if free is None:
        if sys.platform == "linux":
            yield Finding(
                "/dev/shm", "none, so that ranks on one node cannot exchange data", shared_memory.HOW_TO_MOUNT
            )
        return
    ranks, text, advice = os.cpu_count() or 1, f"{free / 1e6:.0f} MB free", ""
    family = mpi_family(_mpi_library()[0])
    if family in MPICH_LIKE:
        required = shared_memory.required_bytes(ranks)
        text += f"; {family} needs {required / 1e6:.0f} MB for {ranks} ranks on this node"
        if free < required:
            advice = "give the container more (docker run --shm-size=256m), or use fewer ranks"
    yield Finding("/dev/shm", text, advice)
    if dead := shared_memory.leftovers():
        size = sum(file.stat().st_size for file in dead) / 1e6
        advice = shlex.join(["rm", *map(str, dead)])
        yield Finding("/dev/shm", f"{len(dead)} files of dead MPI jobs, {size:.0f} MB", advice)


def _gpus() -> Iterator[Finding]:
    gpus = _ask(["nvidia-smi", "-L"])[0].splitlines() if shutil.which("nvidia-smi") else []
    yield Finding("GPUs", "; ".join(line.partition(" (UUID")[0].strip() for line in gpus) or "no NVIDIA GPU")
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        yield Finding("GPUs to use", f"CUDA_VISIBLE_DEVICES={visible}")
    extra = cuda.extra_for(cuda.driver_version() or 0)
    if importlib.util.find_spec("cupy") is None:
        advice = f"pip install 'pytagi-ddp[{extra}]'   (for the GPU)" if gpus and extra else ""
        yield Finding("CuPy, NCCL", "not installed", advice)
        return
    code = "import cupy; from cupy.cuda import nccl; print(cupy.__version__, 'NCCL', nccl.get_version())"
    answer, error = _ask([sys.executable, "-c", code])
    yield Finding("CuPy, NCCL", answer.strip() or f"do not load: {error}")
    if importlib.util.find_spec("numba_cuda") is not None:
        answer, error = _ask([sys.executable, "-c", "from numba import cuda; print(cuda.__version__)"])
        yield Finding("numba-cuda", answer.strip() or f"does not load: {error}")


def _ask(command: list[str]) -> tuple[str, str]:
    """Runs a command; returns its output ("" if it failed), and what its error output says (`reason`) if it failed."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    complaint = reason(result.stderr) or reason(result.stdout) or f"exit code {result.returncode}"
    return (result.stdout, "") if result.returncode == 0 else ("", complaint)


# An exception at the end of a traceback, also one of a rank, or within the text of another one.
_EXCEPTION = re.compile(r"^\s*(?:\[rank [^]]*\] )?(?:\w+\.)*\w+(?:Error|Exception|Interrupt): \S.*", re.MULTILINE)


def reason(text: str) -> str:
    """What the error output of a program says: its last exception, or else its first sentence."""
    exceptions = _EXCEPTION.findall(text)
    return exceptions[-1].strip() if exceptions else first_sentence(text)


def report(findings: list[Finding], write: Callable[[str], None] = print) -> int:
    """Prints the findings and what to do about them; returns the exit code."""
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        write(f"{finding.topic:<{width}}  {finding.text}")
    for finding in findings:
        if finding.advice:
            write(f"\n{finding.topic}: {finding.text}\n    {finding.advice}")
    works = not any(finding.needed for finding in findings)
    ranks_start = not any(finding.needed_by_ranks for finding in findings)
    if works and not ranks_start:
        write("\nA CPU run of one process works here; ranks do not start.")
    else:
        write("\nA CPU run works here." if works else "\nA CPU run does not work here.")
    return 0 if works and ranks_start else 1


def check_gpu(device: str, file: Path | None = None) -> int:
    """Tests a GPU and prints a table, which is also written to `file` as JSON. Returns the exit code."""
    from pytagi_ddp.selfcheck import gpu  # here: the rest of the doctor does not need it

    try:
        code, rows = gpu.report(device)
    except (RuntimeError, ValueError) as error:
        print(f"no GPU to check: {error}")
        code, rows = 2, []
    if file is not None:
        table = json.dumps({"exit code": code, "rows": [row._asdict() for row in rows]}, indent=1)
        file.write_text(table)  # into a pipe or device, too, such as /dev/stdout
    return code


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pytagi_ddp.doctor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpu", nargs="?", const="cuda", metavar="cuda:INDEX", help="try this GPU (the current one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --gpu: where to write the table as well")
    options = parser.parse_args(arguments)
    if options.json and not options.gpu:
        parser.error("--json is for the table of --gpu: give that too")
    if options.json and (options.json.is_dir() or not options.json.parent.is_dir()):
        parser.error(f"--json needs the name of a file in a folder that is there, got {options.json}")
    if options.gpu:
        return check_gpu(options.gpu, options.json)
    launched = detect_launcher()
    return report(examine()) if launched is None or launched.rank == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
