"""The comparison of heads, on few images."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.quality import calibration
from benchmarks.quality.done import read
from benchmarks.workloads import cifar_cnn, mnist_cnn, tree_head
from pytagi_ddp import nn
from pytagi_ddp.data import BatchLoader, synthetic_images
from pytagi_ddp.distributed import run_threads

IMAGES = synthetic_images(200, 100)


def smaller(data):
    """Every fourth pixel."""
    return replace(data, images=np.ascontiguousarray(data.images[:, :, ::4, ::4]))


SMALL = calibration.Job(
    lambda layers, head: layers.Sequential(layers.Linear(3 * 8 * 8, 16), layers.ReLU(), *head(16)),
    lambda folder: tuple(smaller(data) for data in IMAGES),
    lambda test: calibration.of_digits(test) | {"synthetic": smaller(calibration.of_objects(test)["synthetic"])},
    2,
    0.3,
    0.2,
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(calibration, "JOBS", {"small": SMALL})


def test_runs_are_done_once_and_reported(small, tmp_path, capsys):
    path = tmp_path / "done.jsonl"
    heads = [part for name in calibration.METHODS[:3] for part in ("--method", name)]
    calibration.main([*heads, "--seed", "0", "--results", str(path)])
    capsys.readouterr()
    calibration.main([*heads, "--seed", "0", "1", "--results", str(path)])
    out = capsys.readouterr().out
    lines = [line.split(":")[0] for line in out.splitlines() if ", seed " in line]
    ways = [way for name in calibration.METHODS[:3] for way in (name, calibration.AVERAGED.format(name))]
    assert lines == [f"small, {name}, seed 1" for name in ways]
    done = read(path)
    assert len(done) == 12
    assert len({one["nll"] for one in done}) == 12  # an average is another network
    for one in done:
        assert 0 < one["error"] < 0.85 and 0 < one["nll"] < 10  # chance is 0.9
        assert abs(one["overconfidence"]) <= one["ece"] + 1e-12 <= 1
        assert [len(scores) for scores in one["auroc"].values()] == [3] * 4
    mean = 100 * np.mean([one["error"] for one in done if one["method"] == "Remax"])
    (row,) = (line for line in out.splitlines() if line.startswith("| Remax "))
    assert f"| 2     | {mean:.2f} ±" in row and "| Remax, averaged " in out
    calibration.main(["--method", "Remax", "--seed", "0", "--limit-train", "40", "--results", str(path)])
    out = capsys.readouterr().out
    assert out.index("small, 40 images, 2 epochs") < out.index("small, 200 images, 2 epochs")
    assert [one["images"] for one in read(path)] == [200] * 12 + [40] * 2


def test_trials_have_other_constants_and_images_and_are_runs_of_their_own(small, monkeypatch, tmp_path, capsys):
    options = ["--method", calibration.EVIDENCE, "--seed", "0", "--results", str(tmp_path / "done.jsonl")]
    trial = [*options, "--held-out", "50", "--rates", "1", "0.5", "--warm-up", "0", "--batch-size", "8"]
    given = []

    def measure(job, method, data, *rest):
        given.append((job.evidence_count, job.rates, job.warm_up, job.prior_factor, job.batch_size, *map(len, data)))
        return {method: {"failed": "not finite"}}

    monkeypatch.setattr(calibration, "measure", measure)
    calibration.main([*trial, "--count", "3"])
    assert given == [(3, [1, 0.5], 0, 1, 8, 150, 50)]
    calibration.main([*trial, "--count", "3"])
    assert len(given) == 1  # it is done
    calibration.main([*trial, "--count", "4"])
    calibration.main(options)
    assert [(one[0], one[-1]) for one in given] == [(3, 50), (4, 50), (8, 100)]
    assert (
        "; trial: held out 50, batch size 8, count 4.0, rates [1.0, 0.5], warm up 0.0; AUROC" in capsys.readouterr().out
    )


def test_images_may_be_shifted_and_mirrored(small, tmp_path):
    path = tmp_path / "done.jsonl"
    for options in ([], ["--shift", "1"], ["--flip"]):
        calibration.main(["--method", calibration.EVIDENCE, "--seed", "0", "--results", str(path), *options])
    done = [one for one in read(path) if one["method"] == calibration.EVIDENCE]
    assert [one.get("trial") for one in done] == [None, "shift 1", "flip True"]
    assert len({one["nll"] for one in done}) == 3


def test_a_run_that_diverges_is_reported(small, monkeypatch, tmp_path, capsys):
    def diverges(*args):
        raise FloatingPointError("not finite")

    monkeypatch.setattr(calibration, "train_tagi", diverges)
    run = ["--method", "Remax", "--seed", "0", "--results", str(tmp_path / "done.jsonl")]
    calibration.main(run)
    assert "small, Remax, seed 0: not finite" in capsys.readouterr().out
    calibration.main(run)
    assert "| Remax  | 0, 1 failed |" in capsys.readouterr().out


def test_scores_of_known_predictions():
    """Right with certainty for images of the test set, and no answer for others."""
    _, test = IMAGES
    shown = {name: BatchLoader(some, 50, evaluation=True) for name, some in (("test", test), ("other", test))}
    labels = iter(np.split(test.labels, 2))

    def predict(x):
        known = next(labels, None)
        p = np.full((len(x), 10), 0.1) if known is None else np.eye(10)[known]
        return p, p.min(1)

    scores = calibration.score(predict, shown.pop("test"), shown)
    assert (scores["error"], scores["auroc"]) == (0, {"other": [1.0, 1.0]})
    assert scores["nll"] == pytest.approx(0, abs=1e-5) == scores["ece"]


def test_foreign_images_keep_what_they_should():
    _, test = IMAGES
    foreign = calibration.of_digits(test)
    np.testing.assert_array_equal(
        np.sort(foreign["shuffled"].images.reshape(100, -1)), np.sort(test.images.reshape(100, -1))
    )
    np.testing.assert_array_equal(foreign["turned by 90°"].images[:, :, ::-1].swapaxes(2, 3), test.images)
    assert abs(float(foreign["noise"].images.mean()) - 127.5) < 1
    assert calibration.of_objects(test)["synthetic"].images.shape == (100, 3, 32, 32)


@pytest.mark.parametrize(("make", "pixels"), [(mnist_cnn, 784), (cifar_cnn, 3072), (calibration.mnist_mlp, 784)])
def test_networks_take_any_head(make, pixels):
    x = np.zeros((2, pixels), np.float32)
    for outputs, head in ((11, tree_head(nn)), (10, lambda inputs: [nn.Linear(inputs, 10), nn.Remax()])):
        assert make(nn, head).predict(x)[0].shape == (2, outputs)


def test_pytorch_has_the_time_of_the_evidence_weighted_step(small, tmp_path):
    with pytest.raises(SystemExit, match="no run of small is done"):
        calibration.main(["--method", "softmax, PyTorch", "--results", str(tmp_path / "done.jsonl")])


def test_pytorch_learns_and_drops():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    train, _ = SMALL.load(None)
    loader = BatchLoader(train, 20, prefetch=0)
    predict, steps = calibration.train_torch(SMALL, "MC dropout, PyTorch", loader, 1, 0.5, 0)
    p, variance = predict(np.zeros((3, 192), np.float32))
    assert steps > 5 and variance.min() > 0
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    for optimizer in ("softmax", "SGD with momentum"):
        method = f"{optimizer}, PyTorch, same epochs"
        ordinary, steps = calibration.train_torch(SMALL, method, loader, 40, 0.1, 0)
        assert steps == 40 * len(loader)
        p, variance = ordinary(train.images.reshape(-1, 192) / np.float32(255))
        assert variance is None
        assert (p.argmax(1) == train.labels).mean() > 0.3  # chance is 0.1


def test_ranks_merge_their_posteriors(small, tmp_path, capsys, monkeypatch):
    trained = []

    def on_ranks(train, ranks):
        trained.extend(run_threads(train, ranks))
        return trained

    monkeypatch.setattr(calibration, "run_threads", on_ranks)
    options = ["--method", calibration.EVIDENCE, "--seed", "0", "--batch-size", "10", "--every", "3"]
    calibration.main([*options, "--ranks", "2", "--results", str(tmp_path / "done.jsonl")])
    assert "; trial: batch size 10, ranks 2, every 3; AUROC" in capsys.readouterr().out
    (run,) = read(tmp_path / "done.jsonl")
    assert run["error"] < 0.85
    one, other = trained  # with other images
    for name, parts in one.items():
        np.testing.assert_array_equal(np.concatenate(parts[:4]), np.concatenate(other[name][:4]))
    for wrong in ([], ["--merge", "mean"], ["--ranks", "1"], ["--ranks", "2", "--method", "Remax"]):
        with pytest.raises(SystemExit):
            calibration.main([*options, *wrong])
