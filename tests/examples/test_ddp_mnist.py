"""MNIST on many ranks: digits drawn by the test, and the synthetic set."""

import importlib.util
import json
import sys

import pytest

from examples.ddp_mnist import main
from pytagi_ddp.distributed import run_threads
from tests.examples.test_mnist import data_dir  # noqa: F401 (a fixture)
from tests.mpi.run import mpirun

has_torch = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_two_ranks_learn_digits(data_dir, tmp_path, capsys, model):  # noqa: F811
    options = ["--data", "mnist", "--data-dir", data_dir, "--model", model, "--batch-size", "8", "--epochs", "1"]
    first, second = run_threads(main, 2, [*options, "--log-dir", str(tmp_path / "log")])
    assert first == second < 0.05
    started, epoch = map(json.loads, (tmp_path / "log" / "log.jsonl").read_text().splitlines())
    assert (started["ranks"], started["average"], epoch["test_error"]) == (2, False, first)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("epoch 1/1: train error ") and f"test error {first:.2%}" in line


def test_the_sum_of_two_ranks_is_one_rank_with_both_batches():
    options = ["--quick"]  # the sum
    one = main([*options, "--batch-size", "20"])
    assert run_threads(main, 2, [*options, "--batch-size", "10"]) == [one, one]
    assert run_threads(main, 2, ["--quick", "--average", "--batch-size", "10"])[0] != one


def test_a_quick_run_takes_the_options_that_are_given(capsys):
    main(["--quick", "--limit-train", "40", "--limit-test", "20", "--epochs", "2"])
    header, *epochs = capsys.readouterr().out.splitlines()
    assert header == "ranks: 1, images per rank and step: 32, 40 of synthetic train"
    assert [line[:9] for line in epochs] == ["epoch 1/2", "epoch 2/2"]


@pytest.mark.skipif(not has_torch, reason="PyTorch is not installed")
def test_batches_of_pytorch(data_dir):  # noqa: F811
    options = ["--data-dir", data_dir, "--model", "cnn", "--batch-size", "10", "--epochs", "1"]
    own = run_threads(main, 2, options)
    assert run_threads(main, 2, [*options, "--loader", "torch"]) == own  # no images are left over: the same batches


@pytest.mark.skipif(has_torch, reason="PyTorch is installed")
def test_without_pytorch_one_line_says_so():
    with pytest.raises(SystemExit, match="--loader torch needs PyTorch, which is not installed: pip"):
        main(["--quick", "--loader", "torch"])


def test_bad_options(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--sigma-v", "0"])
    assert "--sigma-v: must be above 0 and finite, got 0" in capsys.readouterr().err
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit, match=r"error: the callback Log failed in fit_begin: FileExistsError: "):
        main(["--quick", "--log-dir", str(file)])


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc")
def test_real_ranks():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = mpirun(["-m", "examples.ddp_mnist", "--quick", "--progress", "lines"], 2, 60)
    assert (result.returncode, result.stderr) == (0, "")
    header, line = result.stdout.splitlines()
    assert header == "ranks: 2, images per rank and step: 32, 500 of synthetic train"
    assert line.startswith("epoch 1/1: train error ")
