"""Labels, windows, readers and scaling: pytagi's numbers, and errors for what pytagi takes silently."""

import numpy as np
import pytest

from pytagi_ddp.tagi_utils import Normalizer, Utils, exponential_scheduler

utils = Utils()


def test_labels_become_the_observations_that_pytagi_gives():
    obs, idx, num_obs = utils.label_to_obs(np.array([3, 9, 0]), 10)
    np.testing.assert_array_equal(obs, [1, 1, -1, -1, -1, 1, 1, -1, 1, 1, 1, 1])
    np.testing.assert_array_equal(idx, [1, 2, 4, 8, 1, 3, 6, 11, 1, 2, 4, 7])
    assert (obs.dtype, idx.dtype, num_obs) == (np.float64, np.int64, 4)


@pytest.mark.parametrize(
    "labels",
    [np.array([1, 0], np.uint8), np.array([1, 0], np.float32), np.array([[1], [0]]), [1, 0]],
    ids=["u8", "f4", "2d", "list"],  # pytagi takes float32, too, as a table with other columns gives them
)
def test_labels_of_any_type_and_shape(labels):
    np.testing.assert_array_equal(utils.label_to_obs(labels, 2)[0], [-1, 1])
    one_hot = utils.label_to_one_hot(labels, 3)
    np.testing.assert_array_equal(one_hot, [0, 1, 0, 1, 0, 0])
    assert one_hot.dtype == np.float32


def test_short_sequences_of_labels_are_not_taken_for_one_hot():
    sequences = np.array([[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(utils.label_to_one_hot(sequences, 3), np.eye(3)[sequences.ravel()].ravel())


def test_no_labels_give_no_observations():
    obs, idx, num_obs = utils.label_to_obs([], 10)
    assert (obs.size, idx.size, num_obs) == (0, 0, 4)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 10], r"label 10 at position 1 is not in 0\.\.9"),
        ([-1], r"label -1 at position 0"),
        ([0.5, 1.0], "whole numbers, got float64"),
        ([0.0, np.inf], "label inf at position 1"),
        (np.ma.masked_array([0, 1], [False, True]), "float"),
        (np.eye(10, dtype=int)[[3, 1, 4]], r"labels of the shape \(3, 10\), a single 1 in each row, are one-hot"),
        (np.eye(10, dtype=np.float32)[[3, 1, 4]], "are one-hot"),
    ],
)
def test_bad_labels_are_named(labels, message):
    with pytest.raises(ValueError, match=message):
        utils.label_to_obs(labels, 10)
    with pytest.raises(ValueError, match=message):
        utils.label_to_one_hot(labels, 10)


# Two samples of ten classes; the probabilities are pytagi 0.2.1's.
MA = np.float32(
    [
        [0.5, -1.25, 2.0, 0.1, -0.3, 1.5, -2.0, 0.75, -0.6, 0.05, 1.1],
        [-0.8, 0.9, -1.7, 0.4, 2.5, -0.2, 0.35, -1.0, 0.15, -2.2, 0.6],
    ]
).ravel()
SA = np.float32(
    [
        [0.2, 1.0, 0.05, 0.6, 0.4, 0.9, 0.3, 1.5, 0.01, 0.7, 0.25],
        [0.8, 0.15, 0.55, 2.0, 0.1, 0.45, 0.35, 0.65, 1.2, 0.02, 0.5],
    ]
).ravel()
PROB = np.reshape(
    [
        [4.7641108e-05, 0.052504137, 0.03142741, 0.012058744, 0.010271369],
        [0.23228659, 0.24874093, 0.22764929, 0.16666211, 0.005792188],
        [0.081888266, 0.035620086, 0.009516215, 0.066100694, 0.0043381825],
        [0.0035192445, 0.0, 0.0, 0.0044874456, 0.0012759266],
    ],
    (2, 10),
)


def test_predictions_are_pytagis():
    tree = utils.get_hierarchical_softmax(10)
    pred, prob = utils.get_labels(MA, SA, tree, 10, 2)
    np.testing.assert_array_equal(pred, [6, 0])
    np.testing.assert_allclose(prob, np.ravel(PROB), atol=2e-7)
    assert (pred.dtype, prob.dtype) == (np.int32, np.float32)
    one = utils.obs_to_label_prob(MA[:11], SA[:11], tree, 10)
    np.testing.assert_allclose(one, PROB[0], atol=2e-7)
    assert one.dtype == np.float64


def test_errors_flag_the_wrong_predictions():
    tree = utils.get_hierarchical_softmax(10)
    errors, prob = utils.get_errors(MA, SA, np.array([6, 1]), tree, 10, 2)
    np.testing.assert_array_equal(errors, [0, 1])
    np.testing.assert_allclose(prob, np.ravel(PROB), atol=2e-7)


