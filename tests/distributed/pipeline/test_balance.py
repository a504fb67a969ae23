"""Where networks are cut."""

from itertools import combinations, pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.distributed.pipeline import balance
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10
from pytagi_ddp.nn.tools.profile import LayerTime, Profile


def network() -> nn.Sequential:
    """Seven layers, three of them activations; block 4 has two leaves with parameters."""
    block = nn.LayerBlock(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 20))
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 20), nn.ReLU(), block, nn.Linear(20, 2), nn.Remax())


def profiled(net: nn.Sequential, monkeypatch, milliseconds: list[float], megabytes: list[float]) -> None:
    """Has a network's profile say these times, half forward and half backward, and this memory, of each leaf."""
    rows = [
        LayerTime("", "", ms / 2, ms / 2, round(mb * 1e6), 0.1)
        for ms, mb in zip([*milliseconds, 50, 50], [*megabytes, 500, 0], strict=True)
    ]
    monkeypatch.setattr(net, "profile", lambda x, repeat: Profile(tuple(rows), 1, "cpu"), raising=False)


def test_the_slowest_stage_takes_as_little_time_as_it_can(monkeypatch):
    net = network()
    profiled(net, monkeypatch, [4, 1, 2, 1, 3, 3, 3, 1, 1], [0] * 9)  # the block takes 9
    assert balance.balance_by_time(net, None, 1) == [7]
    assert balance.balance_by_time(net, None, 2) == [3, 4]  # 7 and 12: the activation before the block is on its side
    assert balance.balance_by_time(net, None, 3) == [3, 2, 2]


def test_the_largest_stage_takes_as_little_memory_as_it_can(monkeypatch):
    net = network()
    profiled(net, monkeypatch, [1] * 9, [0] * 9)
    assert balance.balance_by_size(net, None, 2) == [3, 4]  # 270 parameters, 1292
    profiled(net, monkeypatch, [1] * 9, [9, 0, 0, 0, 0, 0, 0, 1, 1])
    assert balance.balance_by_size(net, None, 2) == [1, 6]


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_no_other_cut_is_better(stages):
    rng = np.random.default_rng(stages)
    for _ in range(50):
        costs = rng.integers(1, 20, 9).tolist()
        net = SimpleNamespace(layers=[None] * 9)

        def worst(cuts, costs=costs):
            return max(sum(costs[a:b]) for a, b in pairwise([0, *cuts, 9]))

        found = balance._cut(net, costs, stages)
        best = min(worst(cuts) for cuts in combinations(range(1, 9), stages - 1))
        assert worst(np.cumsum(found)[:-1].tolist()) == best


def test_measured():
    net, x = resnet8_cifar10(), np.random.default_rng(0).normal(size=(2, 3, 32, 32))
    kept = net.state_dict()
    for counts in (balance.balance_by_time(net, x, 2, repeat=1), balance.balance_by_size(net, x, 2)):
        assert sum(counts) == len(net.layers)
        assert min(counts) >= 1
    assert net.state_dict() == kept


def test_products():
    """ResNet18: all blocks have as many products, but the strided ones; the first unit and the end have few."""
    net = resnet18_cifar10()
    assert balance.balance_by_products(net, 2) == [7, 6]
    assert balance.balance_by_products(net, 13) == [1] * 13  # behind an activation too, as there are no other cuts


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [
        ([7], ValueError, "balance=.7. is for 1 stages, there are 2"),
        ([7, 0], ValueError, r"balance\[1\] must be at least 1, got 0"),
        ([3.5, 3.5], TypeError, r"balance\[0\] must be an integer, got 3.5"),
        ([3, 3], ValueError, "is for 6 layers, the network has 7"),
    ],
)
def test_refused(counts, error, message):
    with pytest.raises(error, match=message):
        balance.check_balance(counts, 7, 2)


@pytest.mark.parametrize("stages", [0, 8])
def test_fewer_layers_than_stages(stages):
    with pytest.raises(ValueError, match=f"a network of 7 layers cannot be cut into {stages} stages"):
        balance.balance_by_products(network(), stages)
