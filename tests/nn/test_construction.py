"""What a network takes as layers, and what is left of a construction that failed."""

import copy
import pickle
import re

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed import DataParallel
from pytagi_ddp.nn.run.rebuild import keep_layers
from tests.battery.example import train
from tests.nn.networks import assert_matches_reference


def test_a_layer_belongs_to_one_network():
    layer = nn.Linear(3, 3)
    net = nn.Sequential(layer)
    with pytest.raises(ValueError, match=r"Linear\(3,3\) is already part of a network.*copy.deepcopy"):
        nn.Sequential(layer)
    inside = nn.Tanh()
    outside = nn.Sequential(nn.Linear(2, 2), nn.ResNetBlock(nn.LayerBlock(nn.Linear(2, 2), inside)))
    with pytest.raises(ValueError, match=r"Tanh\(\) is already part"):
        nn.Sequential(nn.Linear(2, 2), inside)
    free = nn.Linear(3, 3)
    for again in ([nn.Linear(3, 3), layer], [free, nn.ReLU(), free], [nn.ResNetBlock(free, free)]):
        with pytest.raises(ValueError, match="already part of a network"):
            nn.Sequential(*again)
    nn.Sequential(copy.deepcopy(layer), free)
    assert net.layers == (layer,) and len(outside) == 2
    assert_matches_reference(net)  # it has kept its layer


LAYERS = {
    "dense": lambda: [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)],
    "statistics, in blocks": lambda: [
        nn.Conv2d(1, 2, 3, in_width=2, in_height=2, padding=1),
        nn.BatchNorm2d(2),
        nn.ResNetBlock([nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2)], [nn.Conv2d(2, 2, 1)]),
        nn.Linear(8, 2),
    ],
    "memory": lambda: [nn.LSTM(4, 3), nn.Linear(3, 2)],
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("how", ["copy of the network", "copy of the layers", "pickle of the layers", "old network"])
def test_layers_of_another_network_keep_all_that_it_has_learnt(kind, how):
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    net = nn.Sequential(LAYERS[kind]())
    train(net, 1, 1, 1)
    twin = copy.deepcopy(net)
    if how == "copy of the network":
        other = nn.Sequential(*copy.deepcopy(net).layers)
    elif how == "copy of the layers":
        other = nn.Sequential(copy.deepcopy(net.layers))
    elif how == "pickle of the layers":
        other = nn.Sequential(pickle.loads(pickle.dumps(net[:])))
    else:
        net.add_hook(before=lambda leaf, direction: pytest.fail("a hook of the network that is gone"))
        layers = net[:]
        del net
        other = nn.Sequential(layers)
    for _ in range(2):
        assert other.state_dict(carried=True).keys() == twin.state_dict(carried=True).keys()
        for mine, of_twin in zip(other.predict(x), twin.predict(x), strict=True):
            np.testing.assert_array_equal(mine, of_twin)
        train(other, 1, 1)
        train(twin, 1, 1)


def test_layers_that_a_network_has_given_up_keep_their_statistics():
    net = nn.Sequential(LAYERS["statistics, in blocks"]())
    train(net, 1, 1, 1)
    twin, first, shape = copy.deepcopy(net), net[:2], net[2].in_shape
    keep_layers(net, 2, 4)
    front = nn.Sequential(first)
    assert front.out_shape.image == shape.image
    for key, values in front.state_dict().items():
        for mine, of_twin in zip(values, twin.state_dict()[key], strict=True):
            np.testing.assert_array_equal(mine, of_twin)


def test_layers_by_number():
    layers = [nn.Linear(2, 3), nn.LayerBlock([nn.ReLU(), nn.Linear(3, 3)]), nn.Tanh()]
    net, block = nn.Sequential(layers), layers[1]
    assert net.layers == tuple(layers)
    assert [net[0], net[-1], net[np.int64(1)]] == [layers[0], layers[2], block]
    assert (len(net), list(net), net[1:]) == (3, layers, (block, layers[2]))
    assert (len(block), list(block), block[::-1]) == (2, [*block.layers], block.layers[::-1])
    assert layers[2] in net and layers[2] not in block
    with pytest.raises(IndexError, match="there is no layer 3: this Sequential has 3 layers"):
        net[3]
    with pytest.raises(TypeError, match=r"layers have numbers, and slices of them, got 'Linear\.0'; by key"):
        net["Linear.0"]


