"""Networks of PyTorch: the same results as there. Without PyTorch, modules of NumPy stand in for its own."""

import importlib
from types import ModuleType

import numpy as np
import pytest

from pytagi_ddp import manual_seed, models, nn
from pytagi_ddp.models.imagenet import _resnet
from pytagi_ddp.nn.core.init import get_state
from pytagi_ddp.nn.core.prior import prior_variances
from tests.nn import torch_stand_in


@pytest.fixture(params=["tests.nn.torch_stand_in", "torch.nn"])
def t(request) -> ModuleType:
    return pytest.importorskip(request.param, reason="PyTorch is not installed")


def numpy_of(values) -> np.ndarray:
    return values.detach().numpy() if hasattr(values, "detach") else values


def output(module, x: np.ndarray) -> np.ndarray:
    """What the module makes of x, in evaluation mode."""
    if hasattr(module, "eval"):
        x = importlib.import_module("torch").from_numpy(x)
        module.eval()
    return numpy_of(module(x))


def learnt(module):
    """The module, with parameters and statistics that no rule has drawn."""
    rng = np.random.default_rng(0)
    for name, values in module.state_dict().items():
        values = numpy_of(values)
        if name.endswith("running_var"):
            values[...] = rng.uniform(0.5, 2, values.shape)
        elif values.dtype == np.float32:
            values[...] = rng.normal(0, 0.5, values.shape)
    return module


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def convolutional(t):
    return t.Sequential(
        t.Conv2d(3, 4, 3, 2, 1, bias=False),  # leaves a row and a column of pixels
        t.BatchNorm2d(4),
        t.ReLU(),
        t.MaxPool2d(3, 2, 1),
        t.Sequential(t.Conv2d(4, 5, 3, padding=1), t.AvgPool2d(2, 2), t.Dropout()),
        t.LayerNorm([5, 2, 2]),
        t.Flatten(),
        t.Linear(20, 4, bias=False),
        t.Unflatten(1, (1, 2, 2)),
        t.ConvTranspose2d(1, 2, 4, 2, 1),
    )


def categories(t):
    return t.Sequential(
        t.Embedding(10, 6), t.Linear(6, 4), t.LayerNorm([4]), t.Softmax(-1), t.Flatten(), t.Linear(20, 2)
    )


