"""`freeze` of layers and blocks; `tests/battery` checks that each layer stays as it is."""

import copy
import pickle

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.nn.run.rebuild import keep_layers
from tests.battery.example import observe, train


def network() -> nn.Sequential:
    manual_seed(2)
    block = nn.ResNetBlock(nn.LayerBlock(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5)))
    return nn.Sequential(nn.Linear(4, 5), block, nn.ReLU(), nn.Linear(5, 2))


def moments(net: nn.Sequential) -> np.ndarray:
    return net.arena.theta.copy()


def test_a_block_freezes_all_in_it():
    net = network()
    block = net.layers[1]
    block.freeze()
    assert block.frozen and not net.layers[2].frozen
    assert [key for key, leaf in net.named_leaves() if leaf.frozen] == ["Linear.main.1.0", "Linear.main.1.2"]
    before = moments(net)
    train(net, 4, 4, 4)
    of_block = slice(25, 25 + 60)
    changed = (moments(net) != before).any(0)
    assert not changed[of_block].any() and changed[:25].any() and changed[85:].any()
    block.main_block.layers[0].unfreeze()
    assert not block.frozen and block.main_block.layers[2].frozen


def test_all_layers():
    net = network()
    for layer in net.layers:
        layer.freeze()
    before = moments(net)
    train(net, 4, 4, 4)
    net.forget_evidence(2)
    np.testing.assert_array_equal(moments(net), before)
    assert net.get_neg_var_w_counter()["Linear(4,5)"] == 0


def test_a_layer_without_parameters_has_nothing_to_freeze():
    layer = nn.ReLU()
    layer.freeze()
    assert not layer.frozen and repr(layer) == "ReLU()"
    with pytest.raises(AttributeError, match=r"frozen cannot be assigned: call freeze\(\) or unfreeze\(\)"):
        layer.frozen = True


def test_deltas_flow_through():
    """Those of the network's input, and of the layers before, are what they would be."""
    net = network()
    net.input_state_update = True
    twin = copy.deepcopy(net)
    net.layers[3].freeze()
    for each in (net, twin):
        observe(each, 4)
    np.testing.assert_array_equal(net.get_input_states(), twin.get_input_states())
    np.testing.assert_array_equal(net.arena.delta, twin.arena.delta)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_are_frozen_and_files_are_not(duplicate, tmp_path):
    net = network()
    net.layers[0].freeze()
    assert [layer.frozen for layer in duplicate(net).layers] == [True, False, False, False]
    net.save(tmp_path / "net")
    other = network()
    other.layers[3].freeze()
    other.load(tmp_path / "net")
    other.load_state_dict(net.state_dict())
    assert [layer.frozen for layer in other.layers] == [False, False, False, True]


def test_a_resumed_run_that_freezes_the_same_layers_goes_on_alike(tmp_path):
    net = train(network(), 4)
    net.layers[0].freeze()
    train(net, 4, 4)
    net.save(tmp_path / "net")
    resumed = network()
    resumed.layers[0].freeze()
    resumed.load(tmp_path / "net")
    for each in (net, resumed):
        train(each, 3, 4, 4, seed=5)
    assert net.state_dict() == resumed.state_dict()


def test_frozen_before_the_network_is_made_and_when_a_part_is_kept():
    first, last = nn.Linear(4, 5), nn.Linear(5, 2)
    first.freeze()
    net = nn.Sequential(first, nn.ReLU(), last)
    before = np.array(first.mu_w)
    train(net, 4, 4)
    np.testing.assert_array_equal(first.mu_w, before)
    keep_layers(net, 0, 2)
    train(net, 4, 4)
    np.testing.assert_array_equal(first.mu_w, before)


def test_freezing_between_backward_and_step():
    net = network()
    train(net, 4, 4)
    observe(net, 4)
    before = moments(net)
    net.layers[0].freeze()
    net.step()
    changed = (moments(net) != before).any(0)
    assert not changed[:25].any() and changed[25:].any()
    net.layers[0].unfreeze()
    net.step()  # the deltas are there
    assert (moments(net) != before).any(0)[:25].any()


def test_a_bad_delta_of_a_frozen_layer_is_none():
    net = network()
    observe(net, 4)
    net.layers[0].freeze()
    net.arena.delta[0, 3] = np.nan
    net.step()
    net.arena.delta[0, 30] = np.inf
    with pytest.raises(FloatingPointError, match=r"1 of 97 parameters .* layer 1 \(Linear\(5,5\)\)"):
        net.step()


def test_a_frozen_norm():
    """gamma and beta stay, the statistics move; with `training = False` it is the other way round."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm2d(6), nn.Linear(6, 2))
    norm = net.layers[1]
    norm.freeze()
    parameters, statistics = [values.copy() for values in norm.parameters.views], net.arena.statistics.copy()
    train(net, 5, 5)
    assert all(map(np.array_equal, norm.parameters.views, parameters))
    assert (net.arena.statistics != statistics).any()
    norm.unfreeze()
    norm.training = False
    statistics = net.arena.statistics.copy()
    train(net, 5, 5)
    assert not all(map(np.array_equal, norm.parameters.views, parameters))
    np.testing.assert_array_equal(net.arena.statistics, statistics)


def test_tables():
    net = network()
    plain = net.summary()
    assert "frozen" not in plain + repr(net)
    net.layers[0].freeze()
    lines = net.summary().splitlines()
    assert [line.endswith("frozen") for line in lines] == [False, True, *[False] * (len(lines) - 2)]
    assert repr(net).splitlines()[1].endswith("bias=True) frozen")
    inspection = net.inspect(np.ones((3, 4)))
    assert [row.frozen for row in inspection.rows].count(True) == 1 and "Linear(4,5) frozen" in repr(inspection)