@pytest.mark.parametrize("many", [list, tuple])
def test_layers_in_a_list_are_those_one_by_one(many):
    parts = [nn.Linear(2, 3), nn.ResNetBlock(many([nn.Linear(3, 3), nn.ReLU()]), many([nn.Linear(3, 3)]))]
    written_out = [
        nn.Linear(2, 3),
        nn.ResNetBlock(nn.LayerBlock(nn.Linear(3, 3), nn.ReLU()), nn.LayerBlock(nn.Linear(3, 3))),
    ]
    assert repr(nn.Sequential(many(parts))) == repr(nn.Sequential(*written_out))


NET = nn.Sequential(nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("thing", "name", "remedy"),
    [
        (NET, "to", "call to_device"),
        (NET, "cuda", "call to_device"),
        (NET, "append", "make a new one"),
        (NET, "zero_grad", "there are no gradients"),
        (NET, "compile", "fit trains it"),
        (NET, "named_parameters", "state_dict"),
        (NET, "modules", "named_layers"),
        (NET[0], "weight", "mu_w, var_w, mu_b, var_b"),
        (NET[0], "to", "of the network"),
        (NET[0], "eval", "assign `training`"),
        (NET[0], "in_features", "input_size"),
    ],
)
def test_names_of_other_libraries_are_answered_by_those_of_this_one(thing, name, remedy):
    assert not hasattr(thing, name)
    with pytest.raises(AttributeError, match=f"{type(thing).__name__!r} object has no attribute {name!r}.*{remedy}"):
        getattr(thing, name)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("to", "; of the network, `model`: call to_device"),
        ("module", ": the network is `model`"),
        ("summary", ": it is one of the network, `model.summary`"),
    ],
)
def test_a_wrapper_names_the_network(name, remedy):
    net = nn.DDPSequential(copy.deepcopy(NET))
    with pytest.raises(AttributeError, match=f"'DDPSequential' object has no attribute {name!r}{remedy}"):
        getattr(net, name)


def test_what_is_named_in_remedies_is_there():
    from pytagi_ddp.nn.core.attributes import LAYER, NETWORK

    for table in (NETWORK, LAYER):
        for remedy in table.values():
            for name in re.findall(r"(\w+)\(", remedy):
                assert any(hasattr(owner, name) for owner in (NET, NET.passes, copy, nn)), name
    assert not any(hasattr(NET, name) for name in NETWORK)
    assert not any(hasattr(NET[0], name) for name in LAYER)


def test_other_names_hide_no_error():
    with pytest.raises(AttributeError, match=r"object has no attribute 'nothing'$"):
        _ = NET.nothing
    block = nn.ResNetBlock(nn.Linear(2, 2))
    with pytest.raises(AttributeError, match="deltas inside a network are not kept"):  # raised by a property
        _ = block.input_delta_z


@pytest.mark.parametrize("wrap", [lambda net: net, nn.DDPSequential, lambda net: DataParallel(net, ["cpu"])])
def test_modes_as_in_pytorch(wrap):
    net = wrap(nn.Sequential(nn.Linear(2, 1)))
    network = getattr(net, "model", net)
    for call, training in ((net.eval, False), (net.train, True), (lambda: net.train(False), False)):
        assert call() is net
        assert network.training is training
    assert "(0): Linear(input_size=2, output_size=1, bias=True)" in repr(net)


def test_layers_of_a_failed_construction_are_free():
    first, block, act = nn.Linear(3, 4), nn.LayerBlock(nn.Linear(4, 4), nn.Tanh()), nn.Sigmoid()
    residual = nn.ResNetBlock(block, nn.Linear(4, 4))
    with pytest.raises(ValueError, match="needs 5 inputs, the layer before gives 4"):
        nn.Sequential(first, act, residual, nn.Linear(5, 2))
    with pytest.raises(ValueError, match="already part of a network"):
        nn.Sequential(first, first)
    assert_matches_reference(nn.Sequential(first, act, residual, nn.Linear(4, 2)))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "at least one layer"),
        ([nn.ReLU()], "size of the input is unknown"),
        ([nn.AvgPool2d(2)], "size of the input is unknown"),
        ([nn.Linear(2, 3), nn.Linear(4, 1)], r"Linear\(4,1\) needs 4 inputs, the layer before gives 3"),
        (
            [nn.Conv2d(1, 2, 1, in_width=4, in_height=3), nn.Linear(23, 1)],
            r"needs 23 inputs, the layer before gives 2x3x4",
        ),
        (
            [nn.Conv2d(1, 2, 1, in_width=4, in_height=4), nn.Conv2d(8, 1, 1, in_width=2, in_height=2)],
            "has in_height 2 and in_width 2, the layer before gives 2x4x4",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_named(layers, message):
    with pytest.raises(ValueError, match=message):
        nn.Sequential(*layers)


@pytest.mark.parametrize("container", [nn.Sequential, nn.LayerBlock])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([nn.Linear(1, 1)], r"a list of layers: unpack it, as \*net\[:2\]"),
        ([3], r"list: \[3\]"),
        (nn.ReLU, r"the class ReLU: write ReLU\(\.\.\.\)"),
        (NET, "a Sequential: for layers within a network use LayerBlock"),
        ({"a": nn.Linear(1, 1)}, "a dict: pass its values"),
        ("Linear", "str: 'Linear'"),
        (None, "NoneType: None"),
        (3, "int: 3"),
    ],
)
def test_what_is_not_a_layer(container, wrong, message):
    for layers in ([nn.Linear(1, 1), wrong], [[wrong, nn.ReLU()]]):
        with pytest.raises(TypeError, match=f"{container.__name__} takes layers, got {message}"):
            container(*layers)
    with pytest.raises(ValueError, match="at least one layer"):
        container([])
    with pytest.raises(TypeError, match="takes layers, got str"):
        nn.ResNetBlock("Linear")


