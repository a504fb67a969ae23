"""Arguments of pooling; the battery checks numbers, tests/kernels/test_pooling.py those of each window."""

import pytest

from pytagi_ddp import nn


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
    with pytest.raises(ValueError, match=f"{pool.__name__}: stride must be at least 1, got 0"):
        build(2, 0)
    with pytest.raises(ValueError, match=f"{pool.__name__} needs an image, and gets 4: put it after"):
        nn.Sequential(nn.Linear(4, 4), pool(2, 2))