def residual(t, width=2, outputs=3):
    """A ResNet in torchvision's layout, whose stages have a block each."""

    class BasicBlock(t.Module):
        def __init__(self, c_in, c, stride):
            super().__init__()
            self.conv1, self.bn1 = t.Conv2d(c_in, c, 3, stride, 1, bias=False), t.BatchNorm2d(c)
            self.relu = t.ReLU()
            self.conv2, self.bn2 = t.Conv2d(c, c, 3, 1, 1, bias=False), t.BatchNorm2d(c)
            conv = t.Conv2d(c_in, c, 1, stride, bias=False) if stride > 1 else None
            self.downsample = t.Sequential(conv, t.BatchNorm2d(c)) if conv else None

        def forward(self, x):
            short = x if self.downsample is None else self.downsample(x)
            return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + short)

    class ResNet(t.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = t.Conv2d(3, width, 7, 2, 3, bias=False), t.BatchNorm2d(width)
            self.relu, self.maxpool = t.ReLU(), t.MaxPool2d(3, 2, 1)
            for k in range(4):
                c_in = width * 2 ** max(k - 1, 0)
                setattr(self, f"layer{k + 1}", t.Sequential(BasicBlock(c_in, width * 2**k, 2 if k else 1)))
            self.avgpool, self.flat, self.fc = t.AdaptiveAvgPool2d(1), t.Flatten(), t.Linear(8 * width, outputs)

        def forward(self, x):
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(self.flat(self.avgpool(x)))

    return ResNet()


def resnet_here(width=2, outputs=3, side=48) -> nn.Sequential:
    return _resnet((1, 1, 1, 1), width, False, outputs, side, nn.ReLU)


def used_twice(t):
    linear, relu = t.Linear(4, 4), t.ReLU()
    return t.Sequential(linear, relu, t.Linear(4, 4), relu, linear)


CASES = {
    "dense": (lambda t: t.Sequential(t.Linear(4, 8), t.ReLU(), t.Linear(8, 3), t.Softmax(1)), images(5, 4), None),
    "used twice": (used_twice, images(5, 4), None),
    "convolutional": (convolutional, images(2, 3, 16, 16), (3, 16, 16)),
    "categories": (categories, np.random.default_rng(2).integers(0, 10, (3, 5)), (5,)),
    "residual": (residual, images(2, 3, 48, 48), (3, 48, 48)),
}


@pytest.mark.parametrize("name", CASES)
def test_means_are_the_modules_outputs_and_go_back(t, name):
    make, x, shape = CASES[name]
    module = learnt(make(t))
    net = nn.from_torch(module, shape, variance=0)
    net.eval()
    mu, var = net(x)
    want = output(module, x)
    np.testing.assert_allclose(mu, want.reshape(-1), rtol=0, atol=2e-6 * np.abs(want).max())
    assert not var.any()
    back, there = nn.to_torch_state_dict(net, module), module.state_dict()
    assert {*there} - {*back} == {key for key in there if key.endswith("num_batches_tracked")}
    for key, values in back.items():
        np.testing.assert_allclose(values, numpy_of(there[key]), rtol=1e-6, err_msg=key)


def test_little_variance_moves_means_little():
    make, x, shape = CASES["convolutional"]
    module = learnt(make(torch_stand_in))
    net = nn.from_torch(module, shape, 1e-8, {"ReLU": lambda module: nn.MixtureReLU()})
    assert any(isinstance(leaf, nn.MixtureReLU) for _, leaf in net.named_leaves())
    mu, var = net.predict(x)
    want = output(module, x)
    np.testing.assert_allclose(mu, want, atol=1e-3 * np.abs(want).max())
    assert 0 < var.max() < 1e-4


def test_variances_of_the_prior():
    """They are those of a new network, whatever this one has learnt, and draw nothing from the random stream."""
    net = resnet_here()
    fresh = {key: values[1::2] for key, values in net.state_dict().items()}
    for _, leaf in net.named_leaves():
        if leaf.num_weights:
            leaf.var_w[:] = 7
    state = get_state()["state"]["key"].copy()
    nn.load_torch_state_dict(net, learnt(residual(torch_stand_in)).state_dict())
    assert np.array_equal(get_state()["state"]["key"], state)
    for key, leaf in net.named_leaves():
        if leaf.num_weights:
            np.testing.assert_array_equal(leaf.var_w, fresh[key][0])
    np.testing.assert_array_equal(prior_variances(net.layers[-1])[1], list(fresh.values())[-1][1])
    assert prior_variances(net.layers[2])[0].size == 0  # an activation


@pytest.mark.parametrize("sort", [False, True])
def test_state_dictionaries_of_torchvision(sort):
    """By their names, in whatever order a file has them, wrapped by DataParallel or not."""
    module = learnt(residual(torch_stand_in))
    state = module.state_dict()
    if sort:
        state = {f"module.{key}": state[key] for key in sorted(state)}
    net = resnet_here()
    nn.load_torch_state_dict(net, state, variance=0.0)
    x = images(1, 3, 48, 48)
    want = output(module, x)
    np.testing.assert_allclose(net.predict(x)[0], want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_names_go_back_as_they_came():
    """Wrapped by DataParallel, and without a name of the module."""
    w, net = np.eye(2), nn.Sequential(nn.Linear(2, 2))
    for prefix in ("", "module.", "0.", "module.0."):
        like = {f"{prefix}weight": w, f"{prefix}bias": w[0]}
        assert list(nn.to_torch_state_dict(net, like)) == list(like)


def test_other_orders_are_given_by_names():
    net, w = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), np.eye(2)
    state = {"2.weight": 2 * w, "2.bias": w[0], "10.weight": 10 * w, "10.bias": w[0]}
    nn.load_torch_state_dict(net, state, names=["10", "2"])
    assert net.layers[0].mu_w[0] == 10
    with pytest.raises(ValueError, match=r"2 follows 10 .* give names="):
        nn.load_torch_state_dict(net, {key: state[key] for key in sorted(state)})
    with pytest.raises(KeyError, match="no module 3; it has 2, 10"):
        nn.load_torch_state_dict(net, state, names=["2", "3"])


def test_what_does_not_fit_is_named_and_changes_nothing():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm2d(2))
    before = net.state_dict()
    linear = {"fc.weight": np.ones((2, 3)), "fc.bias": np.ones(2)}
    for state, message in (
        (linear, r"2 layers with parameters \(Linear.0, BatchNorm2d.1\), the state dictionary 1 modules \(fc\)"),
        (linear | {"bn.weight": np.ones(2), "bn.bias": np.ones(2)}, "bn has bias 2, weight 2, and BatchNorm2d.1 needs"),
        ({"bn.weight": np.ones(2), **linear}, "bn has weight 2, and Linear.0 needs bias 2, weight 2x3"),
        ({"lstm.weight_ih_l0": np.ones(2)}, "lstm.weight_ih_l0: only weight, bias, running_mean, running_var"),
    ):
        with pytest.raises(ValueError, match=message):
            nn.load_torch_state_dict(net, state)
    with pytest.raises(ValueError, match=r"and Linear.0 needs .*; for another last layer, .* Sequential\(\*cop"):
        nn.load_torch_state_dict(nn.Sequential(nn.Linear(3, 4)), linear)
    for variance in (-1, float("nan"), "wide"):
        with pytest.raises(ValueError, match='variance must be "prior" or a number'):
            nn.load_torch_state_dict(net, linear, variance)
    with pytest.raises(ValueError, match="2 layers with parameters, `like` has 1 modules"):
        nn.to_torch_state_dict(net, linear)
    with pytest.raises(TypeError, match="maps names to arrays, got list"):
        nn.load_torch_state_dict(net, [])
    assert net.state_dict() == before


