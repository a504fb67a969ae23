"""Pictures: what is drawn are the numbers."""

import importlib.util
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from pytagi_ddp import nn, plot
from pytagi_ddp.distributed.pipeline.schedule import make_schedule
from tests.distributed.pipeline.simulated import simulate


@pytest.fixture
def ax():
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    return plot.figure().add_subplot()


def residual() -> nn.Sequential:
    conv = nn.Conv2d(1, 2, 3, padding=1, in_width=4, in_height=4)
    identity = nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()))
    strided = nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(2, 3, 2, stride=2), nn.ReLU()), nn.Conv2d(2, 3, 2, stride=2))
    return nn.Sequential(conv, identity, strided, nn.Linear(12, 2))


def test_band(ax):
    assert plot.band(ax, [1, 0, 2], [10, 0, 20], [1, 4, 9], "mean", "C3", deviations=2) is ax
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[0, 0], [1, 10], [2, 20]])
    corners = {tuple(corner) for corner in ax.collections[0].get_paths()[0].vertices}
    assert {(0, -4), (0, 4), (1, 8), (1, 12), (2, 14), (2, 26)} <= corners
    for var in ([1, 1], [1, -1, 1]):
        with pytest.raises(ValueError, match="as many places, means and variances"):
            plot.band(ax, [0, 1, 2], [0, 1, 2], var)


def test_a_notebook_shows_a_figure(ax):
    assert ax.figure._repr_png_().startswith(b"\x89PNG")
    assert pickle.loads(pickle.dumps(ax.figure))._repr_png_()


def test_reliability(ax):
    p = np.array([[0.95, 0.05], [0.95, 0.05], [0.35, 0.65], [0.25, 0.75]])
    plot.reliability(ax, p, [0, 1, 1, 1], bins=5)
    np.testing.assert_allclose(ax.lines[1].get_xydata(), [[0.7, 1], [0.95, 0.5]])
    first, second = ax.collections[0].get_sizes()
    assert first == second > 0  # two answers each
    assert ax.get_legend().get_texts()[0].get_text() == "calibration error 0.375"  # (0.3 + 0.45) / 2
    plot.reliability(ax, [[1, 0]], [0])  # a confidence of 1 is in the last bin
    with pytest.raises(ValueError, match=r"got \(4, 2\), 3 and 10"):
        plot.reliability(ax, p, [0, 1, 1])


def test_rejection(ax):
    plot.rejection(ax, [0.1, 0.4, 0.2, 0.3], [False, True, False, True])
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[0.75, 0], [0.5, 0], [0.25, 1 / 3], [0, 0.5]])
    plot.rejection(ax, np.arange(1000), np.zeros(1000))
    assert ax.lines[1].get_xdata().max() == 0.98
    plot.rejection(ax, [0], [2.0])
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > 2
    with pytest.raises(ValueError, match="as many uncertainties as answers, got 1 and 2"):
        plot.rejection(ax, [1], [0, 1])


def test_rejection_does_not_depend_on_the_order_of_equal_uncertainties(ax):
    plot.rejection(ax, [2, 1, 1, 2, 1, 1], [True, False, False, False, True, True])
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 0.5)


def test_learning_curves(ax, tmp_path):
    records = [{"event": "epoch", "epoch": n, "train_error": 0.5 / n, "test_error": 0.6} for n in (2, 1, 2)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, records)))
    plot.learning_curves(ax, tmp_path / "log.jsonl")
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[1, 0.5], [2, 0.25]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["train error", "test error"]
    with pytest.raises(ValueError, match=r"has no epoch with rmse"):
        plot.learning_curves(ax, tmp_path / "log.jsonl", ["rmse"])


