"""The density of features: its formula, what it leaves alone, and what it finds."""

import numpy as np
import pytest

import pytagi_ddp
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.metric import auroc
from pytagi_ddp.nn import AvgPool2d, BatchNorm2d, Conv2d, FeatureDensity, Linear, MixtureReLU, ReLU, Sequential


def points(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three groups in the plane."""
    rng = np.random.default_rng(seed)
    labels = np.arange(300) % 3
    return (np.array([[2, 0], [-2, 0], [0, 3]])[labels] + rng.normal(0, 0.4, (300, 2))).astype(np.float32), labels


def test_the_distance_is_that_of_the_nearest_gaussian():
    pytagi_ddp.manual_seed(0)
    net = Sequential(Linear(2, 6), ReLU(), Linear(6, 3))
    (x, labels), (new, _) = points(0), points(1)
    before = net.predict(new)
    density = FeatureDensity(net).fit(x, labels)
    body = Sequential(Linear(2, 6), ReLU())
    body.load_state_dict({key: value for key, value in net.state_dict().items() if not key.startswith("Linear.2")})
    f, f_new = (np.concatenate([rows, body.predict(rows)[0]], 1).astype(np.float64) for rows in (x, new))
    np.testing.assert_allclose(density.features(new, batch_size=64), f_new, rtol=1e-5, atol=1e-6)
    means = np.stack([f[labels == k].mean(0) for k in range(3)])
    rest = f - means[labels]
    std = np.sqrt(np.square(rest).mean(0))
    std[std == 0] = 1
    covariance = (rest / std).T @ (rest / std) / (300 - 3) + 0.01 * np.eye(8)
    away = (f_new[:, None] - means) / std
    expected = np.einsum("nki,ij,nkj->nk", away, np.linalg.inv(covariance), away).min(1)
    np.testing.assert_allclose(density.distance(new), expected, rtol=1e-3)
    np.testing.assert_array_equal(net.predict(new), before)
    batches = [(x[:100], labels[:100]), (x[100:], labels[100:])]
    np.testing.assert_allclose(FeatureDensity(net).fit(batches).distance(new), expected, rtol=1e-3)


def test_it_finds_what_is_far_from_the_data():
    pytagi_ddp.manual_seed(0)
    net = Sequential(Linear(2, 32), MixtureReLU(), Linear(32, 3))
    x, labels = points(0)
    net.fit(x, labels, Categorical(3), epochs=5, batch_size=10)
    far = np.array([20, -10], np.float32) + points(1)[0]
    density = FeatureDensity(net).fit(x, labels)
    assert auroc(density.distance(points(2)[0]), density.distance(far)) == 1


def test_features_of_images_are_means_over_pixels():
    net = Sequential(Conv2d(2, 4, 3, padding=1, in_width=4, in_height=4), BatchNorm2d(4), AvgPool2d(4), Linear(4, 2))
    x = np.random.default_rng(0).normal(size=(3, 2, 4, 4))
    features = FeatureDensity(net).features(x)
    assert features.shape == (3, 2 + 4 + 4)
    assert FeatureDensity(net).features(x[:0]).shape == (0, 2 + 4 + 4)
    np.testing.assert_allclose(features[:, :2], x.mean((2, 3)), rtol=1e-4, atol=1e-6)
    unchanged = net.predict(x)
    assert not np.allclose(features[0, 2:6], features[1, 2:6]) and np.isfinite(unchanged).all()


def test_errors_say_what_is_missing():
    net = Sequential(Linear(2, 2))
    with pytest.raises(ValueError, match="3 inputs and 2 labels"):
        FeatureDensity(net).fit(np.ones((3, 2)), [0, 1])
    with pytest.raises(TypeError, match=r"takes a Sequential .* got list"):
        FeatureDensity([net])
    for nothing in ((np.ones((0, 2)), []), ([], None)):
        with pytest.raises(ValueError, match="there is no input"):
            FeatureDensity(net).fit(*nothing)
    with pytest.raises(RuntimeError, match="fit"):
        FeatureDensity(net).distance(np.ones((3, 2)))


@pytest.mark.parametrize("missing", [np.nan, -1])
def test_inputs_without_a_label_are_left_out(missing):
    net = Sequential(Linear(2, 2))
    x, labels = points(0)
    given = labels.astype(float)
    x[:50] += 50
    given[:50] = missing
    density, expected = FeatureDensity(net).fit(x, given), FeatureDensity(net).fit(x[50:], labels[50:])
    np.testing.assert_array_equal(density.distance(x), expected.distance(x))
    names = FeatureDensity(net).fit(x[50:], np.array(["a", "b", "c"])[labels[50:]])
    np.testing.assert_array_equal(names.distance(x), expected.distance(x))
    with pytest.raises(TypeError, match=r"needs the class of each input: fit\(x, labels\)"):
        FeatureDensity(net).fit(x)
    with pytest.raises(ValueError, match="no input has a label"):
        FeatureDensity(net).fit(x, np.full(len(x), missing))
