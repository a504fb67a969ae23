"""The CIFAR-10 job in a pipeline: what it prints and refuses; and model parallelism by hand."""

import subprocess
import sys

import pytest

from examples import ddp_cifar_resnet, model_parallel
from pytagi_ddp.distributed import get_distributed_backend, run_threads
from tests.examples.jobs import exit_codes, in_threads, start
from tests.mpi.run import mpirun

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc")
PIPELINE = ["--parallel", "pipeline", "--epochs", 1, "--limit-test", 12]


@pytest.mark.mpi
@pytest.mark.slow
def test_trains_and_draws(tmp_path):
    options = ["--limit-train", 24, "--batch-size", 10, "--micro-batches", 3, "--log-dir", tmp_path, "--bn-batches", 0]
    result = start(*PIPELINE, *options, np=2).finish(90)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "resnet8: 85,722 parameters, each with a mean and a variance"
    assert lines[1].startswith("stages: 2 with ")
    assert lines[2] == "images per pipeline and step: 10, micro-batches: 3, 1F1B"
    assert sum(int(count.replace(",", "")) for count in lines[4].split(": ")[1].split(", ")) == 85_722
    assert lines[5].startswith("epoch 1/1: train error ")
    assert lines[9] == f"log and curves: {tmp_path}"
    for line, stage in zip(lines[6:8], "01", strict=True):
        assert line.startswith(f"stage {stage}  ")
        assert set("012abc") <= set(line[9:]) <= set("012abc.")
    assert 0 < float(lines[8].removeprefix("bubble: ").removesuffix("% of the time")) < 100


@pytest.mark.slow
def test_pipelines_side_by_side(tmp_path, capsys):
    options = ["--limit-train", 9, "--batch-size", 4, "--head", "remax", "--balance", "5,4", "--pipelines", 2]
    in_threads(
        *PIPELINE, *options, "--schedule", "GPipe", "--recompute", "--bn-batches", 1, "--log-dir", tmp_path, np=4
    )
    out, err = capsys.readouterr()
    assert "stages: 2 with 5, 4 layers, pipelines: 2" in out and err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--balance", "8,1"], "error on rank 0: balance=[8, 1] is for 9 layers, the network has 8"),
        (["--pipelines", 3], "error on rank 0: 2 ranks cannot be divided into 3 pipelines"),
    ],
)
def test_an_error_is_one_line(options, message):
    assert exit_codes(ddp_cifar_resnet.main, *PIPELINE, *options) == [message, 1]


def test_model_parallelism_by_hand(capsys):
    first, second = run_threads(model_parallel.main, 2)
    assert first == second < 0.1
    assert capsys.readouterr().out == f"error {first:.3f}\n"
    with pytest.raises(SystemExit, match="two ranks are needed, and there are 1"):
        model_parallel.main()
    get_distributed_backend("serial").close()  # the program ends with the process


@pytest.mark.slow
def test_model_parallelism_has_help():
    command = [sys.executable, "-m", "examples.model_parallel"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "a network in two parts on two ranks" in done.stdout
    done = subprocess.run([*command, "--steps"], capture_output=True, text=True)
    assert done.returncode == 2 and "unrecognized arguments: --steps" in done.stderr


@pytest.mark.mpi
def test_model_parallelism_on_real_ranks():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = mpirun(["-m", "examples.model_parallel"], 2, 60)
    assert (result.returncode, result.stderr) == (0, "")
    assert float(result.stdout.split()[1]) < 0.1
