"""Batch and layer normalisation against the float64 reference, and their statistics."""

import copy

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.nn.networks import assert_matches_reference, randomise
from tests.nn.test_precision import needs_bfloat16

NETWORKS = {
    "batch norm after dense after convolution": lambda bias: [
        nn.Conv2d(1, 2, 3, in_width=5, in_height=4),
        nn.Tanh(),
        nn.Linear(12, 7),
        nn.BatchNorm2d(7, bias=bias),
        nn.Sigmoid(),
        nn.Linear(7, 2),
    ],
    "batch norm of every pixel": lambda bias: [
        nn.Conv2d(1, 2, 3, in_width=5, in_height=4),
        nn.BatchNorm2d(12, bias=bias),
        nn.Linear(12, 2),
    ],
    "batch norm first": lambda bias: [nn.BatchNorm2d(5, bias=bias), nn.Linear(5, 2)],
    "layer norm of every pixel": lambda bias: [
        nn.Conv2d(1, 2, 3, in_width=5, in_height=4),
        nn.LayerNorm([12], bias=bias),
        nn.Linear(12, 2),
    ],
    "layer norm first": lambda bias: [nn.LayerNorm([2, 3, 4], bias=bias), nn.Conv2d(2, 1, 2)],
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layers", NETWORKS.values(), ids=NETWORKS)
def test_training_pass(layers, bias):
    assert_matches_reference(nn.Sequential(*layers(bias)), batch=6)


@pytest.mark.parametrize("rows", [2, 129, 300])
def test_many_rows(rows):
    """Sums over the batch are made in blocks; a last block that is not full must count right."""
    assert_matches_reference(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm2d(4), nn.Linear(4, 2)), batch=rows)


def test_large_means_do_not_cancel():
    """Mean 1000, standard deviation 1: the variance of the batch keeps 4 digits in float32."""
    norm = nn.BatchNorm2d(2)
    net = nn.Sequential(norm, nn.Linear(2, 1))
    x = (1000 + np.random.default_rng(0).normal(size=(500, 2))).astype(np.float32)
    net(x)
    mean, var = norm.batch_statistics()
    np.testing.assert_allclose(mean, x.astype(float).mean(0), rtol=1e-6)
    np.testing.assert_allclose(var, x.astype(float).var(0, ddof=1), rtol=1e-4)


def test_statistics_of_many_pixels_are_exact():
    x = np.full((1, 3 * 224 * 224), 0.7, np.float32)
    assert np.abs(nn.Sequential(nn.LayerNorm([3, 224, 224]))(x)[0]).max() < 0.003
    np.testing.assert_allclose(nn.Sequential(nn.RMSNorm(x.size))(x)[0], 1, rtol=1e-5)


def test_batch_sums_of_many_samples_are_exact():
    net, n = nn.Sequential(nn.LayerNorm([2])), 1_000_000
    net(np.tile(np.float32([[1, 2]]), (n, 1)))
    net.set_delta_z(np.full(2 * n, 0.07, np.float32), np.full(2 * n, -0.1, np.float32))
    net.backward()
    change = net.layers[0].delta_mu_b, net.layers[0].delta_var_b  # sums times the variance, and its square
    var = net.layers[0].var_b
    np.testing.assert_allclose(change, [var * n * np.float32(0.07), var**2 * n * np.float32(-0.1)], rtol=2e-4)


def test_running_variances_are_never_negative():
    """However far the first batches lie from the running means, of which float32 leaves no digit of their spread."""
    net = nn.Sequential(nn.BatchNorm2d(3))
    x = 1e5 + np.random.default_rng(0).normal(size=(256, 3))
    for _ in range(3):
        net(x)
    assert (net.layers[0].running_var >= 0).all()
    mu, var = net.predict(x)
    assert np.isfinite(mu).all()
    assert np.isfinite(var).all()


