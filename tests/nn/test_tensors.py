"""The table of a network's tensors: what is in it, where that lies, and parts of it."""

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.nn.files.state_dicts import check, collect, put, savable
from tests.nn.networks import randomise


def network() -> nn.Sequential:
    block = nn.LayerBlock(nn.Linear(3, 5, bias=False), nn.BatchNorm2d(5), nn.ReLU())
    return randomise(nn.Sequential(nn.LSTM(2, 3), nn.ReLU(), block, nn.Linear(5, 2), nn.BatchNorm2d(2)))


def test_the_tensors_of_a_network():
    net = network()
    assert [(spec.name, spec.size) for spec in net.arena.tensors] == [
        *(("LSTM.0/mu_w", 60), ("LSTM.0/var_w", 60), ("LSTM.0/mu_b", 12), ("LSTM.0/var_b", 12)),
        *(("LSTM.0.carried/mu", 6), ("LSTM.0.carried/var", 6)),
        *(("Linear.2.0/mu_w", 15), ("Linear.2.0/var_w", 15), ("Linear.2.0/mu_b", 0), ("Linear.2.0/var_b", 0)),
        *((f"BatchNorm2d.2.1/{field}", 5) for field in ("mu_w", "var_w", "mu_b", "var_b")),
        *(("BatchNorm2d.2.1.running/mean", 5), ("BatchNorm2d.2.1.running/var", 5)),
        *(("Linear.3/mu_w", 10), ("Linear.3/var_w", 10), ("Linear.3/mu_b", 2), ("Linear.3/var_b", 2)),
        *((f"BatchNorm2d.4/{field}", 2) for field in ("mu_w", "var_w", "mu_b", "var_b")),
        *(("BatchNorm2d.4.running/mean", 2), ("BatchNorm2d.4.running/var", 2)),
    ]
    leaves = dict(net.named_leaves())
    assert net.arena.leaves == list(leaves.values())
    assert all(net.arena.leaves[spec.leaf] is leaves[spec.layer] for spec in net.arena.tensors)
    assert {spec.field for spec in net.arena.tensors if spec.variance} == {"var_w", "var_b", "var"}


def test_each_number_of_a_network_lies_in_one_tensor():
    """Of those of each kind, in each row."""
    net = network()
    arena = net.arena
    for values in (arena.theta, arena.statistics, arena.carried):
        values[...] = np.arange(values.size).reshape(values.shape)
    seen: dict[tuple[str, bool], list[np.ndarray]] = {}
    for spec in arena.tensors:
        values = arena.values(spec)
        row = {"learned": arena.theta[int(spec.variance)], "running": arena.statistics, "carried": arena.carried}
        assert np.array_equal(values, row[spec.kind][spec.begin : spec.end])
        assert not len(values) or np.shares_memory(values, row[spec.kind])
        seen.setdefault((spec.kind, spec.kind == "learned" and spec.variance), []).append(values)
    P = net.num_parameters
    expected = {("learned", False): np.arange(P), ("learned", True): np.arange(P, 2 * P)}
    expected |= {("running", False): np.arange(14), ("carried", False): np.arange(12)}
    assert seen.keys() == expected.keys()
    for which, numbers in expected.items():
        np.testing.assert_array_equal(np.concatenate(seen[which]), numbers)


@pytest.mark.parametrize(
    "begin, end, inside", [(0, 99, (0, 10)), (0, 20, (0, 0)), (22, 25, (2, 5)), (25, 99, (5, 10)), (30, 40, (10, 10))]
)
def test_a_part_is_a_tensor_again(begin, end, inside):
    whole = TensorSpec("mu_w", 10, "learned", layer="Linear.0", offset=20, stop=10, array=np.arange(10))
    part = whole.clipped(begin, end)
    assert (part.start, part.stop) == inside
    assert (len(part), bool(part)) == (inside[1] - inside[0], inside[1] > inside[0])
    assert (part.name, part.size, part.begin) == ("Linear.0/mu_w", 10, 20 + inside[0])
    np.testing.assert_array_equal(part.array, np.arange(*inside))
    assert part.clipped(23, 27) == whole.clipped(max(begin, 23), min(end, 27)) or not part.clipped(23, 27)


def test_a_part_is_read_where_it_lies():
    net = network()
    spec = next(spec for spec in net.arena.tensors if spec.name == "Linear.3/mu_w")
    np.testing.assert_array_equal(net.arena.values(spec.clipped(spec.begin + 2, spec.end)), net.layers[3].mu_w[2:])


def test_a_load_is_checked_before_anything_changes():
    net, other = network(), network()
    other.layers[0].mu_w += 1
    other.arena.carried += 1
    before = net.state_dict(carried=True)
    values = check(net, other.state_dict(carried=True))
    assert net.state_dict(carried=True) == before
    other.layers[3].mu_w *= 2  # what was checked is a copy
    put(net, values)
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(collect(net, True), values, strict=True))
    assert net.state_dict() != other.state_dict()
    net.layers[0].mu_w[0] = np.nan
    net.layers[3].var_b[1] = -1
    found = r"LSTM\.0 mu_w: 1 of 60 values are NaN.*; Linear\.3 var_b holds variances and must not be negative"
    with pytest.raises(ValueError, match=found):
        savable(net)