def test_outputs_that_do_not_fit_the_tree_are_named():
    tree = utils.get_hierarchical_softmax(10)
    with pytest.raises(ValueError, match="22 means do not fit 3 samples of 11"):
        utils.get_labels(MA, SA, tree, 10, 3)
    with pytest.raises(ValueError, match="22 means and 21 variances"):
        utils.get_labels(MA, SA[1:], tree, 10, 2)
    with pytest.raises(ValueError, match="encodes 10 classes, not 9"):
        utils.get_labels(MA, SA, tree, 9, 2)
    with pytest.raises(ValueError, match="22 means do not fit 1 samples"):
        utils.obs_to_label_prob(MA, SA, tree, 10)
    with pytest.raises(ValueError, match="3 labels do not fit a batch of 2"):
        utils.get_errors(MA, SA, np.array([1, 2, 3]), tree, 10, 2)


@pytest.mark.parametrize(("mean", "var"), [(np.nan, 1), (np.inf, 1), (0, np.inf), (0, np.nan), (0, -0.05)])
def test_outputs_that_are_no_numbers_have_no_class(mean, var):
    """The first class would be taken, and a network that has diverged would have an error rate like any other."""
    ma, sa = np.array(MA), np.array(SA)
    ma[3], sa[3] = mean, var
    with pytest.raises(ValueError, match="the outputs are not Gaussians"):
        utils.get_labels(ma, sa, utils.get_hierarchical_softmax(10), 10, 2)


def test_rolling_windows():
    data = np.arange(24, dtype=np.float32).reshape(12, 2)
    inputs, outputs = utils.create_rolling_window(data, np.array([0]), 3, 2, 2, 2)
    np.testing.assert_array_equal(
        inputs, [[0, 1, 2, 3, 4, 5], [4, 5, 6, 7, 8, 9], [8, 9, 10, 11, 12, 13], [12, 13, 14, 15, 16, 17]]
    )
    np.testing.assert_array_equal(outputs, [[6, 8], [10, 12], [14, 16], [18, 20]])
    assert inputs.dtype == outputs.dtype == np.float32
    flat = utils.create_rolling_window(data.ravel(), np.array([0]), 3, 2, 2, 2)
    np.testing.assert_array_equal(flat[0], inputs)


def test_rolling_windows_with_several_output_columns():
    data = np.arange(24, dtype=np.float32).reshape(12, 2)
    _, outputs = utils.create_rolling_window(data, np.array([1, 0]), 3, 2, 2, 3)
    np.testing.assert_array_equal(outputs, [[7, 6, 9, 8], [13, 12, 15, 14], [19, 18, 21, 20]])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_seq_len": 11}, r"12 rows are fewer than one window of 11 \+ 2"),
        ({"output_col": np.array([2])}, r"\[2\] names a column outside 0\.\.1"),
        ({"num_features": 5}, "data of shape .* do not have 5 features"),
        ({"stride": 0}, "stride must be at least 1, got 0"),
        ({"output_col": np.array([0.0])}, r"\[0\.0\] names a column outside 0\.\.1"),
    ],
)
def test_impossible_windows_are_named(changed, message):
    arguments = {
        "data": np.zeros((12, 2)),
        "output_col": np.array([0]),
        "input_seq_len": 3,
        "output_seq_len": 2,
        "num_features": 2,
        "stride": 1,
    }
    with pytest.raises(ValueError, match=message):
        utils.create_rolling_window(**(arguments | changed))


def test_windows_are_of_numbers():
    series = np.ma.masked_equal(np.arange(6), 2)
    np.testing.assert_array_equal(utils.create_rolling_window(series, [0], 3, 1, 1, 1)[0][0], [0, 1, np.nan])
    dates = np.arange(6).astype("M8[D]")  # which NumPy would count in days since 1970
    with pytest.raises(TypeError, match="data must hold real numbers, got dtype datetime64"):
        utils.create_rolling_window(dates, [0], 3, 1, 1, 1)
    with pytest.raises(TypeError, match=r"create_rolling_window: stride must be an integer, got 1\.0"):
        utils.create_rolling_window(series, [0], 3, 1, 1, 1.0)


def test_packed_diagonal_covariance():
    packed = utils.get_upper_triu_cov(2, 3, 0.1)
    np.testing.assert_array_equal(packed, 0.010000000707805157 * np.array([1, 0, 0, 1, 0, 1] * 2))
    assert packed.dtype == np.float64


