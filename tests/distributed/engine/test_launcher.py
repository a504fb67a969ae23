"""Who started us, which MPI will be loaded, and whether they fit: read from environments and version texts."""

import sys
from types import SimpleNamespace

import pytest

from pytagi_ddp.distributed.engine import launcher
from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.distributed.engine.launcher import (
    check_launcher,
    check_starts_mpi,
    detect_launcher,
    find_mpirun,
    how_to_get_mpi,
    looks_like_one_of_many,
    mpi_family,
    short_version,
)

HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "HYDI_CONTROL_FD": "7"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "2",
}
SLURM = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "3"}
MVAPICH = {
    f"MV2_COMM_WORLD_{part}": n for part, n in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "2312", strict=True)
}
MVAPICH_3 = {name.replace("MV2", "MVP"): value for name, value in MVAPICH.items()}
PYTORCH = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node"}
TORCHRUN = PYTORCH | {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
HOROVOD = {f"HOROVOD_{part}": n for part, n in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "2312", strict=True)}

MPICH_TEXT = "MPICH Version:      5.0.2\nMPICH Release date: some day\nMPICH Device:       ch4:ofi\n"
OPEN_MPI_TEXT = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022"
INTEL_TEXT = "Intel(R) MPI Library 2021.13 for Linux* OS\n"


@pytest.mark.parametrize(
    ("environ", "name", "local_size"),
    [
        (HYDRA, "MPICH's mpirun (Hydra)", 2),
        (OPEN_MPI, "Open MPI's mpirun", 2),
        (SLURM, "srun", None),
        (SLURM | {"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_FD": "9"}, "srun", None),
        (SLURM | {"PMIX_RANK": "2"}, "srun", None),
        (SLURM | HYDRA, "MPICH's mpirun (Hydra)", 2),
        (SLURM | OPEN_MPI, "Open MPI's mpirun", 2),
        (MVAPICH, "MVAPICH's mpirun_rsh", 2),
        (MVAPICH_3, "MVAPICH's mpirun_rsh", 2),
        (TORCHRUN, "torchrun", 2),
        (PYTORCH, "a launcher of PyTorch programs", 2),
        (HOROVOD, "horovodrun", 2),
        (TORCHRUN | HYDRA, "MPICH's mpirun (Hydra)", 2),  # mpirun in an environment of torchrun
        (TORCHRUN | OPEN_MPI, "Open MPI's mpirun", 2),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"} | TORCHRUN, "torchrun", 2),  # srun starts one torchrun on each node
        (SLURM | PYTORCH, "srun", None),  # a script that sets PyTorch's variables from those of Slurm
    ],
)
def test_detects_the_launcher(environ, name, local_size):
    launch = detect_launcher(environ)
    assert (launch.launcher, launch.rank, launch.world_size) == (name, 2, 3)
    assert (launch.local_rank, launch.local_world_size) == (1, local_size)
    assert launch.evidence.endswith("=3")


def test_no_launcher():
    assert detect_launcher({}) is None
    # A batch script before its first srun: the allocation has four tasks, this process is none of them.
    assert detect_launcher({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}) is None


@pytest.mark.parametrize(
    ("environ", "signs"),
    [
        ({"WORLD_SIZE": "2"}, None),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "node"}, None),
        ({"RANK": "1", "WORLD_SIZE": "two"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        (PYTORCH | {"RANK": "-1", "WORLD_SIZE": "1", "LOCAL_RANK": "-1"}, None),
        (PYTORCH | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "-1"}, None),
        (PYTORCH | {"LOCAL_RANK": "-1"}, "RANK=2 and WORLD_SIZE=3"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node", "MASTER_PORT": "1"}, "RANK=1 and WORLD_SIZE=2"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK=5 and WORLD_SIZE=2"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, "RANK=1 and WORLD_SIZE=1"),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, None),
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
            "SLURM_PROCID=1 and SLURM_NTASKS=2, without SLURM_STEP_NUM_TASKS,",
        ),
    ],
)
def test_variables_that_do_not_prove_a_launcher(environ, signs):
    assert detect_launcher(environ) is None
    assert looks_like_one_of_many(environ) == signs
    assert looks_like_one_of_many(environ | HYDRA) is None


