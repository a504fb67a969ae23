"""Pooling whose windows, strides and images are odd, against the float64 reference."""

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.tensors import State
from tests.nn.networks import assert_matches_reference

# kernel_size, stride, padding, padding_type, width, height
WINDOWS = {
    "default stride": (2, -1, 0, 0, 6, 4),
    "whole image": (4, 1, 0, 0, 4, 4),
    "overlap": (3, 2, 0, 0, 7, 5),
    "padded, stride = kernel": (2, 2, 1, 1, 4, 6),
    "padded right and bottom": (3, 2, 1, 2, 6, 4),
    "padded, overlap": (3, 1, 1, 1, 5, 3),
    "stride above kernel": (2, 3, 0, 0, 8, 5),
}


@pytest.mark.parametrize("pool", [nn.AvgPool2d, nn.MaxPool2d])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_windows(pool, window):
    *arguments, width, height = window
    net = nn.Sequential(
        nn.Conv2d(1, 3, 1, in_width=width, in_height=height), nn.Sigmoid(), pool(*arguments), nn.Conv2d(3, 2, 1)
    )
    assert_matches_reference(net, batch=3)


@pytest.mark.parametrize("pool", [nn.AvgPool2d, nn.MaxPool2d])
def test_at_the_end(pool):
    net = nn.Sequential(nn.Conv2d(1, 3, 3, in_width=6, in_height=8), nn.ReLU(), pool(2, 2))
    assert net.out_shape.image == (3, 3, 2)
    assert_matches_reference(net)


def test_max_pool_takes_the_first_of_equal_means():
    net = nn.Sequential(nn.Conv2d(1, 1, 1, in_width=2, in_height=2, bias=False), nn.MaxPool2d(2))
    net.layers[0].mu_w, net.layers[0].var_w = [1], [0]
    x, var = np.ones((1, 4), np.float32), np.float32([[0.4, 0.3, 0.2, 0.1]])
    net.input_state_update = True
    assert net(x, var)[1] == pytest.approx([0.4])
    net.set_delta_z([2.0], [-1.0])
    net.backward()
    np.testing.assert_array_equal(net.get_input_states()[0], [2, 0, 0, 0])


@pytest.mark.parametrize("place", range(4))
def test_max_pool_gives_nan_where_its_window_has_one(place):
    mu = np.float32([[3, 1, 2, 4]] * 2)
    mu[0, place] = np.nan
    x = State(mu.reshape(2, 2, 2, 1), np.ones((2, 2, 2, 1), np.float32))
    out, winner = State(*np.zeros((2, 2, 1, 1, 1), np.float32)), np.zeros((2, 1, 1, 1), np.int32)
    get_kernels("cpu").pooling.max_forward(x, out, winner, 2, 2, 0)
    np.testing.assert_array_equal(out.mu.ravel(), [np.nan, 4])
    assert winner.ravel().tolist() == [place, 3]


def test_max_pool_ignores_padding_where_all_means_are_negative():
    net = nn.Sequential(nn.Conv2d(1, 1, 1, in_width=2, in_height=2, bias=False), nn.MaxPool2d(2, 2, 1, 1))
    net.layers[0].mu_w = [1]
    mu, _ = net(np.float32([[-1, -2, -3, -4]]))
    np.testing.assert_array_equal(mu, [-1, -2, -3, -4])


@pytest.mark.parametrize("pool", [nn.AvgPool2d, nn.MaxPool2d])
def test_bad_windows_are_named(pool):
    def build(*arguments):
        nn.Sequential(nn.Conv2d(1, 1, 1, in_width=5, in_height=5), pool(*arguments))

    with pytest.raises(ValueError, match=f"{pool.__name__}: windows of 2 with stride 2 do not fill 5 pixels"):
        build(2, 2)
    with pytest.raises(ValueError, match="padding_type 1, 2 or 3, got 0"):
        build(3, 1, 1)
    with pytest.raises(ValueError, match="padding 2 leaves windows of 2 without a pixel"):
        build(2, 1, 2, 1)
    with pytest.raises(ValueError, match="kernel_size >= 1, stride >= 1"):
        build(2, 0)
    with pytest.raises(ValueError, match=f"{pool.__name__} needs an image"):
        nn.Sequential(nn.Linear(4, 4), pool(2, 2))