def test_mnist_files(tmp_path):
    pixels = np.arange(3 * 4, dtype=np.uint8) * 20
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(np.array([0x803, 3, 2, 2], ">u4").tobytes() + pixels.tobytes())
    labels.write_bytes(np.array([0x801, 3], ">u4").tobytes() + bytes([7, 2, 1]))
    x, y = utils.load_mnist_images(images, labels, 2)
    np.testing.assert_array_equal(x, np.float32(pixels[:8]) / np.float32(255))
    np.testing.assert_array_equal(y, [7, 2])
    assert (x.dtype, y.dtype) == (np.float32, np.int32)
    with pytest.raises(ValueError, match="holds 3 entries, 4 were asked for"):
        utils.load_mnist_images(images, labels, 4)
    with pytest.raises(ValueError, match="num must be at least 1"):
        utils.load_mnist_images(images, labels, 0)
    with pytest.raises(ValueError, match=r"labels: begins with 00000801 \(11 bytes\), expected 00000803"):
        utils.load_mnist_images(labels, images, 2)
    labels.write_bytes(np.array([0x801, 4], ">u4").tobytes() + bytes([7, 2, 1, 0]))  # of a test set, say
    with pytest.raises(ValueError, match=r"images holds 3 images, and .*labels 4 labels"):
        utils.load_mnist_images(images, labels, 2)
    images.write_bytes(images.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"images: expected 28 bytes for shape \(3, 2, 2\), found 27"):
        utils.load_mnist_images(images, labels, 2)


def test_cifar_files(tmp_path):
    records = np.random.default_rng(0).integers(0, 256, (3, 3073), dtype=np.uint8)
    records[:, 0] = [9, 0, 4]
    path = tmp_path / "data_batch_1.bin"
    records.tofile(path)
    x, y = utils.load_cifar_images(path, 2)
    np.testing.assert_array_equal(x, np.float32(records[:2, 1:].ravel()) / np.float32(255))
    np.testing.assert_array_equal(y, [9, 0])
    for many in (10, 10**12):
        with pytest.raises(ValueError, match=f"holds 3 entries, {many} were asked for"):
            utils.load_cifar_images(path, many)
    records[1, 0] = 10  # as in files of other sets, or of records of another size
    records.tofile(path)
    with pytest.raises(ValueError, match=r"data_batch_1\.bin is not a binary batch of CIFAR-10: it has a label 10"):
        utils.load_cifar_images(path, 2)


def test_standardized_data_has_mean_0_and_variance_1_and_comes_back():
    data = np.random.default_rng(1).normal(5, 3, (200, 4))
    data[7, 2] = np.nan
    mu, std = Normalizer.compute_mean_std(data)
    scaled = Normalizer.standardize(data, mu, std)
    np.testing.assert_allclose(np.nanmean(scaled, axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.nanstd(scaled, axis=0), 1, rtol=1e-9)
    np.testing.assert_allclose(Normalizer.unstandardize(scaled, mu, std), data, rtol=1e-12)
    np.testing.assert_allclose(Normalizer.unstandardize_std(0.5, std), 0.5 * std, rtol=1e-9)


def test_max_min_norm_maps_to_0_and_1_and_comes_back():
    data = np.random.default_rng(2).normal(5, 3, (50, 4))
    normalizer = Normalizer(method="max_min")
    assert normalizer.method == "max_min"
    high, low = normalizer.compute_max_min(data)
    scaled = normalizer.max_min_norm(data, high, low)
    np.testing.assert_allclose([scaled.min(), scaled.max()], [0, 1], atol=1e-9)
    np.testing.assert_allclose(normalizer.max_min_unnorm(scaled, high, low), data, rtol=1e-12)
    np.testing.assert_allclose(normalizer.max_min_unnorm_std(2.0, high, low), 2 * (high - low), rtol=1e-9)
    with pytest.raises(ValueError, match="must not be below"):
        normalizer.max_min_norm(data, low, high)


def test_max_min_norm_of_short_integers():
    data = np.array([-30000, 0, 30000], np.int16)  # samples of sound, say: their span is more than an int16 holds
    high, low = Normalizer.compute_max_min(data)
    scaled = Normalizer().max_min_norm(data, high, low)
    np.testing.assert_allclose(scaled, [0, 0.5, 1], atol=1e-9)
    np.testing.assert_allclose(Normalizer.max_min_unnorm(scaled, high, low), data, atol=1e-6)
    assert Normalizer.max_min_unnorm_std(1.0, high, low) == pytest.approx(60000)


def test_a_constant_column_scales_to_zero():
    data = np.full((5, 1), 3.0)
    np.testing.assert_array_equal(Normalizer.standardize(data, *Normalizer.compute_mean_std(data)), np.zeros((5, 1)))


@pytest.mark.parametrize(("step", "value"), [(0, 1.0), (2, 0.25), (3, 0.125), (4, 0.1), (50, 0.1)])
def test_exponential_decay_stops_at_its_floor(step, value):
    assert exponential_scheduler(curr_v=1.0, min_v=0.1, decaying_factor=0.5, curr_iter=step) == value
