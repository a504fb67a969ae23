"""Sizes, names and attributes that layers and networks of pytagi 0.2.1 tell; `tests.public_api` compares arguments."""

import numpy as np
import pytest

from pytagi_ddp import nn

ACTIVATIONS = [
    *("ClosedFormSoftmax", "EvenExp", "MixtureReLU", "MixtureSigmoid", "MixtureTanh", "ReLU", "Remax", "Sigmoid"),
    *("Softmax", "Softplus", "Tanh"),
]
SIZES = ["in_channels", "in_height", "in_width", "out_channels", "out_height", "out_width", "input_size", "output_size"]
OTHERS = ["bias", "device", "num_biases", "num_threads", "num_weights", "training"]


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
