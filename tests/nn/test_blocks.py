"""Blocks: equal to the same layers written out, and to the float64 reference."""

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.battery.layers import conv
from tests.nn.networks import assert_matches_reference

STEM = {"in_width": 4, "in_height": 6}
RESIDUAL = {
    "identity": lambda: [conv(1, 2, **STEM), nn.ResNetBlock(nn.LayerBlock(conv(2, 2), nn.ReLU(), conv(2, 2)))],
    "identity after an activation": lambda: [
        conv(1, 2, **STEM),
        nn.Sigmoid(),
        nn.ResNetBlock(nn.LayerBlock(conv(2, 2), nn.ReLU(), nn.BatchNorm2d(2))),
        nn.Linear(48, 2),
    ],
    "branches end in activations": lambda: [
        conv(1, 2, **STEM),
        nn.Tanh(),
        nn.ResNetBlock(nn.LayerBlock(conv(2, 2), nn.Sigmoid()), nn.LayerBlock(conv(2, 2), nn.Tanh())),
        nn.Linear(48, 2),
    ],
    "single layers as branches": lambda: [conv(1, 2, **STEM), nn.ResNetBlock(conv(2, 3), conv(2, 3)), nn.ReLU()],
    "activation as a branch": lambda: [conv(1, 2, **STEM), nn.ResNetBlock(conv(2, 2), nn.Tanh()), nn.Linear(48, 2)],
    "only activations": lambda: [
        conv(1, 2, **STEM),
        nn.ResNetBlock(nn.LayerBlock(nn.Tanh(), nn.Sigmoid())),
        nn.Linear(48, 2),
    ],
    "first layer": lambda: [nn.ResNetBlock(nn.LayerBlock(conv(2, 2, **STEM), nn.ReLU(), conv(2, 2))), nn.Linear(48, 2)],
    "first layer with shortcut": lambda: [nn.ResNetBlock(conv(2, 3, **STEM), conv(2, 3, **STEM)), nn.Linear(72, 2)],
    "dense": lambda: [
        nn.Linear(3, 4),
        nn.ReLU(),
        nn.ResNetBlock(nn.LayerBlock(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)), nn.Linear(4, 4)),
    ],
    "dense, first": lambda: [nn.ResNetBlock(nn.LayerBlock(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)))],
    "nested": lambda: [
        nn.Linear(3, 4),
        nn.Sigmoid(),
        nn.ResNetBlock(
            nn.LayerBlock(nn.Linear(4, 4), nn.ResNetBlock(nn.LayerBlock(nn.Tanh(), nn.Linear(4, 4))), nn.Sigmoid()),
            nn.ResNetBlock(nn.LayerBlock(nn.Linear(4, 4), nn.LayerNorm([4]))),
        ),
        nn.Linear(4, 2),
    ],
    "followed by activations": lambda: [
        nn.Linear(3, 4),
        nn.ResNetBlock(nn.LayerBlock(nn.Linear(4, 4), nn.Tanh())),
        nn.Sigmoid(),
        nn.Linear(4, 2),
        nn.LayerBlock(nn.Tanh(), nn.Sigmoid()),
    ],
}


@pytest.mark.parametrize("make", RESIDUAL.values(), ids=RESIDUAL)
@pytest.mark.parametrize("with_variance", [True, False])
def test_residual_block(make, with_variance):
    net = nn.Sequential(*make())
    assert_matches_reference(net, batch=4, with_variance=with_variance)


def test_the_mode_of_blocks_in_blocks():
    """It is that of what is in them, whoever sets it; of inner blocks it was the one that was set last for them."""
    inner = nn.LayerBlock(nn.Linear(4, 4), nn.BatchNorm2d(4))
    outer = nn.LayerBlock(nn.ResNetBlock(inner, nn.BatchNorm2d(4)), nn.ReLU())
    net = nn.Sequential(nn.Linear(3, 4), outer)

    def modes():
        return inner.training, inner.layers[1].training, outer.layers[0].training, outer.layers[0].shortcut.training

    outer.training = False
    assert modes() == (False,) * 4
    net.train()
    assert modes() == (True,) * 4
    inner.training = False
    assert modes() == (False, False, True, True) and outer.training
    net(np.arange(12.0))
    assert not inner.layers[1].running_mean.any() and outer.layers[0].shortcut.running_mean.any()
    net.predict(np.arange(12.0))
    assert modes() == (False, False, True, True)
    net.eval()
    assert modes() == (False,) * 4


def test_branches_that_do_not_add_up():
    with pytest.raises(ValueError, match="main block gives 5, the shortcut 4"):
        nn.Sequential(nn.Linear(3, 4), nn.ResNetBlock(nn.Linear(4, 5)))
    with pytest.raises(ValueError, match="main block gives 2x6x4, the shortcut 3x6x4"):
        nn.Sequential(conv(1, 2, **STEM), nn.ResNetBlock(conv(2, 2), conv(2, 3)))