def test_parameters(ax):
    net = residual()
    plot.parameters(ax, net)
    keys = [key for key, leaf in net.named_leaves() if leaf.num_weights]
    assert sorted(text.get_text() for text in ax.get_legend().get_texts()) == sorted(keys)
    area = [patch.get_path().vertices for patch in ax.patches]
    assert len(area) == len(keys)
    plot.parameters(ax, net, "var_w")  # all equal, as in the prior
    assert ax.get_xlabel() == "log10 var_w"
    net.layers[0].mu_w[:] = 0.5
    net.layers[0].var_w[:] = 0.25  # a standard deviation of 1/2, as large as the mean
    for what, value in (("mu_w", 0.5), ("var_w", np.log10(0.25)), ("std_w", np.log10(0.5)), ("snr_w", 0)):
        ax.clear()
        plot.parameters(ax, net, what)
        drawn = next(patch for patch in ax.patches if patch.get_label() == "Conv2d.0").get_path().vertices
        assert drawn[drawn[:, 1].argmax(), 0] == pytest.approx(value, abs=0.02)
    net.layers[0].var_w[:] = 0
    ax.clear()
    plot.parameters(ax, net, "snr_w")  # is infinite in the first layer
    assert len(ax.patches) == len(keys) - 1
    with pytest.raises(ValueError, match="got 'weights'"):
        plot.parameters(ax, net, "weights")
    with pytest.raises(ValueError, match="the network has no mu_b"):
        plot.parameters(ax, nn.Sequential(nn.Linear(1, 1, bias=False)), "mu_b")


def test_inspection(ax):
    net = residual()
    found = net.inspect(np.ones((2, 16)))
    plot.inspection(ax, found)
    assert [label.get_text() for label in ax.get_yticklabels()] == [row.key for row in found.rows]
    shown = [text.get_text() for text in ax.texts]
    assert shown[:2] == [f"{found.rows[0].uncertain:.2f}", "1.00"]  # the variances are the prior's


def test_timelines(ax):
    stages = simulate(make_schedule(2, 3, "1F1B"), [0.1, 0.1], [0.2, 0.2])
    plot.timelines(ax, stages)
    assert [text.get_text() for text in ax.texts] == [
        str(span.action.micro_batch) for stage in stages for span in stage
    ]
    first_back = stages[1][1]
    bar = ax.patches[len(stages[0]) + 1]
    assert bar.get_x() == pytest.approx(1e3 * first_back.start) and bar.get_width() == pytest.approx(200)
    assert [label.get_text() for label in ax.get_legend().get_texts()] == ["forward", "backward"]


def test_branches(ax):
    branches = nn.Parallel(nn.Linear(3, 2), None, nn.LayerBlock(nn.ReLU(), nn.Linear(3, 4)), merge="concat")
    plot.network(ax, nn.Sequential(nn.Linear(2, 3), branches))
    places = {text.get_text(): text.get_position() for text in ax.texts if text.get_text()}
    names = ["input   2", "Linear   3", "Linear   2", "ReLU   3", "Linear   4", "concat"]
    assert places.keys() == {*names}
    left, right = places["Linear   2"][0], places["ReLU   3"][0]
    assert left < -1 and right == -left and places["concat"][0] == places["input   2"][0] == 0
    assert places["concat"][1] < places["Linear   4"][1] < places["ReLU   3"][1] == places["Linear   2"][1]


def test_network(ax):
    plot.network(ax, residual())
    names = [text.get_text() for text in ax.texts if text.get_text()]
    conv = "Conv2d   2x4x4"
    block = ["Conv2d   3x2x2", "ReLU   3x2x2", "Conv2d   3x2x2"]
    assert names == ["input   1x4x4", conv, conv, "ReLU   2x4x4", "+", *block, "+", "Linear   2"]
    bottom, top = ax.get_ylim()
    assert all(bottom < text.get_position()[1] < top for text in ax.texts if text.get_text())


def test_without_matplotlib(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'pytagi-ddp\[plot\]'"):
        plot.figure()


@pytest.mark.slow
def test_the_module_loads_no_matplotlib():
    code = "import sys, pytagi_ddp.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