def test_a_rank_that_does_not_exist():
    for environ in (TORCHRUN | {"RANK": "5"}, HYDRA | {"PMI_RANK": "3"}):
        with pytest.raises(LaunchError, match=r"rank \d of 3 ranks \(.*\) does not exist: they are numbered from 0"):
            check_starts_mpi(detect_launcher(environ))


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        (TORCHRUN, "torchrun (WORLD_SIZE=3)"),
        (PYTORCH, "a launcher of PyTorch programs (WORLD_SIZE=3)"),
        (HOROVOD, "horovodrun (HOROVOD_SIZE=3)"),
    ],
)
def test_a_launcher_that_does_not_start_mpi(environ, name):
    for check in (check_starts_mpi, lambda launch: check_launcher(launch, MPICH_TEXT)):
        with pytest.raises(LaunchError) as caught:
            check(detect_launcher(environ))
        assert f"started by {name}, which does not start MPI" in str(caught.value)
        assert "Start it with: python -m pytagi_ddp.launch -np 3 " in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="ranks meet on Linux")
@pytest.mark.parametrize("environ", [TORCHRUN, PYTORCH])
def test_ranks_of_pytorchs_launchers_can_meet(environ):
    launch = detect_launcher(environ | {"MASTER_PORT": "29500"})
    assert launch.meeting == ("node", 29500)
    check_launcher(launch, MPICH_TEXT)
    with pytest.raises(LaunchError, match=r"mpi4py loads Open MPI v4.1.4.* python -m pytagi_ddp.launch -np 3 \.\.\."):
        check_launcher(launch, OPEN_MPI_TEXT)
    for port in ("", "x"):
        with pytest.raises(LaunchError, match="which does not start MPI"):
            check_launcher(detect_launcher(environ | {"MASTER_PORT": port}), MPICH_TEXT)


def test_one_process_of_such_a_launcher_is_fine():
    check_launcher(detect_launcher(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}), MPICH_TEXT)


@pytest.mark.parametrize("size", ["²", "٣", "-1", "two", "", "9" * 5000])
def test_a_size_that_is_not_a_number(size):
    launch = detect_launcher({"PMI_RANK": "1", "PMI_SIZE": size})
    assert (launch.rank, launch.world_size) == (1, None)


def test_a_launcher_that_does_not_tell_the_size():
    launch = detect_launcher({"PMIX_RANK": "1"})
    assert (launch.rank, launch.world_size) == (1, None)


@pytest.mark.parametrize(
    ("text", "family", "short"),
    [
        (MPICH_TEXT, "MPICH", "MPICH 5.0.2"),
        (OPEN_MPI_TEXT, "Open MPI", "Open MPI v4.1.4"),
        (INTEL_TEXT, "Intel MPI", "Intel(R) MPI Library 2021.13 for Linux* OS"),
        ("MVAPICH Version: 3.0\nMPICH ...", "MVAPICH", "MVAPICH 3.0"),
        ("HYDRA build details:\n    Version: 5.0.2", "MPICH", "HYDRA build details:"),
        ("mpirun (Open MPI) 4.1.4\n", "Open MPI", "mpirun (Open MPI) 4.1.4"),
        ("orterun (OpenRTE) 4.1.4\n", "Open MPI", "orterun (OpenRTE) 4.1.4"),
        ("prterun (PRRTE) 3.0.6\n", "Open MPI", "prterun (PRRTE) 3.0.6"),
        ("Some MPI 1.0\nmore", "Some MPI 1.0", "Some MPI 1.0"),
    ],
)
def test_families(text, family, short):
    assert mpi_family(text) == family
    assert short_version(text) == short


@pytest.mark.parametrize(
    ("environ", "library"),
    [
        (HYDRA, MPICH_TEXT),
        (HYDRA, INTEL_TEXT),
        (OPEN_MPI, OPEN_MPI_TEXT),
        (SLURM, MPICH_TEXT),
        (SLURM, OPEN_MPI_TEXT),
        (MVAPICH, MPICH_TEXT),
        (MVAPICH_3, "MVAPICH Version: 3.0"),
    ],
)
def test_a_launcher_that_fits(environ, library):
    check_launcher(detect_launcher(environ), library)


