"""`settings()` of blocks and networks; those of each layer are checked in `tests/battery`."""

import json

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.files.architecture import architecture, first_difference


def test_settings_of_a_block_are_those_of_its_layers():
    main, short = nn.LayerBlock(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 3, bias=False)
    block = nn.ResNetBlock(main, short)
    linear = {"input_size": 3, "output_size": 3}
    assert block.settings() == {
        "main_block": ["LayerBlock", {"layers": [["Linear", linear | {"bias": True}], ["ReLU", {}]]}],
        "shortcut": ["Linear", linear | {"bias": False}],
    }
    assert nn.ResNetBlock(nn.ReLU()).settings()["shortcut"] is None
    assert repr(block).splitlines() == [
        "ResNetBlock(",
        "  (main_block): LayerBlock(",
        f"    (0): {main.layers[0]!r}",
        "    (1): ReLU()",
        "  )",
        f"  (shortcut): {short!r}",
        ")",
    ]


def test_what_changes_nothing_does_not_differ():
    assert nn.Conv2d(1, 1, 3, padding_type=2).settings() == nn.Conv2d(1, 1, 3, gain_weight=0.1).settings()
    assert nn.AvgPool2d(3).settings() == nn.AvgPool2d(3, 3, padding_type=1).settings()


def test_an_image_has_the_size_that_it_has_in_the_network():
    conv = nn.Conv2d(2, 1, 3)
    assert (conv.settings()["in_width"], conv.settings()["in_height"]) == (0, 0)
    nn.Sequential(nn.Conv2d(1, 2, 3, in_width=6, in_height=8), conv)
    assert (conv.settings()["in_width"], conv.settings()["in_height"]) == (4, 6)


def network(**batch_norm) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.LayerBlock(nn.ReLU(), nn.BatchNorm2d(3, **batch_norm)))


def test_architecture_is_the_settings_by_key():
    net = network()
    assert json.loads(architecture(net)) == {
        "Linear.0": net.layers[0].settings(),
        "LayerBlock.1": {},
        "ReLU.1.0": {},
        "BatchNorm2d.1.1": net.layers[1].layers[1].settings(),
    }
    assert [key for key, _ in net.named_layers()] == list(json.loads(architecture(net)))
    assert [key for key, _ in net.named_leaves()] == ["Linear.0", "ReLU.1.0", "BatchNorm2d.1.1"]


def test_first_difference():
    here = architecture(network())
    assert first_difference(here, here) is None
    assert first_difference(here, architecture(network(eps=np.float64(1e-5), momentum=np.float64(0.9)))) is None
    assert first_difference(here, architecture(network(eps=1))) == ("eps of BatchNorm2d.1.1", 1e-05, 1)
    shorter = architecture(nn.Sequential(nn.Linear(2, 3)))
    assert first_difference(here, shorter) == ("layer 1", "LayerBlock.1", "no layer")
    assert first_difference(shorter, here) == ("layer 1", "no layer", "LayerBlock.1")
    less = json.dumps({"Linear.0": {"input_size": 2, "output_size": 3}})
    assert first_difference(shorter, less) == ("bias of Linear.0", True, "not given")
    for text in ("", "[]", '{"Linear.0": 3}'):
        with pytest.raises(ValueError, match=r"Expecting value|no layers by key"):
            first_difference(here, text)
