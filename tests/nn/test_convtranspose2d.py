"""Sizes and errors of transposed convolutions; their numbers are checked by the battery and recorded cases."""

import numpy as np
import pytest

from pytagi_ddp import nn


@pytest.mark.parametrize(
    ("arguments", "side"),
    [
        ({"kernel_size": 3}, 6),
        ({"kernel_size": 4, "stride": 2, "padding": 1}, 8),
        ({"kernel_size": 3, "stride": 2, "padding": 1, "padding_type": 2}, 8),
        ({"kernel_size": 1, "stride": 3}, 10),
    ],
)
def test_output_size(arguments, side):
    net = nn.Sequential(nn.ConvTranspose2d(2, 3, in_width=4, in_height=4, **arguments))
    layer = net.layers[0]
    assert (layer.out_channels, layer.out_height, layer.out_width) == (3, side, side)
    assert net.predict(np.zeros((2, 2, 4, 4)))[0].shape == (2, 3, side, side)
    assert layer.get_layer_info() == f"ConvTranspose2d(2,3,{side},{side},{arguments['kernel_size']})"


def test_pixels_without_taps_have_the_bias():
    net = nn.Sequential(nn.ConvTranspose2d(1, 2, 1, stride=2, in_width=2, in_height=2))
    layer = net.layers[0]
    mu, var = net.predict(np.ones((1, 4)))
    np.testing.assert_array_equal(mu[0, :, 1], np.repeat(layer.mu_b, 3).reshape(2, 3))
    np.testing.assert_array_equal(var[0, :, :, 1], np.repeat(layer.var_b, 3).reshape(2, 3))


def test_a_padding_that_leaves_no_pixel():
    with pytest.raises(ValueError, match="ConvTranspose2d: 1 windows of 2 with stride 1 have no pixel left when 2 are"):
        nn.Sequential(nn.ConvTranspose2d(1, 1, 2, padding=1, in_width=1, in_height=1))


def test_needs_the_size_of_the_image():
    with pytest.raises(ValueError, match="ConvTranspose2d as first layer needs in_width and in_height"):
        nn.Sequential(nn.ConvTranspose2d(1, 1, 2))
    with pytest.raises(ValueError, match="ConvTranspose2d needs 3 channels, the layer before gives 2x4x4"):
        nn.Sequential(nn.Conv2d(1, 2, 1, in_width=4, in_height=4), nn.ConvTranspose2d(3, 1, 2))
