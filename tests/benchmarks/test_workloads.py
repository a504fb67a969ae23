"""The workloads are the networks they claim to be, and the peers' networks are the same ones."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.training_step import Workload
from benchmarks.workloads import RESNET18, SMALL
from pytagi_ddp import nn
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10
from pytagi_ddp.nn.files.architecture import architecture


@pytest.mark.parametrize(
    ("build", "model"), [(RESNET18, resnet18_cifar10), (SMALL["resnet8-b2"].build, resnet8_cifar10)]
)
def test_residual_networks_are_those_of_the_library(build, model):
    assert architecture(build(nn)) == architecture(model(0.1, 0.1))


def test_residual_networks_can_be_made_of_the_layers_of_another_library():
    """Sizes come by position, as not every library has the same names for them."""
    calls: list[tuple] = []
    names = ("Conv2d", "MixtureReLU", "BatchNorm2d", "AvgPool2d", "Linear", "LayerBlock", "ResNetBlock", "Sequential")
    record = {name: lambda *sizes, name=name, **_: calls.append((name, *sizes)) for name in names}
    RESNET18(SimpleNamespace(**record))
    counts = Counter(name for name, *_ in calls)
    assert [counts[name] for name in names] == [20, 20, 20, 1, 1, 11, 8, 1]
    assert calls[0] == ("Conv2d", 3, 64, 3)
    assert calls[-2] == ("Linear", 512, 11)


def test_floor_of_a_layer_inside_a_network():
    workload = Workload("conv4-b4")
    assert workload.floor_flops == 7 * 2 * 4 * 8 * 8 * 4 * 4 * 9
    workload.step()
    assert workload.net.get_input_states()[0].size == 4 * 4 * 8 * 8


def test_floor_of_layers_that_images_and_sequences_meet():
    deconv, attention = Workload("deconv4-b4"), Workload("attention-b2")
    assert deconv.floor_flops == 7 * 2 * 4 * 4 * 4 * 4 * 4 * 16
    assert attention.floor_flops == 7 * 2 * 2 * 4 * (4 * 8 * 8) + 14 * 2 * 2 * 4 * 4 * 8 / 2
    for workload in (deconv, attention):
        workload.step()


@pytest.mark.parametrize("name", list(SMALL))
def test_tagi_in_torch_is_tagi(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from benchmarks.peers.torch_tagi import Step

    if name.startswith(("deconv", "attention", "lstm", "mnist-cnn-max")):
        pytest.skip("TAGI written with PyTorch operations has no such layer")
    if SMALL[name].predict:
        pytest.skip("nothing is learnt")
    ours, theirs = Workload(name), Step(name, 1)
    owners = [leaf for _, leaf in ours.net.named_leaves() if leaf.parameters is not None]
    parts = theirs.net.learned()
    assert len(owners) == len(parts)
    for leaf, part in zip(owners, parts, strict=True):
        for field in ("w", "b"):
            for kind, prefix in (("mu", ""), ("var", "s_")):
                target = getattr(part, prefix + field)
                if target is not None:
                    source = torch.from_numpy(np.array(getattr(leaf, f"{kind}_{field}")))
                    target.copy_(source.view(target.shape))
    for _ in range(3):
        ours.step()
        theirs.step()
    for leaf, part in zip(owners, parts, strict=True):
        np.testing.assert_allclose(part.w.flatten().numpy(), leaf.mu_w, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(part.s_w.flatten().numpy(), leaf.var_w, rtol=1e-4, atol=1e-7)