BAD = {
    ValueError: [
        (lambda: nn.Linear(0, 1), r"Linear: input_size must be at least 1, got 0"),
        (lambda: nn.Linear(2, -3), r"output_size must be at least 1, got -3"),
        (lambda: nn.Linear(2, 1, init_method="foo"), "unknown init_method 'foo'"),
        (lambda: nn.Linear(2, 1, gain_weight=float("nan")), "gain"),
        (lambda: nn.Conv2d(0, 1, 1), r"in_channels must be at least 1, got 0"),
        (lambda: nn.Conv2d(1, 1, 1, init_method="foo"), "unknown init_method 'foo'"),
        (lambda: nn.Conv2d(1, 1, 1, gain_bias=float("inf")), "gain"),
        (lambda: nn.BatchNorm2d(3, gain_weight=float("nan")), "gain"),
        (lambda: nn.Linear(2, 1, gain_weight=1e20), r"gain_weight must be in \[0, 1e.18\]"),
    ],
    TypeError: [
        (lambda: nn.Linear(2.5, 1), "Linear: input_size must be an integer, got 2.5"),
        (lambda: nn.LSTM(1.7, 2), "LSTM: input_size must be an integer, got 1.7"),
        (lambda: nn.SLSTM(1, 2, seq_len=3.0), "SLSTM: seq_len must be an integer, got 3.0"),
        (lambda: nn.MultiheadAttention(4, 2, seq_len=3.5), "MultiheadAttention: seq_len must be an integer, got 3.5"),
        (lambda: nn.Embedding(10, 4, 3.5), "Embedding: input_size must be an integer, got 3.5"),
        (lambda: nn.RMSNorm([8.5]), r"RMSNorm: normalized_shape\[0\] must be an integer, got 8.5"),
        (lambda: nn.Conv2d(1, 2, 3.0), "Conv2d: kernel_size must be an integer, got 3.0"),
        (lambda: nn.Conv2d(1, 2, 3, padding=None), "Conv2d: padding must be an integer, got None"),
        (lambda: nn.Conv2d(1, 2, 3, in_width=float("nan")), "Conv2d: in_width must be an integer, got nan"),
        (lambda: nn.AvgPool2d(2.5), "AvgPool2d: kernel_size must be an integer, got 2.5"),
        (lambda: nn.BatchNorm2d("3"), "BatchNorm2d: num_features must be an integer, got '3'"),
        (lambda: nn.MultiheadAttention(4, 2, 2, 3, seq_len=3), "multiple values for keyword argument 'seq_len'"),
        (lambda: nn.LayerNorm([3.7]), r"LayerNorm: normalized_shape\[0\] must be an integer, got 3.7"),
        (lambda: nn.Linear(2, 1, "no"), "Linear: bias must be True or False, got 'no'"),
        (lambda: nn.Conv2d(1, 2, 3, 2), "Conv2d: bias must be True or False, got 2"),  # PyTorch's place of the stride
        (lambda: nn.BatchNorm2d(3, bias=0.5), "BatchNorm2d: bias must be True or False, got 0.5"),
        (lambda: nn.LayerNorm([3], bias=None), "LayerNorm: bias must be True or False, got None"),
        (lambda: nn.LSTM(1, 2, 24.0), "LSTM: last_timestep must be True or False, got 24.0"),  # or is it `seq_len`?
        (lambda: nn.MultiheadAttention(4, 2, out_proj="no"), "MultiheadAttention: out_proj must be True or False"),
        (lambda: nn.MultiheadAttention(4, 2, causal=0.5), "MultiheadAttention: causal must be True or False"),
        (
            lambda: setattr(nn.MultiheadAttention(4, 2), "causal", 0.5),
            "MultiheadAttention: causal must be True or False",
        ),
        (lambda: setattr(nn.LSTM(1, 2), "cell_path", None), "LSTM: cell_path must be True or False, got None"),
    ],
}