def test_running_statistics_of_several_batches():
    """running = 0.9 old + 0.1 batch, always, from mean 0 and variance 1; with the units' own variances."""
    norm = nn.BatchNorm2d(3)
    net = nn.Sequential(norm, nn.Linear(3, 1))
    mean, var = np.zeros(3), np.ones(3)
    rng = np.random.default_rng(3)
    for batch in (4, 2, 9):
        x = rng.normal(2, 3, (batch, 3)).astype(np.float32)
        s = rng.uniform(0.1, 1, (batch, 3)).astype(np.float32)
        net(x, s)
        mean = 0.9 * mean + 0.1 * x.mean(0)
        var = 0.9 * var + 0.1 * (((x - x.mean(0)) ** 2).sum(0) + s.sum(0)) / (batch - 1)
    np.testing.assert_allclose(norm.running_mean, mean, rtol=1e-5)
    np.testing.assert_allclose(norm.running_var, var, rtol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_momentum_is_the_weight_of_the_old_value(momentum):
    norm = nn.BatchNorm2d(1, momentum=momentum)
    nn.Sequential(norm, nn.Linear(1, 1))(np.float32([4, 6]))
    assert norm.running_mean == pytest.approx([(1 - momentum) * 5])
    assert norm.running_var == pytest.approx([momentum + (1 - momentum) * 2])


def test_evaluation_uses_running_statistics_and_leaves_them():
    net = randomise(nn.Sequential(nn.BatchNorm2d(2, eps=0.0), nn.Linear(2, 1)))
    norm = net.layers[0]
    norm.running_mean[...], norm.running_var[...] = [1, 2], [4, 9]
    norm.mu_w, norm.var_w, norm.mu_b, norm.var_b = [1, 1], [0, 0], [0, 0], [0, 0]
    net.layers[1].mu_w, net.layers[1].mu_b = [1, 10], [0]
    net.eval()
    mu, _ = net(np.float32([[3, 8]]))  # one sample: no statistics of its own
    assert mu == pytest.approx([(3 - 1) / 2 + 10 * (8 - 2) / 3])
    np.testing.assert_array_equal(norm.running_mean, [1, 2])
    np.testing.assert_array_equal(norm.running_var, [4, 9])


def test_one_value_per_feature_cannot_be_normalised():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm2d(4))
    with pytest.raises(ValueError, match=r"more than one value per feature .* drop_last=True.* sync_batch_norm=True"):
        net(np.zeros(3, np.float32))
    with pytest.raises(RuntimeError, match="forward pass in training mode"):
        net.backward()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (lambda: [nn.Linear(2, 4), nn.BatchNorm2d(3)], "BatchNorm2d of 3 features after a layer that gives 4"),
        (lambda: [nn.Linear(2, 4), nn.LayerNorm([3])], r"LayerNorm of \[3\] after a layer that gives 4"),
        (lambda: [nn.Linear(2, 4), nn.LayerNorm([1, 2, 2])], r"LayerNorm of \[1, 2, 2\] after a layer that gives 4"),
        (lambda: [nn.LayerNorm([2, 3])], r"got \[2, 3\]"),
        (lambda: [nn.BatchNorm2d(0)], "num_features must be at least 1, got 0"),
        (lambda: [nn.BatchNorm2d(2, momentum=1.5)], "BatchNorm2d needs 0 <= momentum <= 1, got 1.5"),
        (lambda: [nn.BatchNorm2d(2, eps=np.nan)], "BatchNorm2d needs 0 <= eps <= 1e.30, got nan"),
        (lambda: [nn.LayerNorm([2], eps=np.nan)], "LayerNorm needs 0 <= eps <= 1e.30, got nan"),
        (lambda: [nn.LayerNorm([2], eps=np.inf)], "got inf"),
        (lambda: [nn.LayerNorm([2], eps=-1)], "got -1"),
    ],
)
def test_bad_sizes_are_named(layers, message):
    with pytest.raises(ValueError, match=message):
        nn.Sequential(*layers())


def test_settings_are_looked_at_when_they_are_assigned():
    norm = nn.BatchNorm2d(2)
    with pytest.raises(ValueError, match="BatchNorm2d needs 0 <= eps"):
        norm.eps = np.nan
    assert norm.eps == 1e-5


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "checkpoint_blocks", True),
        pytest.param(lambda net: setattr(net, "precision", "mixed"), marks=needs_bfloat16),
    ],
    ids=["checkpoint_blocks", "precision"],
)
def test_statistics_are_zeros_where_their_memory_is_gone(change):
    net = nn.Sequential(nn.Linear(4, 300), nn.BatchNorm2d(300), nn.LayerBlock(nn.Linear(300, 2)))
    net(np.random.default_rng(0).normal(size=(8, 4)))
    assert net.layers[1].batch_statistics()[1].all()
    change(net)
    assert not np.any(net.layers[1].batch_statistics())
    net(np.random.default_rng(0).normal(size=(8, 4)))
    assert net.layers[1].batch_statistics()[1].all()


@pytest.mark.parametrize("rows", [3, 8, 64])
def test_equal_rows_are_normalised_to_zero_and_a_relu_passes_them_or_not(rows):
    """The sign of a rounding error decides which of the two, and so the variance behind it; see BatchNorm2d."""
    x = np.tile([0.5, -1.0, 0.3, 0.8], (rows, 1))
    layers = [nn.Linear(4, 20), nn.BatchNorm2d(20), nn.ReLU()]
    layers[1].mu_w, layers[1].var_w = np.linspace(0.5, 2, 20), np.full(20, 0.1)
    mu, var = (moments.reshape(rows, 20) for moments in nn.Sequential(*copy.deepcopy(layers[:2]))(x))
    s = nn.Sequential(copy.deepcopy(layers[0]))(x)[1].reshape(rows, 20)[0].astype(np.float64)
    r2 = 1 / (rows * s / (rows - 1) + layers[1].eps)
    np.testing.assert_allclose(mu, np.zeros((rows, 20)), atol=1e-5)
    np.testing.assert_allclose(var, np.tile(r2 * s * (layers[1].mu_w ** 2 + 0.1) + 0.05, (rows, 1)), rtol=1e-4)
    passed_mu, passed_var = (moments.reshape(rows, 20) for moments in nn.Sequential(*layers)(x))
    np.testing.assert_array_equal(passed_mu, np.maximum(mu, 0))
    np.testing.assert_array_equal(passed_var, np.where(mu > 0, var, 0))


@pytest.mark.parametrize("value", [1.1, 10000.1, 100000.7])
@pytest.mark.parametrize(
    ("make", "shape"), [(lambda: nn.BatchNorm2d(3), (100, 3)), (lambda: nn.LayerNorm([3000]), (2, 3000))]
)
def test_equal_values_are_normalised_to_the_bias(make, shape, value):
    """Means of 10000.1 became 0.95, because the sums of the statistics lost digits."""
    mu, _ = nn.Sequential(make())(np.full(shape, value))
    np.testing.assert_array_equal(mu, 0)


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm2d(3), lambda: nn.LayerNorm([3])])
def test_a_pass_with_nan_deltas_leaves_nothing_for_the_next(make):
    net = nn.Sequential(make(), nn.Linear(3, 2))
    x = np.random.default_rng(0).normal(size=(4, 3))
    for value in (np.nan, 1.0):
        net(x)
        net.set_delta_z(np.full(8, value), np.full(8, value))
        net.backward()
    norm = net.layers[0]
    assert np.isfinite(norm.delta_mu_w).all() and np.isfinite(norm.delta_var_b).all()
