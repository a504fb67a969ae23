"""python -m pytagi_ddp.launch: where the program begins, and that it runs with the right mpirun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytagi_ddp.distributed.engine import supervisor
from pytagi_ddp.distributed.engine.slurm import batch_script
from pytagi_ddp.distributed.engine.supervisor import Supervisor, hosts_in
from pytagi_ddp.launch import USAGE, main, split_arguments


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


def test_without_arguments_it_fails_with_its_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"{USAGE}\n")


@pytest.mark.parametrize("line", ["-np x a.py", "-np 0 a.py", "-n -2 a.py", "-np 1e1 -m a", "-np a.py", "-np -l a.py"])
def test_no_number_of_ranks(line):
    with pytest.raises(ValueError, match=r"-np? takes a number of ranks, got"):
        split_arguments(line.split())


@pytest.mark.parametrize(
    ("options", "limits", "message"),
    [
        ("-np 2", {"min_ranks": 3}, "--min-ranks takes a number from 1 to that of -np; got 3, and 2 for -np"),
        ("-ppn 2", {"min_ranks": 1}, "--min-ranks takes a number from 1 to that of -np; got 1, and nothing for -np"),
        ("-np 2", {"min_ranks": 0}, "got 0, and 2 for -np"),
        ("-np 2", {"max_restarts": -1}, "--max-restarts must be at least 0, got -1"),
        ("-np 2", {"pause": float("nan")}, "--pause must be in \\[0, inf\\), got nan"),
    ],
)
def test_limits_of_restarts_that_cannot_be(options, limits, message):
    with pytest.raises(ValueError, match=message):
        Supervisor(Path("mpirun"), options.split(), ["a.py"], **{"max_restarts": 1, **limits})


@pytest.mark.parametrize("option", ["--max-restarts", "--min-ranks", "-np"])
def test_a_script_for_slurm_starts_ranks_and_job_by_itself(tmp_path, option):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    with pytest.raises(SystemExit, match=r"leave out --max-restarts and --min-ranks, and give -N .* instead of -np"):
        main(["--write-slurm", str(tmp_path / "job.sh"), "-N", "2", option, "3", "train.py"])
    assert not (tmp_path / "job.sh").exists()
    main(["--write-slurm", str(tmp_path / "job.sh"), "-n", "3", "train.py"])  # an option of sbatch
    assert "#SBATCH -n 3\n" in (tmp_path / "job.sh").read_text()


def test_a_script_for_slurm_has_the_bytes_of_the_program(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    main(["--write-slurm", str(tmp_path / "job.sh"), "-N", "2", os.fsdecode(b"caf\xe9.py")])  # Latin-1
    assert b"caf\xe9.py" in (tmp_path / "job.sh").read_bytes()


def test_hosts_of_mpirun(tmp_path):
    file = tmp_path / "hosts"
    file.write_bytes(b"# caf\xe9\na:4\n\nb slots=2 # the small one\nc\n")
    assert hosts_in(["-np", "7", "-f", str(file)]) == {"a": 4, "b": 2, "c": 1}
    assert hosts_in(["-hosts", "a,b:3", "-np", "4"]) == {"a": 1, "b": 3}
    assert hosts_in(["-np", "4"]) == {}


FAILED = """\
[rank 1/2] Traceback (most recent call last):
  File "train.py", line 3, in <module>
    train()
ValueError: two
lines
after 5 steps, in epoch 1
Abort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1
"""


def test_the_error_in_what_a_job_has_written():
    error = supervisor._error_in(f"training\n{FAILED}")
    assert error == supervisor._error_in(FAILED.replace("rank 1", "rank 0"))
    assert supervisor._last_words(error) == "ValueError: two; lines; after 5 steps, in epoch 1"
    assert error != supervisor._error_in(FAILED.replace("5 steps", "6 steps"))
    assert supervisor._error_in("=== BAD TERMINATION") == supervisor._last_words("") == ""


def test_a_batch_script(tmp_path):
    options = ["-N", "4", "--ntasks-per-node", "8", "--time=1:00:00", "--signal", "B:USR1@300"]
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


def test_names_and_values_in_a_batch_script_are_no_commands(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n')
    srun.chmod(0o755)
    name = "a $(touch one) `touch two` \"'; touch three; 50%"
    text = batch_script(["--comment=a b", "-Ja b"], ["python", f"{name}.py"], "pmi2", name)
    assert {"#SBATCH --comment='a b'", "#SBATCH '-Ja b'"} <= set(text.splitlines())
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7"}
    assert subprocess.run(["bash"], input=text, text=True, env=environ, timeout=60).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"arguments", "cache", "logs", "srun"}
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert f"--output=logs/{name}%-7-%t.log" in arguments
    assert arguments[-1] == f"{name}.py"
    for options, job in ((["--comment=a\ntouch four"], "a"), (["--comment", "a\nb"], "a"), ([], "a\nb")):
        with pytest.raises(ValueError, match="has a line break, and the rest would be a command of the script"):
            batch_script(options, ["python", "a.py"], "pmi2", job)


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
