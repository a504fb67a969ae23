"""The comparison of global batches: ways that are the same by definition agree, and runs that are done stay done."""

import json

import numpy as np
import pytest

from benchmarks.quality import batches
from benchmarks.quality.batches import WAYS, Job, Way
from benchmarks.workloads import mlp
from pytagi_ddp import nn
from pytagi_ddp.data import synthetic_images

IMAGES = synthetic_images(192, 100)
JOB = Job(lambda: mlp(nn, 3 * 32 * 32, 8, 11), lambda folder: IMAGES, 2, 0.3, 192, 4.0)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(batches, "JOBS", {"small": JOB})


def test_ways_of_a_batch():
    assert {how: tuple(way(256))[:4] for how, way in WAYS.items()} == {
        "sum": (256, "sum", 1, 1),
        "sum, caps 3 times tighter": (256, "sum", 1, 1),
        "sum, caps 10 times tighter": (256, "sum", 1, 1),
        "average, 4 ranks": (256, "average", 4, 1),
        "average, ranks of 16 images": (256, "average", 16, 1),
        "merge, 4 ranks, one step each": (256, "precision_weighted", 4, 1),
        "merge, ranks of 16 images, one step each": (256, "precision_weighted", 16, 1),
        "merge, 4 ranks, steps of 16 images": (64, "precision_weighted", 4, 4),
        "sum, in steps of 16 images": (16, "sum", 1, 1),
    }
    assert [WAYS[how](64).caps for how in list(WAYS)[:3]] == [1, 3, 10]
    assert WAYS["average, ranks of 16 images"](16) == WAYS["merge, ranks of 16 images, one step each"](16) == Way(16)


def test_merged_ranks_take_their_steps_between_two_merges(monkeypatch):
    merges, steps = [], []
    merge, step = batches.Replicas.merge, nn.Sequential.step
    monkeypatch.setattr(batches.Replicas, "merge", lambda self: merges.append(self.steps) or merge(self))
    monkeypatch.setattr(nn.Sequential, "step", lambda net: steps.append(net.passes.samples) or step(net))
    batches.train(JOB._replace(epochs=1), IMAGES, WAYS["merge, 4 ranks, steps of 16 images"](192), 1, 0)
    assert merges == [3]
    assert steps == [16] * 12


def test_tighter_caps_and_averages_learn_otherwise_and_forgetting_too():
    found = [batches.train(JOB, IMAGES, Way(96, **options), 1, 0) for options in ({}, {"caps": 10.0})]
    found.append(batches.train(JOB, IMAGES, Way(96, "average", 4), 1, 0))
    found.append(batches.train(JOB, IMAGES, Way(96, "precision_weighted", 2), 1, 0))
    found.append(batches.train(JOB, IMAGES, Way(96, "precision_weighted", 2), 4, 0))
    assert len({nll for _, nll in found}) == len(found)
    assert np.isfinite(found).all() and max(error for error, _ in found) < 0.85  # chance is 0.9


def test_runs_that_are_done_are_not_made_again(small, tmp_path, capsys):
    argv = ["--job", "small", "--batch-size", "16", "64", "--seed", "3", "--results", str(tmp_path / "done.jsonl")]
    argv += ["--forget", "1", "--way", "sum", "--way", "sum, in steps of 16 images"]
    batches.main(argv)
    first = capsys.readouterr().out
    done = [json.loads(line) for line in (tmp_path / "done.jsonl").read_text().splitlines()]
    assert [one["way"] for one in done] == [[16, "sum", 1, 1, 1.0], [64, "sum", 1, 1, 1.0]]
    assert 0 < done[0]["error"] < 0.85 and done[0]["error"] != done[1]["error"]
    rows = {row.split("|")[1].strip(): row.split("|")[2:4] for row in first.splitlines() if row.startswith("| sum")}
    assert rows["sum, in steps of 16 images"] == [rows["sum"][0]] * 2
    assert rows["sum"][0].strip() == f"{100 * done[0]['error']:.1f}, {done[0]['nll']:.2f}"
    assert "small, 192 images, 2 epochs, sigma_v 0.3, evidence forgotten by 1" in first
    assert batches.cell([{"error": 0.5, "nll": 1.0}, {"error": 0.4, "nll": 1.5}]) == "45.0 ± 5.0, 1.25"
    batches.main(argv)
    second = capsys.readouterr().out
    assert first.count("seed 3:") == 2 and "seed 3:" not in second
    assert second.strip() in first


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["--batch-size", "24"], "24: expected a multiple of 16"), (["--batch-size", "256"], "192 training images")],
)
def test_wrong_batches_are_refused(small, argv, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        batches.main(["--job", "small", "--results", str(tmp_path / "none"), *argv])
    assert message in f"{ended.value}{capsys.readouterr().err}"
