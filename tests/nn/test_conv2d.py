"""Images and errors of convolutions; the battery checks numbers, tests/kernels/test_moment_products.py odd windows."""

import numpy as np
import pytest

from pytagi_ddp import nn


def test_public_images_are_channels_first():
    """A kernel of one that picks channel 1 of 3: output pixels are that channel's, in rows."""
    conv = nn.Conv2d(3, 1, 1, bias=False, in_width=4, in_height=2)
    net = nn.Sequential(conv)
    conv.mu_w = [0, 1, 0]
    x = np.arange(2 * 3 * 2 * 4, dtype=np.float32).reshape(2, 3, 2, 4)
    mu, var = net.predict(x)
    np.testing.assert_array_equal(mu, x[:, 1:2])
    assert var.shape == (2, 1, 2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_size": 5, "in_width": 4, "in_height": 8}, r"windows of 5 with stride 1 do not fill 4 pixels"),
        ({"kernel_size": 2, "stride": 2, "in_width": 4, "in_height": 5}, r"windows of 2 with stride 2 .* 5 pixels"),
        (
            {"kernel_size": 3, "padding": 1, "padding_type": 4, "in_width": 4, "in_height": 4},
            "padding_type 1, 2 or 3, got 4",
        ),
        ({"kernel_size": 0, "in_width": 4, "in_height": 4}, "kernel_size must be at least 1, got 0"),
        ({"kernel_size": 3}, "in_width and in_height"),
        ({"kernel_size": 3, "in_width": 4}, "in_width and in_height"),
    ],
)
def test_bad_windows_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        nn.Sequential(nn.Conv2d(1, 1, **arguments))


def test_an_input_that_is_no_such_image():
    stem = nn.Conv2d(1, 2, 3, in_width=4, in_height=4)
    with pytest.raises(ValueError, match=r"needs 3 channels, the layer before gives 2x2x2"):
        nn.Sequential(stem, nn.Conv2d(3, 1, 1))
    with pytest.raises(ValueError, match=r"in_width and in_height.*= 5"):
        nn.Sequential(nn.Linear(3, 5), nn.Conv2d(1, 1, 1))
    with pytest.raises(ValueError, match=r"= 12 \(got 2 x 3 x 3\)"):
        nn.Sequential(nn.Linear(3, 12), nn.Conv2d(2, 1, 1, in_width=3, in_height=3))
