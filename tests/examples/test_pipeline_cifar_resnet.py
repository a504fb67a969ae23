"""The CIFAR-10 job in a pipeline: what it prints, draws and refuses; and model parallelism by hand."""

import importlib.util
import subprocess
import sys

import pytest

from examples import model_parallel, pipeline_cifar_resnet
from pytagi_ddp.distributed import get_distributed_backend, run_threads
from tests.examples.jobs import exit_codes
from tests.mpi.run import mpirun

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc")
SMALL = ["--model", "resnet8", "--data", "synthetic", "--progress", "lines", "--epochs", 1, "--limit-test", 12]


@pytest.mark.mpi
@pytest.mark.slow
def test_trains_and_draws(tmp_path):
    picture = tmp_path / "schedule.png"
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    options = [*SMALL, "--limit-train", 24, "--batch-size", 10, "--micro-batches", 3, "--plot", picture]
    options += ["--log-dir", tmp_path, "--bn-batches", 0]
    result = mpirun(["-m", "examples.pipeline_cifar_resnet", *map(str, options)], 2, 90)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "resnet8: 85,722 parameters, each with a mean and a variance"
    assert lines[1].startswith("stages: 2 with ")
    assert lines[2] == "images per pipeline and step: 10, micro-batches: 3, 1F1B"
    assert sum(int(count.replace(",", "")) for count in lines[4].split(": ")[1].split(", ")) == 85_722
    assert lines[5].startswith("epoch 1/1: train error ")
    assert lines.pop(6) == f"log and curves: {tmp_path}"
    for line, stage in zip(lines[6:8], "01", strict=True):
        assert line.startswith(f"stage {stage}  ")
        assert set("012abc") <= set(line[9:]) <= set("012abc.")
    assert lines[8].startswith("bubble: 25.0% of equal stages, ")
    assert picture.exists() == bool(importlib.util.find_spec("matplotlib"))


@pytest.mark.slow
def test_pipelines_side_by_side(tmp_path, capsys):
    options = ["--limit-train", 9, "--batch-size", 4, "--head", "remax", "--balance", "5,4", "--pipelines", 2]
    options = [*SMALL, *options, "--schedule", "GPipe", "--recompute", "--bn-batches", 1, "--log-dir", tmp_path]
    run_threads(pipeline_cifar_resnet.main, 4, list(map(str, options)))
    out, err = capsys.readouterr()
    assert "stages: 2 with 5, 4 layers, pipelines: 2" in out and err == ""


def test_another_way_is_refused():
    with pytest.raises(SystemExit, match="error: --parallel is not for this job"):
        pipeline_cifar_resnet.main(["--parallel=ddp"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--balance", "8,1"], "error on rank 0: balance=[8, 1] is for 9 layers, the network has 8"),
        (["--pipelines", 3], "error on rank 0: 2 ranks cannot be divided into 3 pipelines"),
    ],
)
def test_an_error_is_one_line(options, message):
    assert exit_codes(pipeline_cifar_resnet.main, *options) == [message, 1]


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
