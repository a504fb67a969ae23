"""The comparison of factors: what is asked for is trained, and printed."""

import numpy as np

from benchmarks import forgetting
from benchmarks.workloads import mlp
from pytagi_ddp import nn
from pytagi_ddp.data import synthetic_images


def test_factors_are_compared(monkeypatch, capsys):
    images = synthetic_images(200, 100)
    job = forgetting.Job(lambda: mlp(nn, 3 * 32 * 32, 16, 11), lambda folder: images, 3, 0.3)
    monkeypatch.setattr(forgetting, "JOBS", {"small": job})
    forgetting.main(["small", "--factor", "1", "16", "--seed", "3"])
    *runs, header, _rule, without, with_16 = capsys.readouterr().out.splitlines()
    assert [run.partition(":")[0] for run in runs] == ["factor 1 until 0.7, seed 3", "factor 16 until 0.7, seed 3"]
    assert [run.count("%") for run in runs] == [3, 3]
    assert header.split("|")[1:-1] == [" factor ", " until ", " seed 3 ", "   mean "]
    errors = [float(row.split("|")[4].strip(" %")) for row in (without, with_16)]
    assert min(errors) > 0 and max(errors) < 80  # chance is 90
    left = [float(run.rpartition("variances ")[2].split()[0]) for run in runs]
    assert 0 < left[0] < left[1] <= 1


def test_two_epochs_forget_once(monkeypatch):
    called = []
    monkeypatch.setattr(nn.Sequential, "forget_evidence", lambda net, factor: called.append(factor))
    images = synthetic_images(64, 20)
    job = forgetting.Job(lambda: mlp(nn, 3 * 32 * 32, 8, 11), None, 2, 0.3)
    errors, nll, left = forgetting.train(job, images, 4, 0.7, 0)
    assert called == [4] and len(errors) == 2
    assert 0 < nll < 16 and np.isfinite(left)
