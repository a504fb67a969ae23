"""The MNIST example on digits drawn by the test, and on the synthetic set; on one process and on many ranks."""

import json
import sys
from unittest import mock

import numpy as np
import pytest

from examples.mnist import main, make_cnn, make_mlp
from pytagi_ddp.distributed import run_threads
from pytagi_ddp.nn import DDPSequential, Remax
from pytagi_ddp.training import Trainer
from tests.mpi.run import mpirun

FEW = ["--data", "synthetic", "--epochs", "1", "--limit-train", "500", "--limit-test", "200"]


@pytest.fixture
def data_dir(tmp_path):
    """600 and 100 images in MNIST's format: class k is a bright block at place k, with noise."""
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 600), ("t10k", 100)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 100, (count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[7 * (label // 4) : 7 * (label // 4) + 7, 7 * (label % 4) : 7 * (label % 4) + 7] += 120
        write(tmp_path / f"{prefix}-images-idx3-ubyte", images)
        write(tmp_path / f"{prefix}-labels-idx1-ubyte", labels)
    return str(tmp_path)


def write(path, array):
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize("options", [["mlp"], ["cnn"], ["mlp", "--sigma-v", "0.3"]], ids="-".join)
def test_learns(data_dir, capsys, options):
    error = main(["--model", *options, "--data-dir", data_dir, "--batch-size", "16"])
    assert error < 0.05
    header, *lines = [line for line in capsys.readouterr().out.splitlines() if " left, " not in line]  # in slow epochs
    assert header.startswith("ranks: 1, images per rank and step: 16, 600 of ")
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert f"test error {error:.2%}" in lines[1]


def test_remax_predicts_probabilities(data_dir):
    with mock.patch.object(Trainer, "fit", autospec=True, side_effect=Trainer.fit) as fit:
        assert main(["--head", "remax", "--data-dir", data_dir, "--batch-size", "16"]) < 0.2
    trainer, _, test = fit.call_args.args
    p, _ = trainer.net.predict(next(iter(test))[0])
    assert p.min() >= 0 and p.sum(1) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_two_ranks_learn_digits(data_dir, tmp_path, capsys, model):
    options = ["--data", "mnist", "--data-dir", data_dir, "--model", model, "--batch-size", "8", "--epochs", "1"]
    first, second = run_threads(main, 2, [*options, "--log-dir", str(tmp_path / "log")])
    assert first == second < 0.05
    started, epoch = map(json.loads, (tmp_path / "log" / "log.jsonl").read_text().splitlines())
    assert (started["ranks"], started["average"], epoch["test_error"]) == (2, False, first)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("epoch 1/1: train error ") and f"test error {first:.2%}" in line


def test_the_sum_of_two_ranks_is_one_rank_with_both_batches():
    one = main([*FEW, "--batch-size", "20"])
    assert run_threads(main, 2, [*FEW, "--batch-size", "10"]) == [one, one]
    assert run_threads(main, 2, [*FEW, "--average", "--batch-size", "10"])[0] != one


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks through /proc")
def test_real_ranks():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    result = mpirun(["-m", "examples.mnist", *FEW, "--progress", "lines"], 2, 60)
    assert (result.returncode, result.stderr) == (0, "")
    header, line = result.stdout.splitlines()
    assert header == "ranks: 2, images per rank and step: 32, 500 of synthetic train"
    assert line.startswith("epoch 1/1: train error ")


def test_a_damaged_file_is_one_line(data_dir, tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SystemExit, match=r"error on rank 0: .*expected 470416 bytes .*, found 1000"):
        main(["--data-dir", data_dir])


def test_evidence_is_forgotten_before_the_first_epochs_but_the_first(data_dir):
    with mock.patch.object(DDPSequential, "forget_evidence", autospec=True) as forget:
        main(["--data-dir", data_dir, "--limit-train", "64", "--epochs", "5", "--forget", "3"])
    assert [call.args[1:] for call in forget.call_args_list] == [(3.0,)] * 3


def test_bad_options(capsys, tmp_path):
    cases = [
        ("batch-size", "0", "at least 1, got 0"),
        ("seed", "-1", "at least 0, got -1"),
        ("limit-train", "-5", "at least 1, got -5"),
    ]
    for option, value, words in (*cases, ("forget", "nan", "at least 1 and finite")):
        with pytest.raises(SystemExit):
            main([f"--{option}", value])
        assert f"--{option}: must be {words}" in capsys.readouterr().err
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit, match=r"error: the callback Log failed in fit_begin: FileExistsError: "):
        main([*FEW, "--log-dir", str(file)])


def test_networks():
    assert make_mlp().num_parameters == 784 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10
    assert make_cnn(11).out_shape.size == 11
    assert isinstance(make_cnn(is_remax=True).layers[-1], Remax)
