"""`Sequential.inspect`: each number is what its definition says, and the network stays as it was."""

import math

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.nn.tools.inspection import HEADER
from tests.learning import backpropagate
from tests.nn.test_profile import batch, network


def dense() -> nn.Sequential:
    manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))


def test_units():
    net = nn.Sequential(nn.Linear(1, 4, bias=False), nn.ReLU(), nn.Linear(4, 1), nn.Sigmoid())
    first = net.layers[0]
    first.mu_w, first.var_w = [1, -1, 1e-4, 1], [0.25, 0.25, 0, 4]
    net.layers[2].mu_b = [9]
    rows = net.inspect([[1], [2]]).rows
    assert [row.layer for row in net.inspect(np.zeros((0, 1))).rows] == [row.layer for row in rows]
    assert rows[0].uncertain == 0.25  # the last unit: 2 > 1
    assert math.isnan(rows[0].dead) and math.isnan(rows[0].saturated)
    assert rows[1].dead == 0.5  # the second, which is off, and the third, which is less than 1/1000 of the largest
    assert rows[1].saturated == 0.25  # of a ReLU: those that are off
    assert rows[3].saturated == 1  # p (1 - p) of a sigmoid at 9
    assert rows[3].uncertain == 0


def test_dead_channels_of_an_image():
    net = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False, in_width=2, in_height=2), nn.ReLU(), nn.Linear(8, 1))
    net.layers[0].mu_w = [1, -1]
    row = net.inspect(np.ones((3, 4))).rows[1]
    assert (row.dead, row.saturated) == (0.5, 0.5)
    assert net.inspect([[1, 1, 1, -1]]).rows[1].dead == 0


def test_weights_against_their_prior():
    net = dense()
    layer = net.layers[0]
    prior = layer.var_w[0]
    layer.mu_w = np.arange(8)
    layer.var_w[:] = prior / 4
    layer.var_b[:] = prior
    row, activation, _ = net.inspect([[1, 2]]).rows
    np.testing.assert_allclose(row.snr, np.array([0, 3, 6]) / np.sqrt(prior / 4), rtol=1e-6)  # of 0 to 7
    assert row.var_ratio == pytest.approx((8 / 4 + 4) / 12)
    assert math.isnan(activation.var_ratio) and math.isnan(activation.snr[0])
    layer.var_w[:] = 0
    assert net.inspect([[1, 2]]).rows[0].snr == (math.inf,) * 3


def test_what_the_cap_cuts():
    """Of a wild observation: the parameters that the step moves by less than their delta."""
    net = dense()
    x = np.random.default_rng(0).normal(size=(16, 2))
    assert math.isnan(net.inspect(x).rows[0].capped)
    backpropagate(net, x, np.full(16, 30.0), 0.01)
    shares = [net.inspect(x).rows[k].capped for k in (0, 2)]
    expected = []
    for layer in (net.layers[0], net.layers[2]):
        fields = [(f"{moment}_{part}", moment) for part in "wb" for moment in ("mu", "var")]
        expected.append(
            {
                field: (np.array(getattr(layer, field)), np.array(getattr(layer, f"delta_{field}")))
                for field, _ in fields
            }
        )
    net.step()
    for layer, share, before in zip((net.layers[0], net.layers[2]), shares, expected, strict=True):
        cut = {f: np.abs(getattr(layer, f) - old) < 0.999 * np.abs(delta) - 1e-6 for f, (old, delta) in before.items()}
        assert share == np.mean(np.concatenate([cut["mu_w"] | cut["var_w"], cut["mu_b"] | cut["var_b"]]))
    assert max(shares) > 0
    assert 0 <= net.inspect(x).rows[0].capped <= 1  # of the step that was taken
    net.passes.samples = None  # a pass that was cut short
    assert math.isnan(net.inspect(x).rows[0].capped)


def test_nothing_is_known_of_the_cap_once_deltas_are_dropped():
    """It was 0."""
    net = dense()
    x = np.random.default_rng(0).normal(size=(16, 2))
    backpropagate(net, x, np.full(16, 30.0), 0.01)
    net.step()
    assert net.inspect(x).rows[0].capped > 0
    net.load_state_dict(net.state_dict())
    assert math.isnan(net.inspect(x).rows[0].capped)
    backpropagate(net, x, np.full(16, 30.0), 0.01)
    assert net.inspect(x).rows[0].capped > 0


def test_a_network_in_shards():
    """Has no batch sums at hand; the rest is there while its parameters are."""
    x = np.ones((4, 2))
    expected = dense().inspect(x)
    net = nn.FSDPSequential(dense())
    with pytest.raises(RuntimeError, match="in shards"):
        net.model.inspect(x)
    with net.unshard():
        assert repr(net.model.inspect(x)) == repr(expected)


def test_rows_are_the_layers():
    net = network()
    table = net.inspect(batch())
    assert table.batch == len(batch())
    assert [row.key for row in table.rows] == [*dict(net.named_leaves())]


def test_printed_table():
    first, *rows = repr(dense().inspect([[1, 2]])).splitlines()
    assert first.split() == [word for title in HEADER for word in title.split()]
    assert [row.split()[0] for row in rows] == ["Linear.0", "ReLU.1", "Linear.2"]
    assert rows[0].endswith(" 1") and "%" in rows[1]


def test_a_batch_that_does_not_fit():
    with pytest.raises(ValueError, match="mu_x holds 3 values"):
        dense().inspect([1, 2, 3])
