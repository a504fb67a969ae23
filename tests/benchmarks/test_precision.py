"""The comparison of precisions: times in turns, and networks that learn alike."""

import pytest

import pytagi_ddp
from benchmarks.precision import PRECISIONS, evaluate, step_times, train
from benchmarks.workloads import mlp
from pytagi_ddp import nn
from pytagi_ddp.data import synthetic_images
from pytagi_ddp.kernels.cpu.linear import why_not_mixed

pytestmark = pytest.mark.skipif(why_not_mixed() is not None, reason=str(why_not_mixed()))


def test_times_come_in_turns():
    times = step_times("mlp-16-b8", 3)
    assert tuple(times) == PRECISIONS
    assert [len(values) for values in times.values()] == [3, 3]
    assert all(0 < seconds < 10 for values in times.values() for seconds in values)


def test_networks_learn_alike():
    train_set, test_set = synthetic_images(400, 200)
    results = []
    for precision in PRECISIONS:
        pytagi_ddp.manual_seed(0)
        net = mlp(nn, 3 * 32 * 32, 32, 11)
        net.precision = precision
        results.append(evaluate(train(net, train_set, 16, 2, seed=0, sigma_v=0.3), test_set, train_set))
    (error, nll), (mixed_error, mixed_nll) = results
    assert 0 < error < 0.8  # chance is 0.9
    assert abs(mixed_error - error) < 0.1
    assert abs(mixed_nll - nll) < 0.3
    assert results[0] != results[1]
