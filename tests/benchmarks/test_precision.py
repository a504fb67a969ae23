"""The comparison of precisions: networks learn alike, and are not the same."""

import pytest

from benchmarks.merging import evaluate
from benchmarks.precision import PRECISIONS, trained
from benchmarks.workloads import mlp
from pytagi_ddp import nn
from pytagi_ddp.data import BatchLoader, synthetic_images
from pytagi_ddp.kernels.cpu.linear import why_not_mixed

pytestmark = pytest.mark.skipif(why_not_mixed() is not None, reason=str(why_not_mixed()))


def test_networks_learn_alike():
    data, test = synthetic_images(400, 200)
    x, labels = next(iter(BatchLoader(test, len(test), evaluation=True, mean=data.mean(), std=data.std())))
    make = lambda: mlp(nn, 3 * 32 * 32, 32, 11)  # noqa: E731
    results = [evaluate(trained(make, p, data, 16, 2, 0, 0.3), x, labels) for p in PRECISIONS]
    (error, nll), (mixed_error, mixed_nll) = results
    assert 0 < error < 0.8  # chance is 0.9
    assert abs(mixed_error - error) < 0.1
    assert abs(mixed_nll - nll) < 0.3
    assert results[0] != results[1]
