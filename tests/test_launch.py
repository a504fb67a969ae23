"""python -m pytagi_ddp.launch: where the program begins, and that it runs with the right mpirun."""

import os
import subprocess
import sys

import pytest

from pytagi_ddp.launch import split_arguments


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
