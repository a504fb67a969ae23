"""A step that is cut anywhere has the bits of the whole one."""

import copy

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.kernels.tensors import Tensor
from pytagi_ddp.nn.core.stepping import SEGMENT, Stepping, cut
from tests.nn.networks import randomise


def network():
    lstm = nn.LSTM(3, 5, False, 2)
    return randomise(nn.Sequential(lstm, nn.Linear(5, 37), nn.ReLU(), nn.LayerNorm([37]), nn.Linear(74, 700)))


def with_deltas(net):
    rng = np.random.default_rng(2)
    net.arena.delta[:] = rng.normal(size=net.arena.delta.shape) * np.array([[1.0], [3.0]])
    net.arena.delta[:, ::17] *= 1000  # capped
    return net


@pytest.mark.parametrize("samples", [1, 4, 300])
@pytest.mark.parametrize("rate", [0, 0.1])
@pytest.mark.parametrize("cuts", [[1], [16, 17, 40_000], [0, 3, 333, 52_000, 52_001]])
def test_any_cut_of_the_arena(cuts, samples, rate):
    whole = with_deltas(network())
    whole.arena.cut_steps(float(rate > 0))
    parts = copy.deepcopy(whole)
    P = whole.num_parameters
    whole.arena.step(samples, rate=rate)
    factors = np.array([1, samples, 1, rate], np.float32)
    negative = dict.fromkeys(range(len(whole.arena.leaves)), 0)
    for start, stop in zip([0, *cuts], [*cuts, P], strict=True):
        rows = Tensor(*(row[start:stop] for row in (*parts.arena.theta, *parts.arena.delta)))
        stepping = Stepping(cut(whole.arena._stepped(), start, stop), parts.kernels, start)
        stepping.step(rows, factors)
        for leaf, count in stepping.negative_variances():
            negative[leaf] += count
    assert (whole.arena.theta == parts.arena.theta).all()
    assert list(negative.values()) == list(whole.arena.negative_variances().values())
    assert sum(negative.values()) > 100


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_step_that_is_refused_changes_no_part(row, bad):
    """Neither the first nor the last: the one that is not finite lies in between."""
    net = with_deltas(network())
    net.arena.delta[row, net.num_parameters // 2] = bad
    before = net.arena.theta.copy()
    with pytest.raises(FloatingPointError, match=f"^1 of {net.num_parameters} parameters .* nothing has changed"):
        net.arena.step(4)
    np.testing.assert_array_equal(net.arena.theta, before)
    assert sum(net.get_neg_var_w_counter().values()) == 0


def test_parts_lie_within_one_tensor_and_cover_all():
    means = network().arena.unfrozen()
    parts = cut(means, 7, 40_000)
    assert [part.begin for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert (parts[0].begin, parts[-1].end) == (7, 40_000)
    assert max(map(len, parts)) == SEGMENT
    for part in parts:
        (whole,) = (spec for spec in means if spec.name == part.name)
        assert whole.clipped(part.begin, part.end) == part
        assert 0 <= part.start < part.stop <= part.size == whole.size
    assert {part.steps for part in parts} == {1, 2}