@pytest.mark.parametrize(
    ("environ", "library", "names"),
    [
        (OPEN_MPI, MPICH_TEXT, ["Open MPI's mpirun (OMPI_COMM_WORLD_SIZE=3)", "mpi4py loads MPICH 5.0.2"]),
        (HYDRA, OPEN_MPI_TEXT, ["MPICH's mpirun (Hydra) (PMI_SIZE=3)", "mpi4py loads Open MPI v4.1.4"]),
    ],
)
def test_a_launcher_that_does_not_fit(environ, library, names):
    with pytest.raises(LaunchError) as caught:
        check_launcher(detect_launcher(environ), library)
    for name in [*names, "-np 3"]:
        assert name in str(caught.value)


@pytest.fixture
def fake_mpirun(tmp_path, monkeypatch):
    """Puts an mpirun that prints a given version first on PATH, with no mpirun installed from PyPI."""

    def put(version, name="mpirun"):
        mpirun = tmp_path / name
        mpirun.write_text(f"#!/bin/sh\necho '{version}'\n")
        mpirun.chmod(0o755)
        return mpirun

    monkeypatch.setattr(launcher, "_DISTRIBUTIONS", {"MPICH": "no-such-distribution"})
    monkeypatch.setenv("PATH", str(tmp_path))
    return put


def test_mpirun_from_path_must_be_of_the_family(fake_mpirun):
    with pytest.raises(LaunchError, match="there is no mpirun on PATH"):
        find_mpirun("MPICH")
    mpirun = fake_mpirun("mpirun (Open MPI) 4.1.4")
    assert find_mpirun("Open MPI") == mpirun
    with pytest.raises(LaunchError, match=f"mpi4py loads MPICH, but {mpirun} belongs to Open MPI"):
        find_mpirun("MPICH")
    fake_mpirun("Intel(R) MPI Library for Linux* OS, Version 2021.13")
    assert find_mpirun("MPICH") == mpirun


def test_other_names_of_an_mpirun_on_path(fake_mpirun):
    fake_mpirun("mpirun (Open MPI) 4.1.4")
    for_open_mpi = fake_mpirun("mpirun (Open MPI) 4.1.4", "mpirun.openmpi")
    debian = fake_mpirun("HYDRA build details:", "mpirun.mpich")
    assert find_mpirun("MPICH") == debian
    fake_mpirun("HYDRA build details:")
    assert find_mpirun("Open MPI") == for_open_mpi


def test_intel_mpi_without_its_environment(tmp_path, monkeypatch):
    for name in ("mpirun", "mpiexec.hydra"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    files = [SimpleNamespace(name=file.name, locate=lambda file=file: file) for file in tmp_path.iterdir()]
    monkeypatch.setattr(launcher.importlib.metadata, "files", lambda distribution: files)
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_mpirun("Intel MPI") == tmp_path / "mpiexec.hydra"  # its mpirun is a script that looks for that on PATH
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_mpirun("Intel MPI") == tmp_path / "mpirun"


def test_what_to_install_fits_the_launcher(fake_mpirun):
    assert how_to_get_mpi(None) == how_to_get_mpi(detect_launcher(HYDRA)) == 'pip install "pytagi-ddp[mpi]"'
    assert how_to_get_mpi(detect_launcher(OPEN_MPI)).startswith("pip install mpi4py ")
    fake_mpirun("mpirun (Open MPI) 4.1.4")
    assert how_to_get_mpi(None).startswith("pip install mpi4py ")
    assert how_to_get_mpi(detect_launcher(HYDRA)) == 'pip install "pytagi-ddp[mpi]"'


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        (HYDRA | {"PMI_SIZE": "\u00b2"}, "PMI_SIZE='\u00b2'"),
        (HYDRA | {"PMI_RANK": "-1"}, "PMI_RANK='-1'"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "two"}, "OMPI_COMM_WORLD_LOCAL_SIZE='two'"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "3x"}, "SLURM_STEP_NUM_TASKS='3x'"),
        (TORCHRUN | {"RANK": "-1"}, "RANK='-1'"),
        (PYTORCH | {"WORLD_SIZE": "3x"}, "WORLD_SIZE='3x'"),
        (HOROVOD | {"HOROVOD_SIZE": "three"}, "HOROVOD_SIZE='three'"),
    ],
)
def test_a_variable_that_is_no_number_is_named(environ, name):
    """MPI ended the process with an internal error, or each process trained alone."""
    with pytest.raises(LaunchError, match=f"{name} in the environment is not a number"):
        check_starts_mpi(detect_launcher(environ))
