"""Digits for the gallery, and a program of it with data in files."""

import re
import runpy

import numpy as np
import pytest

from examples.digits import draw_digits, load_digits, parser
from tests.examples.test_mnist import write


def test_drawn_digits_are_of_all_classes_and_can_be_told_apart():
    (x, label), (x_new, label_new) = (draw_digits(1000, seed) for seed in (0, 1))
    assert x.shape == (1000, 28, 28) and x.dtype == np.float32 and x.min() == 0 and 0.9 < x.max() <= 1
    assert np.bincount(label).tolist() == [100] * 10
    np.testing.assert_array_equal(draw_digits(1000, 0)[0], x)
    means = np.stack([x[label == k].mean(0).ravel() for k in range(10)])
    nearest = np.square(x_new.reshape(-1, 1, 784) - means).sum(2).argmin(1)
    assert 0.1 < np.mean(nearest != label_new) < 0.5  # neither trivial nor noise
    blank = x[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert blank.mean() < 0.1  # a digit does not leave the image


def test_options_say_how_many():
    read = parser("digits").parse_args
    assert [len(part) for part in load_digits(read(["--train", "50"]))] == [50, 50, 2000, 2000]
    assert [len(part) for part in load_digits(read(["--quick"]))] == [400, 400, 200, 200]


@pytest.mark.slow
def test_a_program_takes_mnist_from_files(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed").use("agg")
    import matplotlib.pyplot as plt

    for prefix, count, seed in (("train", 500, 0), ("t10k", 100, 1)):
        x, label = draw_digits(count, seed)
        write(tmp_path / f"{prefix}-images-idx3-ubyte", 255 * x)
        write(tmp_path / f"{prefix}-labels-idx1-ubyte", label)
    monkeypatch.setattr("sys.argv", ["plot_foreign", "--data", str(tmp_path)])
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.extend(plt.gcf().axes))
    found = runpy.run_module("examples.gallery.plot_foreign")
    plt.close("all")
    assert len(found["x"]) == 500 and len(found["x_new"]) == 100 and found["x"].max() == 1
    assert len(shown) == 2 + len(found["foreign"])
    scores = dict(re.findall(r"(.+): AUROC ([\d.]+) by entropy", capsys.readouterr().out))
    assert scores.keys() == found["foreign"].keys() - {"digits"}
    assert float(scores["noise"]) > 0.6
