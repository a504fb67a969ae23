"""Jobs that cannot work are refused before anything starts, once, and never become separate trainings."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial

import pytest

from pytagi_ddp.distributed.engine import meeting
from tests.conftest import weekly
from tests.mpi.programs import launch, nodes
from tests.mpi.run import ROOT, MpiJob, mpirun, mpirun_command
from tests.mpi.torchrun import variables as torchrun_variables

pytestmark = pytest.mark.mpi


def private_shm(size, then):
    """A launcher that gives the job a /dev/shm of its own: ``"$@"`` in ``then`` is the job."""
    script = f"mount --make-rprivate / && mount -t tmpfs -o size={size} none /dev/shm && {then}"
    command = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small /dev/shm (unshare --mount)")
    return [*command, *mpirun_command(), "-np", "2", sys.executable]


def test_mpirun_of_another_mpi():
    other = "/usr/bin/mpirun"
    version = subprocess.run([other, "--version"], capture_output=True, text=True).stdout if shutil.which(other) else ""
    if "Open MPI" not in version or mpirun_command()[0] == other:
        pytest.skip("needs a second MPI: Debian's openmpi-bin beside the mpich wheel")
    launcher = [other, "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
    result = MpiJob(launch.train, launcher=launcher).finish()
    assert result.returncode != 0
    assert "training" not in result.stdout
    assert "started by Open MPI's mpirun (OMPI_COMM_WORLD_SIZE=2), but mpi4py loads MPICH" in result.stderr
    assert f"{mpirun_command()[0]} -np 2" in result.stderr


def test_the_environment_of_another_mpi(hydra):
    result = mpirun(launch.train, env={"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})
    assert result.returncode != 0
    assert result.stderr.count("LaunchError: this job was started by Open MPI's mpirun") >= 1
    assert "training" not in result.stdout


def test_mpirun_without_mpi4py(tmp_path, hydra):
    (tmp_path / "mpi4py.py").write_text("raise ModuleNotFoundError(\"No module named 'mpi4py'\")")
    result = mpirun(launch.train, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert result.returncode != 0
    assert "training" not in result.stdout
    assert "LaunchError: this job was started by MPICH's mpirun (Hydra) (PMI_SIZE=2), but MPI" in result.stderr
    assert "cannot be loaded: No module named 'mpi4py'" in result.stderr
    assert 'pip install "pytagi-ddp[mpi]"' in result.stderr


def test_a_launcher_whose_size_mpi_does_not_see():
    # What srun without --mpi does: every task is rank 0 of 1.
    env = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "PYTHONPATH": str(ROOT)}
    job = MpiJob(launch.train, np=1, env=env, launcher=[sys.executable])
    result = job.finish()
    assert result.returncode != 0
    assert "srun started 2 ranks (SLURM_STEP_NUM_TASKS=2), but MPI says that this is rank 0 of 1" in result.stderr
    assert "training" not in result.stdout


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


def test_a_launcher_that_does_not_start_mpi():
    """Others are in `tests.distributed.engine.test_launcher`."""
    result = MpiJob(launch.train, np=1, env=TORCHRUN | {"PYTHONPATH": str(ROOT)}, launcher=[sys.executable]).finish()
    assert result.returncode != 0
    assert "LaunchError: this job was started by torchrun (WORLD_SIZE=2), which does not start MPI" in result.stderr
    assert "python -m pytagi_ddp.launch -np 2 " in result.stderr
    assert "training" not in result.stdout


PORT = 20_000 + os.getpid() % 10_000


def torchrun(program, nodes=1, ranks=2, port=PORT):
    """A job of processes that were started as torchrun starts them."""
    launcher = [sys.executable, "-m", "tests.mpi.torchrun", str(nodes), str(ranks), sys.executable]
    return MpiJob(program, nodes * ranks, {"MASTER_PORT": str(port)}, launcher)


def test_ranks_of_torchrun_train_as_those_of_mpirun_do(hydra):
    with socket.create_server(("", PORT + meeting.PORT_STEP)) as other:  # where they would meet, were it free
        other.settimeout(20)
        job = torchrun(partial(nodes.train, options={}), nodes=2, ranks=1)
        for _ in range(2):
            other.accept()[0].close()
        started = job.finish(60)
    assert (started.returncode, started.stderr) == (0, "")
    wanted = mpirun(partial(nodes.train, options={}))
    assert sorted(started.stdout.splitlines()) == sorted(wanted.stdout.splitlines())


def test_a_dead_rank_ends_those_of_torchrun(hydra):
    result = torchrun(launch.die_beside_a_child, port=PORT + 1).finish()
    assert result.returncode == 128 + signal.SIGKILL
    assert result.seconds < 5
    assert result.stderr == "rank 1 of 2 has ended without leaving the job, which ends\n"


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ("0", "CollectiveTimeoutError: rank 1 of 2 has not started MPI in time"),
        ("1", "LaunchError: rank 0 does not answer at 127.0.0.1 (MASTER_ADDR)"),
    ],
)
def test_a_rank_of_torchrun_that_waits_in_vain(rank, message, hydra):
    env = torchrun_variables(0, 1, int(rank), 2) | {"MASTER_PORT": str(PORT + 2), "PYTAGI_DDP_TIMEOUT": "0.5"}
    result = MpiJob(launch.train, np=1, env=env, launcher=[sys.executable]).finish()
    assert result.returncode != 0 and "training" not in result.stdout
    assert message in result.stderr


def test_processes_of_such_a_launcher_that_work_alone():
    env = TORCHRUN | {"PYTHONPATH": str(ROOT)}
    result = MpiJob(partial(launch.train, backend="serial"), np=1, env=env, launcher=[sys.executable]).finish()
    assert (result.returncode, result.stdout, result.stderr) == (0, "training 0 1\n", "")


def test_variables_that_a_cluster_leaves_give_a_warning():
    env = {"RANK": "1", "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    result = MpiJob(launch.train, np=1, env=env, launcher=[sys.executable]).finish()
    assert (result.returncode, result.stdout) == (0, "training 0 1\n")
    assert "RANK=1 and WORLD_SIZE=2 suggest that this process is one of several" in result.stderr
    env = {"WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    result = MpiJob(launch.train, np=1, env=env, launcher=[sys.executable]).finish()
    assert (result.returncode, result.stdout, result.stderr) == (0, "training 0 1\n", "")


def test_mpi_that_has_ended_cannot_start_again(hydra):
    result = mpirun(launch.train_after_the_end)
    assert result.returncode != 0
    assert "training" not in result.stdout
    assert "LaunchError: backend 'mpi': MPI has ended (MPI.Finalize) and cannot start again" in result.stderr


@pytest.mark.parametrize("starts", [False, True])
def test_a_network_that_each_rank_trains_alone(starts, hydra):
    """One rank warns, once."""
    result = mpirun(partial(launch.fit_alone, starts=starts))
    assert result.returncode == 0
    assert result.stderr.count("has started 2 processes, and this one trains a network alone") == (not starts)


def test_mpi_without_a_launcher_is_one_rank():
    job = MpiJob(partial(launch.train, backend="mpi"), np=1, launcher=[sys.executable])
    result = job.finish()
    assert (result.returncode, result.stdout, result.stderr) == (0, "training 0 1\n", "")


def test_too_little_room_in_dev_shm(hydra):
    result = MpiJob(launch.train, launcher=private_shm("16m", 'exec "$@"')).finish()
    assert result.returncode != 0
    assert "training" not in result.stdout
    assert "LaunchError: /dev/shm has 16." in result.stderr
    assert "2 ranks on this node need 23.0 MB" in result.stderr


def test_the_least_room_that_is_accepted_is_enough(hydra):
    result = MpiJob(launch.train, launcher=private_shm("22500k", 'exec "$@"')).finish()
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(result.stdout.splitlines()) == ["training 0 2", "training 1 2"]


def test_a_killed_job_leaves_nothing_in_dev_shm(hydra):
    launcher = private_shm("64m", '"$@"; echo "left: $(ls /dev/shm | wc -l)"')
    result = MpiJob(launch.be_killed, launcher=launcher).finish()
    assert "left: 0" in result.stdout


@pytest.mark.parametrize("victim", ["mpirun", pytest.param("rank", marks=weekly)])
def test_what_a_job_killed_in_its_start_leaves_is_listed_and_removed(victim, hydra):
    again = f"{mpirun_command()[0]} -np 2 {sys.executable} -m tests.mpi.rank tests.mpi.programs.launch:train"
    doctor = f"{sys.executable} -c 'from pytagi_ddp import doctor; print(list(doctor._shared_memory()))'"
    old = "touch -d '1 hour ago' /dev/shm/mpich_shm_*"
    then = f'"$@"; sleep 0.5; {doctor}; {old}; {again}; echo "left: $(ls /dev/shm | wc -l)"'
    # So little room that the next job does not start unless it removes what this one has left.
    result = MpiJob(partial(launch.be_killed_in_the_start, victim=victim), launcher=private_shm("23000k", then)).finish(
        60
    )
    assert "1 files of dead MPI jobs, 2 MB" in result.stdout
    assert "rm /dev/shm/mpich_shm_" in result.stdout
    assert result.stdout.count("training ") == 2, result.stderr
    assert "left: 0" in result.stdout