@pytest.mark.parametrize(("kind", "make", "message"), [(kind, *row) for kind, rows in BAD.items() for row in rows])
def test_bad_arguments_are_named_when_the_layer_is_made(kind, make, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize("yes", [1, np.True_, np.int64(1)])
def test_yes_may_be_said_in_other_ways(yes):
    assert nn.Linear(2, 1, yes).bias is nn.Conv2d(1, 2, 3, yes).bias is nn.BatchNorm2d(3, bias=yes).bias is True
    assert nn.MultiheadAttention(4, 2, out_proj=yes).out_proj is nn.LSTM(1, 2, bias=yes).bias is True


def test_sizes_may_be_integers_of_numpy():
    one, two, four = map(np.int64, (1, 2, 4))
    first = nn.Conv2d(one, two, one, in_width=four, in_height=four)
    net = nn.Sequential(first, nn.MaxPool2d(two, two), nn.Linear(8, 4), nn.RMSNorm(four))
    assert net.predict(np.ones((3, 16)))[0].shape == (3, 4)


def test_parameters_exist_from_construction():
    """Convolutions too: loading, counting and broadcasting see them before the first forward pass."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3, in_width=4, in_height=4), nn.Linear(8, 1))
    assert net.num_parameters == 18 + 2 + 8 + 1
    assert np.abs(net.arena.theta[0]).min() > 0
    assert net.arena.theta[1].min() > 0


# The first means of weights and biases that pytagi 0.2.1 has in this network after manual_seed(7).
SEEDED = {
    "Conv2d.0": ([0.433659, 0.699392, 0.168470], [0.265633, 0.214934]),
    "Conv2d.main.3.0": ([-0.594354, -0.086310, 0.096364], []),
    "Conv2d.main.3.2": ([-0.925210, -0.069159, -0.312533], [0.274963, -0.338371, 0.868739]),
    "Conv2d.shortcut.3.0": ([-0.005048, -0.545948, -0.291121], [0.455782, -0.074284, 1.060901]),
    "Conv2d.4.0": ([0.318232, 0.396558, 0.047848], [0.407236, -0.034150]),
    "Linear.5": ([-0.122246, 0.189026, 0.066814], [0.168771, 0.125436, 0.348346]),
    "Linear.7": ([0.679259, 0.562983, -0.008956], [0.661965, -0.848537]),
}


def test_a_seed_gives_pytagis_network():
    """Dense layers draw when they are made, convolutions when the network is, main block before shortcut."""
    manual_seed(7)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, in_width=4, in_height=4),
        nn.ReLU(),
        nn.BatchNorm2d(2),
        nn.ResNetBlock(
            nn.LayerBlock(nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(2, 3, 1)),
            nn.LayerBlock(nn.Conv2d(2, 3, 1)),
        ),
        nn.LayerBlock(nn.Conv2d(3, 2, 1), nn.ReLU()),
        nn.Linear(32, 3),
        nn.ReLU(),
        nn.Linear(3, 2, gain_weight=0.5, init_method="Xavier"),
    )
    state = net.state_dict()
    for key, (weights, biases) in SEEDED.items():
        mu_w, _, mu_b, _ = state[key]
        np.testing.assert_allclose(mu_w[:3], weights, atol=1e-6)
        np.testing.assert_allclose(mu_b[:3], biases, atol=1e-6)


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_a_network_of_copied_layers_is_trained_whatever_mode_they_were_in(checkpoint_blocks):
    """As when layers of a network that is done are the beginning of another one."""
    manual_seed(4)
    blocks = [nn.LayerBlock(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)]
    done = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), *blocks, nn.LSTM(4, 3), nn.ReLU(), nn.Linear(3, 2))
    done.eval()
    nets = [nn.Sequential(*copy.deepcopy(done.layers), checkpoint_blocks=checkpoint_blocks) for _ in range(2)]
    nets[1].train()
    for net in nets:
        train(net, 4, 4, 3)
    np.testing.assert_array_equal(nets[0].arena.theta, nets[1].arena.theta)
