"""The loop of one's own beside DDPSequential, on one process and on real ranks."""

import pytest

from examples.functional_training import main
from pytagi_ddp.distributed import get_distributed_backend, run_threads
from tests.mpi.run import mpirun


def test_one_process(capsys):
    try:
        error = main(epochs=10)
    finally:
        get_distributed_backend("serial").close()  # the program ends with the process
    assert 0.08 < error < 0.15
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("DDPSequential: error 0.1") and lines[1].startswith("by hand: error 0.1")
    assert lines[0].partition(":")[2] == lines[1].partition(":")[2]
    assert lines[2] == "the same parameters, to the last bit"


@pytest.mark.mpi
def test_three_ranks():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = mpirun(["-m", "examples.functional_training"], np=3, timeout=90)
    assert (result.returncode, result.stderr) == (0, "")
    check(result.stdout)


def test_the_sum_of_three_ranks(capsys):
    run_threads(main, 3, 10, False)
    check(capsys.readouterr().out)


def check(printed: str) -> None:
    lines = printed.splitlines()
    assert len(lines) == 3 and lines[2] == "the same parameters, to the last bit"
    assert "3 ranks" in lines[1] and float(lines[1].split()[3]) < 0.2
