"""`check_layer` passes a layer of one's own, says what does not apply to it, and finds one that does wrong."""

import pytest

from pytagi_ddp import nn
from tests.battery import check_layer, numerics
from tests.battery.example import Example
from tests.nn import reference, reference_activation
from tests.nn.carrying import Memory


class Own(nn.LeakyReLU):
    """An activation as it could stand in somebody's program."""

    name = "Own"

    def __init__(self, slope: float = 0.5):
        super().__init__(slope)

    def settings(self):
        return {"slope": self.negative_slope}


class ForgetsItsSlope(Own):
    """In copies."""

    def __getstate__(self):
        return super().__getstate__() | {"negative_slope": 0.9}


@pytest.fixture
def formula(monkeypatch):
    monkeypatch.setitem(reference_activation.FORMULAS, "Own", reference_activation.leaky_relu)


def network(*layers: nn.BaseLayer) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))


def test_a_layer_of_ones_own(formula):
    assert check_layer(lambda: network(Own())) == {}
    with pytest.raises(AssertionError, match="a copy, two steps later: theta differs"):
        check_layer(lambda: network(ForgetsItsSlope()))


def test_what_does_not_apply_is_told(formula):
    skipped = check_layer(lambda: network(nn.BatchNorm2d(6), Own()))
    assert skipped == {"shards_add_up": "statistics of the batch tie its samples together"}


def test_a_layer_that_carries_state(monkeypatch):
    monkeypatch.setitem(reference.LAYERS, Memory, lambda layer, m, s: (m + 1, s, lambda dm, ds, sums: (dm, ds)))
    skipped = check_layer(lambda: network(nn.Tanh(), Memory()))
    assert skipped == {
        "samples_are_predicted_one_by_one": "what is carried from one batch to the next makes a sample depend on those "
        "before it",
        "frames_keep_passes_apart": "what is carried may change in a backward pass, before the next pass there",
    }


def test_a_layer_without_formulas_is_named():
    with pytest.raises(AssertionError, match=r"which numbers of Own are right: add its formulas to reference\.LAYERS"):
        numerics.equals_float64(Example(lambda: network(Own())))