def test_modules_without_a_counterpart():
    t = torch_stand_in
    with pytest.raises(TypeError, match=r"does not know GELU \(at 1.0\).*layers={'GELU': lambda module"):
        nn.from_torch(t.Sequential(t.Linear(2, 2), t.Sequential(t.GELU())))
    grouped = t.Conv2d(4, 4, 3)
    grouped.groups = 2
    with pytest.raises(ValueError, match="Conv2d at the top has 2 groups, which has no counterpart"):
        nn.from_torch(grouped, (4, 8, 8))
    with pytest.raises(ValueError, match="needs input_shape="):
        nn.from_torch(t.Sequential(t.Conv2d(4, 4, 3)))
    with pytest.raises(ValueError, match="Sequential has no layer"):
        nn.from_torch(t.Sequential(t.Flatten()))


@pytest.mark.parametrize("kind", ["ResNet", "BasicBlock"])
def test_modules_with_other_parts_than_torchvision_s(kind):
    """A part more would be left out without a word, with what it has learnt."""
    t, module = torch_stand_in, learnt(residual(torch_stand_in))
    at = "" if kind == "ResNet" else "layer1.0"
    part = module if kind == "ResNet" else module.named_children()[4][1].named_children()[0][1]
    assert type(part).__name__ == kind
    part.se = t.Linear(2, 2)
    with pytest.raises(TypeError, match=rf"{kind} at {at or 'the top'} is not laid out as that of torchvision.* se"):
        nn.from_torch(module, (3, 8, 8))
    part.se = t.Flatten()  # is left out anyhow
    nn.from_torch(module, (3, 8, 8))
    del part.relu
    with pytest.raises(TypeError, match=rf"{kind} .* is not laid out as that of torchvision"):
        nn.from_torch(module, (3, 8, 8))


