"""The MNIST example on digits drawn by the test."""

from unittest import mock

import numpy as np
import pytest

from examples.mnist import main, make_cnn, make_mlp
from pytagi_ddp.nn import Sequential


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
    lines = [line for line in capsys.readouterr().out.splitlines() if " left, " not in line]  # a slow epoch says more
    assert [line.partition(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert f"val error {error:.1%}" in lines[1]


def test_a_damaged_file_is_one_line(data_dir, tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SystemExit, match=r"error: .*expected 470416 bytes .*, found 1000"):
        main(["--data-dir", data_dir])


def test_evidence_is_forgotten_before_the_first_epochs_but_the_first(data_dir):
    with mock.patch.object(Sequential, "forget_evidence", autospec=True) as forget:
        main(["--data-dir", data_dir, "--limit-train", "64", "--epochs", "5", "--forget", "3"])
    assert [call.args[1:] for call in forget.call_args_list] == [(3.0,)] * 3


def test_bad_options(capsys):
    cases = [("batch-size", "0", "at least 1, got 0"), ("limit-train", "-5", "at least 1, got -5")]
    for option, value, words in (*cases, ("forget", "nan", "at least 1 and finite")):
        with pytest.raises(SystemExit):
            main([f"--{option}", value])
        assert f"--{option}: must be {words}" in capsys.readouterr().err


def test_networks():
    assert make_mlp().num_parameters == 784 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10
    assert make_cnn(11).out_shape.size == 11
