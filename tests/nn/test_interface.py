"""Names, arguments and defaults of pytagi 0.2.1, as its `inspect.signature` and `dir` gave them."""

import inspect
from operator import attrgetter

import numpy as np
import pytest

import pytagi_ddp
from pytagi_ddp import nn

# Arguments of classes and methods; where a default is not given here, any will do.
ARGUMENTS = {
    "DDPConfig": "device_ids, backend, rank, world_size",
    "DDPSequential": "model, config, average=True",
    "LeakyReLU": "negative_slope=0.1",
    "AvgPool2d": "kernel_size, stride=-1, padding=0, padding_type=0",
    "BaseDeltaStates": "size=None, block_size=None",
    "BaseHiddenStates": "size=None, block_size=None",
    "BatchNorm2d": "num_features, eps=1e-05, momentum=0.9, bias=True, gain_weight=1.0, gain_bias=1.0",
    "Conv2d": "in_channels, out_channels, kernel_size, bias=True, stride=1, padding=0, padding_type=1, in_width=0, "
    "in_height=0, gain_weight=1.0, gain_bias=1.0, init_method='He'",
    "LayerNorm": "normalized_shape, eps=0.0001, bias=True",
    "Linear": "input_size, output_size, bias=True, gain_weight=1.0, gain_bias=1.0, init_method='He'",
    "MaxPool2d": "kernel_size, stride=1, padding=0, padding_type=0",
    "OutputUpdater": "model_device",
    "ResNetBlock": "main_block, shortcut=None",
    "Sequential.__call__": "mu_x, var_x",
    "Sequential.forward": "mu_x, var_x=None",
    "Sequential.load": "filename",
    "Sequential.load_csv": "filename",
    "Sequential.load_state_dict": "state_dict",
    "Sequential.params_from": "other",
    "Sequential.save": "filename",
    "Sequential.save_csv": "filename",
    "Sequential.set_delta_z": "delta_mu, delta_var",
    "Sequential.set_threads": "num_threads",
    "Sequential.to_device": "device",
    "OutputUpdater.update": "output_states, mu_obs, var_obs, delta_states",
    "OutputUpdater.update_heteros": "output_states, mu_obs, delta_states",
    "OutputUpdater.update_using_indices": "output_states, mu_obs, var_obs, selected_idx, delta_states",
    "BaseDeltaStates.copy_from": "source, num_data=-1",
    "BaseDeltaStates.set_size": "new_size, new_block_size",
    "BaseHiddenStates.set_input_x": "mu_x, var_x, block_size",
    "BaseHiddenStates.set_size": "new_size, new_block_size",
}
WITHOUT_ARGUMENTS = {
    "Sequential": """
        backward delta_z_to_host eval get_input_states get_layer_stack_info get_neg_var_w_counter
        get_norm_mean_var get_outputs output_to_host parameters params_to_device params_to_host
        preinit_layer state_dict step train
    """,
    "BaseDeltaStates": "get_name reset_zeros",
    "BaseHiddenStates": "get_name",
    "Linear": "get_layer_info get_layer_name get_max_num_states init_weight_bias",
    "Conv2d": "init_weight_bias",
    "BatchNorm2d": "init_weight_bias",
    "LayerNorm": "init_weight_bias",
}
ACTIVATIONS = [
    *("ClosedFormSoftmax", "EvenExp", "MixtureReLU", "MixtureSigmoid", "MixtureTanh", "ReLU", "Remax", "Sigmoid"),
    *("Softmax", "Softplus", "Tanh"),
]
SIZES = ["in_channels", "in_height", "in_width", "out_channels", "out_height", "out_width", "input_size", "output_size"]
OTHERS = ["bias", "device", "num_biases", "num_threads", "num_weights", "training"]


def takes(function, expected: str) -> None:
    """Asserts that a function takes the arguments that are expected first; pytagi's programs go without the others."""
    ours = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    theirs = [text.partition("=") for text in expected.split(", ") if text]
    for mine, (name, given, default) in zip(ours, theirs, strict=False):
        assert (mine.name, repr(mine.default) if given else "") == (name, default)
    beyond = ours[len(theirs) :]
    assert len(ours) >= len(theirs) and all(p.default is not p.empty for p in beyond)
    if isinstance(function, type) and function is not nn.DDPConfig:
        assert all(p.kind is p.KEYWORD_ONLY for p in beyond)


METHODS = [(owner, method) for owner, methods in WITHOUT_ARGUMENTS.items() for method in methods.split()]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name):
    takes(attrgetter(name)(nn), ARGUMENTS[name])


@pytest.mark.parametrize(("owner", "method"), METHODS)
def test_methods_that_need_nothing(owner, method):
    takes(getattr(getattr(nn, owner), method), "")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_need_nothing(name):
    assert not inspect.signature(getattr(nn, name)).parameters


@pytest.mark.parametrize("name", ["LayerBlock", "Sequential"])
def test_layers_are_given_one_by_one(name):
    parameter, *own = inspect.signature(getattr(nn, name)).parameters.values()
    assert (parameter.name, parameter.kind) == ("layers", inspect.Parameter.VAR_POSITIONAL)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is not p.empty for p in own)  # beyond pytagi


def test_package_names():
    names = "HRCSoftmaxMetric Normalizer Utils cuda exponential_scheduler manual_seed metric nn"
    assert all(hasattr(pytagi_ddp, name) for name in names.split())


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
    *((getattr(nn, name), (name, f"{name}()", 0, 0, 0, 0)) for name in ACTIVATIONS),
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
