"""The residual networks: the architecture as pytagi's example has it, and that they learn."""

import numpy as np
import pytest

from pytagi_ddp import HRCSoftmaxMetric, Utils, manual_seed, nn
from pytagi_ddp.kernels.cpu.runtime import threads
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10


@pytest.fixture(scope="module")
def resnet18() -> nn.Sequential:
    return resnet18_cifar10(gain_w=0.1, gain_b=0.1)


def test_resnet18_has_11_690_571_parameters(resnet18):
    """In the arena, in the leaves and in the state dict alike."""
    count = 11_690_571
    assert resnet18.num_parameters == count
    assert resnet18.arena.theta.shape == resnet18.arena.delta.shape == (2, count)
    assert sum(leaf.num_weights + leaf.num_biases for _, leaf in resnet18.named_leaves()) == count
    state = resnet18.state_dict()
    assert sum(mu.size + b.size for key, (mu, _, b, _) in state.items() if not key.endswith(".running")) == count
    assert f"{count:,}" in resnet18.summary()


def test_resnet18_layer_by_layer(resnet18):
    assert resnet18.get_layer_stack_info().splitlines() == [
        "Conv2d(3,64,32,32,3)",
        "MixtureReLU()",
        "BatchNorm2d()",
        *["ResNetBlock(65536,65536)"] * 2,
        "ResNetBlock(65536,32768)",
        "ResNetBlock(32768,32768)",
        "ResNetBlock(32768,16384)",
        "ResNetBlock(16384,16384)",
        "ResNetBlock(16384,8192)",
        "ResNetBlock(8192,8192)",
        "AvgPool2d(512,512,1,1,4)",
        "Linear(512,11)",
    ]
    strided = [type(leaf).__name__ for leaf in resnet18.layers[5].leaves()]
    unit = ["Conv2d", "MixtureReLU", "BatchNorm2d"]
    assert strided == unit * 3
    main, _, _, second, *_, shortcut, _, _ = resnet18.layers[5].leaves()
    assert [tuple(conv.window[1:]) for conv in (main, second, shortcut)] == [(3, 2, 1, 2), (3, 1, 1, 1), (2, 2, 0, 1)]
    assert not any(leaf.num_biases for leaf in resnet18.layers[5].leaves() if isinstance(leaf, nn.Conv2d))


def test_gains_are_those_of_the_prior(resnet18):
    """Standard deviations: gain^2 / fan for the variances of the weights."""
    np.testing.assert_allclose(resnet18.layers[0].var_w, 0.01 / 27, rtol=1e-5)
    np.testing.assert_allclose(resnet18.layers[2].var_w, 1 / 64, rtol=1e-5)
    np.testing.assert_allclose(resnet18.layers[-1].var_b, 0.01 / 512, rtol=1e-5)
    assert np.std(resnet18.layers[0].mu_w) == pytest.approx((1 / 27) ** 0.5, rel=0.1)


@pytest.fixture
def one_thread():
    """The loops of many threads are tested elsewhere; here they would only have to be compiled."""
    before = threads.get_threads()
    threads.set_threads(1)
    yield
    threads.set_threads(before)


def shapes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of ten classes: a bright square of one of five sizes, in the left or the right half."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 10
    images = 0.3 * rng.normal(size=(n, 3, 32, 32)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        side = 3 * (label % 5) + 3
        image[:, 8 : 8 + side, 16 * (label // 5) : 16 * (label // 5) + side] += 2
    return images, labels


def test_resnet8_learns(one_thread):
    manual_seed(3)
    net, updater, utils = resnet8_cifar10(gain_w=0.1, gain_b=0.1), nn.OutputUpdater("cpu"), Utils()
    images, labels = shapes(20, seed=0)
    obs, index, n = utils.label_to_obs(labels, 10)
    metric = HRCSoftmaxMetric(10)
    before = metric.error_rate(*(a.reshape(-1) for a in net.predict(images)), labels)
    for _ in range(12):
        net(images)
        noise = np.full(len(labels) * n, 0.1**2)
        updater.update_using_indices(net.output_z_buffer, obs, noise, index, net.input_delta_z_buffer)
        net.backward()
        net.step()
    mu, _ = net(images)
    after = metric.error_rate(*(a.reshape(-1) for a in net.get_outputs()), labels)
    assert np.isfinite(mu).all()
    assert before >= 0.7
    assert after <= 0.3


def test_resnet8_with_remax_takes_a_step(one_thread):
    net, updater = resnet8_cifar10(is_remax=True), nn.OutputUpdater("cpu")
    images, labels = shapes(4, seed=1)
    mu, _ = net(images)
    np.testing.assert_allclose(mu.reshape(4, 10).sum(1), 1, rtol=1e-5)
    before = np.array(net.arena.theta)
    one_hot = Utils().label_to_one_hot(labels, 10)
    updater.update(net.output_z_buffer, one_hot, np.full(40, 0.01), net.input_delta_z_buffer)
    net.backward()
    net.step()
    assert np.isfinite(net.arena.theta).all()
    assert np.count_nonzero(net.arena.theta[0] != before[0]) > 0.9 * net.num_parameters
    assert net.arena.theta[1].min() > 0
