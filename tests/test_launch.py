"""python -m pytagi_ddp.launch: where the program begins, and that it runs with the right mpirun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytagi_ddp.distributed.engine import supervisor
from pytagi_ddp.distributed.engine.slurm import batch_script
from pytagi_ddp.distributed.engine.supervisor import Supervisor, hosts_in
from pytagi_ddp.launch import split_arguments
from tests.mpi.random_restarts import undisturbed
from tests.mpi.run import mpirun_command


@pytest.mark.parametrize(
    ("line", "options", "program"),
    [
        ("-np 2 train.py --epochs 3", "-np 2", "train.py --epochs 3"),
        ("-np 2 -genv A 1 -m examples.run -m x", "-np 2 -genv A 1", "-m examples.run -m x"),
        ("-np 2 -- script -np 3", "-np 2", "script -np 3"),
        ("folder/train.py", "", "folder/train.py"),
    ],
)
def test_split_arguments(line, options, program):
    assert split_arguments(line.split()) == (options.split(), program.split())


@pytest.mark.parametrize("line", ["", "-np 2", "-np 2 -m", "-np 2 --", "-np 2 train"])
def test_no_program(line):
    with pytest.raises(ValueError, match="no script and no -m module"):
        split_arguments(line.split())


@pytest.mark.parametrize("line", ["-np x a.py", "-np 0 a.py", "-n -2 a.py", "-np 1e1 -m a", "-np a.py", "-np -l a.py"])
def test_no_number_of_ranks(line):
    with pytest.raises(ValueError, match=r"-np? takes a number of ranks, got"):
        split_arguments(line.split())


@pytest.mark.parametrize(
    ("options", "limits", "message"),
    [
        ("-np 2", {"min_ranks": 3}, "--min-ranks 3 needs -np with at least so many ranks, got 2"),
        ("-ppn 2", {"min_ranks": 1}, "--min-ranks 1 needs -np with at least so many ranks, got none"),
        ("-np 2", {"min_ranks": 0}, "--min-ranks 0 needs"),
        ("-np 2", {"max_restarts": -1}, "must be at least 0, got -1 and 1"),
        ("-np 2", {"pause": float("nan")}, "must be at least 0, got 1 and nan"),
    ],
)
def test_limits_of_restarts_that_cannot_be(options, limits, message):
    with pytest.raises(ValueError, match=message):
        Supervisor(Path("mpirun"), options.split(), ["a.py"], **{"max_restarts": 1, **limits})


def test_hosts_of_mpirun(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# nodes\na:4\n\nb slots=2 # the small one\nc\n")
    assert hosts_in(["-np", "7", "-f", str(file)]) == {"a": 4, "b": 2, "c": 1}
    assert hosts_in(["-hosts", "a,b:3", "-np", "4"]) == {"a": 1, "b": 3}
    assert hosts_in(["-np", "4"]) == {}


FAILED = """\
[rank 1/2] Traceback (most recent call last):
  File "train.py", line 3, in <module>
    train()
ValueError: two
lines
in step 5, of epoch 1
Abort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1
"""


def test_the_error_in_what_a_job_has_written():
    error = supervisor._error_in(f"training\n{FAILED}")
    assert error == supervisor._error_in(FAILED.replace("rank 1", "rank 0"))
    assert supervisor._last_words(error) == "ValueError: two; lines; in step 5, of epoch 1"
    assert error != supervisor._error_in(FAILED.replace("step 5", "step 6"))
    assert supervisor._error_in("=== BAD TERMINATION") == supervisor._last_words("") == ""


def test_a_batch_script(tmp_path):
    options = "-N 4 --ntasks-per-node 8 --time=1:00:00 --signal B:USR1@300".split()
    text = batch_script(options, ["python", "train.py", "--name", "a b"], "pmi2", "train")
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert directives == [
        "#SBATCH -N 4",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --time=1:00:00",
        "#SBATCH --signal=B:USR1@300",
        "#SBATCH --job-name=train",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
    ]
    assert "python train.py --name 'a b' &" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    for wrong in ("4", "-N 4 5", "--time=1 2"):
        with pytest.raises(ValueError, match="is not an option of sbatch, and belongs to none"):
            batch_script(wrong.split(), ["python", "train.py"], "pmi2", "train")


SRUN = """#!/bin/sh
for word; do case $word in
    --output=*) log=${word#--output=}; log=${log%%%t*}%r${log##*%t};;
    -*) ;;
    *) break;;
esac; shift; done
for name in $(env | grep -o '^SLURM_[A-Z_]*'); do unset "$name"; done
exec MPIRUN -np 2 -outfile-pattern="$log" "$@"
"""


@pytest.mark.mpi
def test_a_batch_script_stops_goes_into_the_queue_and_resumes(tmp_path):
    """With an srun that starts the ranks by mpirun, and a queue that is a file."""
    pytest.importorskip("mpi4py")
    program = ["-m", "tests.mpi.rank", "tests.mpi.programs.restarted:train"]
    arguments = json.dumps({"folder": str(tmp_path / "run"), "way": "ddp", "deaths": [], "on_signal": True})
    launch = [sys.executable, "-m", "pytagi_ddp.launch", "--write-slurm", "job.sh", "-N", "2", *program, arguments]
    path = os.environ["PATH"]
    env = os.environ | {"PYTHONPATH": os.getcwd(), "PATH": f"{tmp_path}:{path}", "SLURM_JOB_ID": "7"}
    env |= {"SLURM_SUBMIT_DIR": str(tmp_path), "PYTAGI_DDP_NUM_THREADS": "1"}
    subprocess.run(launch, check=True, cwd=tmp_path, env=env, timeout=60)
    for name, text in {"srun": SRUN.replace("MPIRUN", mpirun_command()[0]), "scontrol": "#!/bin/sh\necho $* >> queue"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    log = tmp_path / "logs" / "rank-7-0.log"
    codes = []
    for _ in range(2):
        job = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=env)
        while not codes and not (log.exists() and "saved 3" in log.read_text()):
            assert job.poll() is None
            time.sleep(0.02)
        if not codes:
            job.send_signal(signal.SIGUSR1)
        codes.append(job.wait(60))
    assert codes == [0, 0]
    assert (tmp_path / "queue").read_text() == "requeue 7\n"
    lines = log.read_text().splitlines()
    starts = [line for line in lines if line.startswith("from ")]
    assert starts[0] == "from 0" and int(starts[1].split()[1]) >= 3 and len(starts) == 2
    assert lines[-1] == undisturbed("ddp", 2)[0]


@pytest.mark.mpi
def test_runs_two_ranks_and_gives_their_exit_code(tmp_path):
    pytest.importorskip("mpi4py")
    script = tmp_path / "two.py"  # launch takes a script, as users have them
    script.write_text(
        "import sys\n"
        "from pytagi_ddp.distributed.communicator import create_communicator\n"
        "comm = create_communicator()\n"
        "total = sum(comm.all_gather_object(int(sys.argv[1])))\n"
        "sys.exit(total if comm.rank == 0 else 0)\n"
    )
    command = [sys.executable, "-m", "pytagi_ddp.launch", "-np", "2", script, "21"]
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env)
    assert (result.returncode, result.stderr) == (42, "")
