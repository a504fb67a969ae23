"""Names, arguments and defaults of pytagi 0.2.1, as its `inspect.signature` and `dir` gave them."""

import inspect

import numpy as np
import pytest

import pytagi_ddp
from pytagi_ddp import nn

REQUIRED = inspect.Parameter.empty
BLOCK_OF_WINDOW = {"stride": 1, "padding": 0, "padding_type": 1, "in_width": 0, "in_height": 0}
GAINS = {"gain_weight": 1.0, "gain_bias": 1.0}
CONSTRUCTORS = {
    "AvgPool2d": {"kernel_size": REQUIRED, "stride": -1, "padding": 0, "padding_type": 0},
    "BaseDeltaStates": {"size": None, "block_size": None},
    "BaseHiddenStates": {"size": None, "block_size": None},
    "BatchNorm2d": {"num_features": REQUIRED, "eps": 1e-05, "momentum": 0.9, "bias": True, **GAINS},
    "Conv2d": {
        "in_channels": REQUIRED,
        "out_channels": REQUIRED,
        "kernel_size": REQUIRED,
        "bias": True,
        **BLOCK_OF_WINDOW,
        **GAINS,
        "init_method": "He",
    },
    "LayerNorm": {"normalized_shape": REQUIRED, "eps": 0.0001, "bias": True},
    "Linear": {"input_size": REQUIRED, "output_size": REQUIRED, "bias": True, **GAINS, "init_method": "He"},
    "MaxPool2d": {"kernel_size": REQUIRED, "stride": 1, "padding": 0, "padding_type": 0},
    "OutputUpdater": {"model_device": REQUIRED},
    "ResNetBlock": {"main_block": REQUIRED, "shortcut": None},
}
ACTIVATIONS = [
    "ClosedFormSoftmax",
    "EvenExp",
    "LeakyReLU",
    "MixtureReLU",
    "MixtureSigmoid",
    "MixtureTanh",
    "ReLU",
    "Remax",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
]
METHODS = {
    "Sequential": {
        "__call__": ["mu_x", "var_x"],
        "backward": [],
        "delta_z_to_host": [],
        "eval": [],
        "forward": ["mu_x", "var_x"],
        "get_input_states": [],
        "get_layer_stack_info": [],
        "get_neg_var_w_counter": [],
        "get_norm_mean_var": [],
        "get_outputs": [],
        "load": ["filename"],
        "load_csv": ["filename"],
        "load_state_dict": ["state_dict"],
        "output_to_host": [],
        "parameters": [],
        "params_from": ["other"],
        "params_to_device": [],
        "params_to_host": [],
        "preinit_layer": [],
        "save": ["filename"],
        "save_csv": ["filename"],
        "set_delta_z": ["delta_mu", "delta_var"],
        "set_threads": ["num_threads"],
        "state_dict": [],
        "step": [],
        "to_device": ["device"],
        "train": [],
    },
    "OutputUpdater": {
        "update": ["output_states", "mu_obs", "var_obs", "delta_states"],
        "update_heteros": ["output_states", "mu_obs", "delta_states"],
        "update_using_indices": ["output_states", "mu_obs", "var_obs", "selected_idx", "delta_states"],
    },
    "BaseDeltaStates": {
        "copy_from": ["source", "num_data"],
        "get_name": [],
        "reset_zeros": [],
        "set_size": ["new_size", "new_block_size"],
    },
    "BaseHiddenStates": {
        "get_name": [],
        "set_input_x": ["mu_x", "var_x", "block_size"],
        "set_size": ["new_size", "new_block_size"],
    },
    "Linear": {"get_layer_info": [], "get_layer_name": [], "get_max_num_states": [], "init_weight_bias": []},
    "Conv2d": {"init_weight_bias": []},
    "BatchNorm2d": {"init_weight_bias": []},
    "LayerNorm": {"init_weight_bias": []},
}
SIZES = ["in_channels", "in_height", "in_width", "out_channels", "out_height", "out_width", "input_size", "output_size"]
OTHERS = ["bias", "device", "num_biases", "num_threads", "num_weights", "training"]


def arguments(function) -> dict:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.name != "self"}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors(name):
    parameters = inspect.signature(getattr(nn, name)).parameters.values()
    by_keyword = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}  # beyond pytagi
    assert all(default is not REQUIRED for default in by_keyword.values())
    ours = arguments(getattr(nn, name))
    assert [item for item in ours.items() if item[0] not in by_keyword] == list(CONSTRUCTORS[name].items())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_need_nothing(name):
    beyond_pytagi = {"negative_slope": 0.1} if name == "LeakyReLU" else {}
    assert arguments(getattr(nn, name)) == beyond_pytagi


@pytest.mark.parametrize("name", ["LayerBlock", "Sequential"])
def test_layers_are_given_one_by_one(name):
    parameter, *own = inspect.signature(getattr(nn, name)).parameters.values()
    assert (parameter.name, parameter.kind) == ("layers", inspect.Parameter.VAR_POSITIONAL)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is not p.empty for p in own)  # beyond pytagi


@pytest.mark.parametrize(("owner", "method"), [(o, m) for o, methods in METHODS.items() for m in methods])
def test_methods(owner, method):
    expected = METHODS[owner][method]
    ours = arguments(getattr(getattr(nn, owner), method))
    assert list(ours)[: len(expected)] == expected
    beyond = list(ours.values())[len(expected) :]
    assert all(default is not inspect.Parameter.empty for default in beyond)  # pytagi's programs go without them


def test_defaults_of_methods():
    assert arguments(nn.Sequential.forward)["var_x"] is None
    assert arguments(nn.BaseDeltaStates.copy_from)["num_data"] == -1


