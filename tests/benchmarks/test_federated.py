"""The benchmark of federated training, with few images and clients: hostile ones are named, and runs stay done."""

import json

import numpy as np
import pytest

from benchmarks import federated
from benchmarks.merging import Digits
from pytagi_ddp.data import ImageDataset


@pytest.fixture
def digits(monkeypatch):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (320, 1, 28, 28), np.uint8), np.arange(320) % 10
    data = ImageDataset(images, labels, tuple(map(str, range(10))), "train")
    x = rng.standard_normal((20, 784)).astype(np.float32)
    found = Digits(data, x, labels[:20], data.mean(), data.std())
    monkeypatch.setattr(federated, "load", lambda folder, limit: found)


def test_hostile_clients_are_named(digits, tmp_path, capsys):
    path = tmp_path / "done.jsonl"
    argv = ["--clients", "20", "--passes", "2", "--hostile", "0.35", "--drop-out", "0", "--results", str(path)]
    federated.main(argv)
    (one,) = map(json.loads, path.read_text().splitlines())
    assert one["rounds"] == 4 and len(one["errors"]) == 2
    assert {name: one["left_out"][name] for name in ("nan", "precise", "other network")} == {
        "nan": 2,
        "precise": 2,
        "other network": 2,
    }
    assert one["left_out"]["replayed"] == 1 and "honest" not in one["left_out"]
    assert "20 clients, 10 asked" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="has this run"):
        federated.main(argv)


def test_two_labels_for_each_client():
    labels = np.repeat(np.arange(10), 30)
    shares = federated.shares_of(labels, "two labels", 15, 0)
    assert sorted(np.concatenate(shares)) == list(range(300))
    assert max(len(set(labels[rows])) for rows in shares) == 2