def test_flattening_that_leaves_dimensions():
    t = torch_stand_in
    conv, table = t.Conv2d(1, 2, 1), t.Embedding(5, 3)
    for shape, first, flatten in (
        ((1, 4, 4), conv, t.Flatten(2)),
        ((1, 4, 4), conv, t.Flatten(1, 2)),
        ((1, 4, 4), conv, t.Flatten(0)),
        ((4,), table, t.Flatten(0, 1)),
    ):
        with pytest.raises(ValueError, match=r"Flatten\(\d, -?\d\) at 1 makes no flat units of a sample"):
            nn.from_torch(t.Sequential(first, flatten), shape)
    nn.from_torch(t.Sequential(conv, t.Flatten(1, 3), t.Flatten(1, 1)), (1, 4, 4))
    nn.from_torch(t.Sequential(table, t.Flatten(1, 2)), (4,))


def test_an_image_that_goes_into_another_layer_first():
    t = torch_stand_in
    for first in (t.BatchNorm2d(3), t.AvgPool2d(2, 2)):
        with pytest.raises(ValueError, match=rf"from_torch: .*{type(first).__name__} comes first, which cannot take"):
            nn.from_torch(t.Sequential(first, t.Conv2d(3, 2, 3)), (3, 6, 6))
    nn.from_torch(t.Sequential(t.ReLU(), t.Conv2d(3, 2, 3)), (3, 6, 6))


def test_padding_of_an_embedding():
    table = learnt(torch_stand_in.Embedding(5, 3))
    table.padding_idx = 1
    with pytest.raises(ValueError, match=r"Embedding .*has padding that is not 0"):
        nn.from_torch(torch_stand_in.Sequential(table), (4,))
    table.weight[1] = 0
    mu, var = nn.from_torch(torch_stand_in.Sequential(table), (2,)).predict([[1, 2]])
    assert not mu[0, 0].any() and not var[0, 0].any() and var[0, 1].all()


def test_softmax_over_other_units_than_here():
    """Of an image, over all samples, over time steps, or over those of a flattened sequence."""
    t = torch_stand_in
    conv, table = t.Conv2d(1, 2, 1), t.Embedding(5, 3)
    for shape, modules in (
        ((1, 4, 4), [conv, t.Softmax(1)]),
        ((1, 4, 4), [conv, t.AdaptiveAvgPool2d(1), t.Softmax(-1)]),
        ((4,), [t.Linear(4, 3), t.Softmax(0)]),
        ((4,), [table, t.Softmax(1)]),
        ((4,), [table, t.Flatten(), t.Softmax(1)]),
    ):
        with pytest.raises(ValueError, match=rf"Softmax at \d is over dimension {modules[-1].dim}, which"):
            nn.from_torch(t.Sequential(*modules), shape)
    nn.from_torch(t.Sequential(conv, t.Flatten(), t.Softmax(1)), (1, 4, 4))
    nn.from_torch(t.Sequential(conv, t.AdaptiveAvgPool2d(1), t.Softmax(1)), (1, 4, 4))  # of one pixel


def test_a_module_may_become_a_block():
    t = torch_stand_in
    module = t.Sequential(t.Linear(3, 4), t.GELU())
    module.named_children()[1][1].weight = np.arange(8, dtype=np.float32).reshape(2, 4)
    block = {"GELU": lambda module: nn.LayerBlock(nn.Linear(4, 2, bias=False), nn.ReLU())}
    net = nn.from_torch(module, layers=block)
    np.testing.assert_array_equal(net.layers[1].layers[0].mu_w, np.arange(8))
    for wrong in (None, 5, nn.Sequential(nn.Linear(4, 2))):
        with pytest.raises(TypeError, match=r"(?s)GELU at 1 became .*: not layers in a list"):
            nn.from_torch(module, layers={"GELU": lambda module, wrong=wrong: wrong})


def test_names_of_a_sequential():
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1, bias=False))
    assert list(nn.to_torch_state_dict(net)) == ["0.weight", "0.bias", "2.weight"]
    assert nn.to_torch_state_dict(net)["0.weight"].shape == (2, 3)


def test_ready_made_networks():
    manual_seed(0)
    net = models.resnet18_imagenet(0.1, outputs=5, image_size=64)
    assert net.num_parameters == 11_689_512 - 995 * 513
    assert str(net.layers[-2].in_shape) == "512x2x2"
    np.testing.assert_allclose(net.layers[0].var_w, 0.01 / 147, rtol=1e-6)