def test_ddp_names():
    assert list(arguments(nn.DDPConfig))[:4] == ["device_ids", "backend", "rank", "world_size"]
    assert list(arguments(nn.DDPSequential))[:3] == ["model", "config", "average"]
    added = list(inspect.signature(nn.DDPSequential).parameters.values())[3:]
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in added)
    assert arguments(nn.DDPSequential)["average"] is True


def test_package_names():
    for name in [
        "HRCSoftmaxMetric",
        "Normalizer",
        "Utils",
        "cuda",
        "exponential_scheduler",
        "manual_seed",
        "metric",
        "nn",
    ]:
        assert hasattr(pytagi_ddp, name)
    with pytest.raises(AttributeError, match="has no 'Dropout'; there are ELU"):
        nn.Dropout  # noqa: B018


@pytest.mark.parametrize("layer", [nn.Linear(2, 3), nn.ReLU(), nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.BatchNorm2d(3)])
def test_layers_tell_their_sizes_before_they_are_in_a_network(layer):
    for name in SIZES:
        assert isinstance(getattr(layer, name), int)
    for name in OTHERS:
        assert hasattr(layer, name)
    assert layer.get_max_num_states() == max(layer.input_size, layer.output_size)
    assert layer.device == "cpu"
    layer.training = False
    assert layer.training is False


# (name, info, input_size, output_size, num_weights, num_biases) of fresh layers.
FRESH_ACTIVATIONS = [name for name in ACTIVATIONS if name not in ("LeakyReLU", "Softplus")]
FRESH = [
    (lambda: nn.Linear(3, 2), ("Linear", "Linear(3,2)", 3, 2, 6, 2)),
    (lambda: nn.Linear(3, 2, False), ("Linear", "Linear(3,2)", 3, 2, 6, 0)),
    (lambda: nn.Conv2d(1, 2, 3), ("Conv2d", "Conv2d(1,2,0,0,3)", 0, 0, 0, 0)),
    (lambda: nn.AvgPool2d(2), ("AvgPool2d", "AvgPool2d(0,0,0,0,2)", 0, 0, 0, 0)),
    (lambda: nn.MaxPool2d(2), ("MaxPool2d", "MaxPool2d(0,0,0,0,2)", 0, 0, 0, 0)),
    (lambda: nn.BatchNorm2d(3), ("BatchNorm2d", "BatchNorm2d()", 0, 0, 3, 3)),
    (lambda: nn.LayerBlock(nn.ReLU()), ("LayerBlock", "LayerBlock(0,0)", 0, 0, 0, 0)),
    (lambda: nn.ResNetBlock(nn.LayerBlock(nn.ReLU())), ("ResNetBlock", "ResNetBlock(0,0)", 0, 0, 0, 0)),
    (nn.LeakyReLU, ("leakReLU", "leakyReLU()", 0, 0, 0, 0)),
    (lambda: nn.LeakyReLU(0.25), ("leakReLU", "leakyReLU(0.25)", 0, 0, 0, 0)),
    (lambda: nn.ELU(2), ("ELU", "ELU(2.0)", 0, 0, 0, 0)),
    *((getattr(nn, name), (name, f"{name}()", 0, 0, 0, 0)) for name in FRESH_ACTIVATIONS),
]


@pytest.mark.parametrize(("make", "expected"), FRESH, ids=[expected[1] for _, expected in FRESH])
def test_fresh_layers(make, expected):
    layer = make()
    sizes = (layer.input_size, layer.output_size, layer.num_weights, layer.num_biases)
    assert (layer.get_layer_name(), layer.get_layer_info(), *sizes) == expected


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_convolution_tells_what_it_was_given(kind):
    layer = kind(2, 3, 3, in_width=6, in_height=5)
    assert (layer.in_channels, layer.in_height, layer.in_width, layer.out_channels) == (2, 5, 6, 3)
    assert kind(2, 3, 3).in_width == 0
    nn.Sequential(layer)
    assert (layer.in_channels, layer.in_height, layer.in_width, layer.out_channels) == (2, 5, 6, 3)


def test_a_layer_norm_tells_its_sizes():
    units, images = nn.LayerNorm([4]), nn.LayerNorm([4, 3, 2])
    assert (units.input_size, units.output_size, units.in_channels) == (4, 4, 0)
    assert (images.input_size, images.in_channels, images.in_height, images.in_width) == (24, 4, 3, 2)


def test_attributes_of_a_network():
    net = nn.Sequential(nn.Linear(2, 3))
    assert (net.device, net.input_state_update, net.z_buffer_size, net.z_buffer_block_size) == ("cpu", False, 0, 0)
    net(np.zeros(8))
    assert (net.z_buffer_size, net.z_buffer_block_size) == (12, 4)
    deltas = nn.BaseDeltaStates(12, 4)
    for name in ("input_delta_z_buffer", "output_delta_z_buffer"):
        setattr(net, name, deltas)
        assert getattr(net, name) is deltas
    assert net.layers[0].num_threads >= 1
    net.preinit_layer(), net.params_to_device(), net.params_to_host(), net.output_to_host(), net.delta_z_to_host()
    net.to_device("cpu")


@pytest.mark.parametrize("container", [nn.Sequential, nn.LayerBlock])
def test_layers_cannot_be_exchanged(container):
    """A list took them: they were in summaries and state dicts, and no pass came to them."""
    net = container(nn.Linear(2, 3), nn.ReLU())
    with pytest.raises(TypeError):
        net.layers[1] = nn.Tanh()
    with pytest.raises(AttributeError):
        net.layers.append(nn.Tanh())
    with pytest.raises(AttributeError, match="layers cannot be assigned: make a new"):
        net.layers = [nn.Linear(2, 3)]
