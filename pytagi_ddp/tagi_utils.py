"""Encoding of labels, decoding of outputs, rolling windows, and scaling of data.

The names, arguments, sizes and numbers are pytagi's. Where pytagi cannot run (`get_errors`, windows with
several output columns) the intended result is given.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import is_table, to_numpy
from pytagi_ddp.files import file_size
from pytagi_ddp.nn.hierarchical_softmax import (
    HRCSoftmax,
    class_probabilities,
    encode_classes,
    hierarchical_softmax,
)
from pytagi_ddp.validate import as_integers, flat_float32

# Keeps the scaling of a constant column finite.
_EPSILON = 1e-10


class Utils:
    """Helper functions around a network: labels in, classes and windows out."""

    def label_to_obs(self, labels: ArrayLike, num_classes: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Encode labels for `OutputUpdater.update_using_indices`.

        Args:
            labels: B whole numbers in [0, num_classes), of a type of integers, floats or bools.
            num_classes: K, at least 2.

        Returns:
            (obs, obs_idx, num_obs): float64 array of B * L observations (+1 or -1), int64 array of the output
            units that they belong to (counted from 1), and L = ceil(log2 K).

        Raises:
            ValueError: Labels that are not whole numbers or out of range, or fewer than two classes.
        """
        signs, units, _ = encode_classes(num_classes)
        labels = _check_labels(labels, num_classes)
        return signs[labels].ravel(), units[labels].ravel(), signs.shape[1]

    def label_to_one_hot(self, labels: ArrayLike, num_classes: int) -> np.ndarray:
        """Encode B labels as a flat float32 array of B * num_classes zeros and ones.

        Raises:
            ValueError: Labels that are not whole numbers or out of range.
        """
        labels = _check_labels(labels, num_classes)
        one_hot = np.zeros((labels.size, num_classes), np.float32)
        one_hot[np.arange(labels.size), labels] = 1
        return one_hot.ravel()

    def get_hierarchical_softmax(self, num_classes: int) -> HRCSoftmax:
        """Build the binary tree of `num_classes` classes; `.len` is the number of output units that it needs.

        Raises:
            ValueError: Fewer than two classes.
        """
        return hierarchical_softmax(num_classes)

    def obs_to_label_prob(self, ma: ArrayLike, Sa: ArrayLike, hr_softmax: HRCSoftmax, num_classes: int) -> np.ndarray:
        """Probability of every class for one sample, a float64 array of K values.

        The formula is in `nn.hierarchical_softmax.class_probabilities`.

        Args:
            ma, Sa, hr_softmax, num_classes: As in `get_labels`, for a batch of one.

        Raises:
            ValueError: Sizes that do not match the tree.
        """
        return _probabilities(ma, Sa, hr_softmax, num_classes, 1)[0]

    def get_labels(
        self, ma: ArrayLike, Sa: ArrayLike, hr_softmax: HRCSoftmax, num_classes: int, batch_size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict the most probable class of every sample.

        Args:
            ma: Means of the output units, batch_size * hr_softmax.len values.
            Sa: Their variances.
            hr_softmax: The tree.
            num_classes: K, as in the tree.
            batch_size: B.

        Returns:
            (pred, prob): int32 array of B classes (the first of equals), float32 array of B * K
            class probabilities.

        Raises:
            ValueError: Sizes that do not match the tree, means that are not finite, or variances that are not finite
                or negative.
        """
        prob = _probabilities(ma, Sa, hr_softmax, num_classes, batch_size).astype(np.float32)
        return prob.argmax(axis=1).astype(np.int32), prob.ravel()

    def get_errors(
        self,
        ma: ArrayLike,
        Sa: ArrayLike,
        labels: ArrayLike,
        hr_softmax: HRCSoftmax,
        num_classes: int,
        batch_size: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Flag the samples whose most probable class is not their label.

        Args:
            ma, Sa, hr_softmax, num_classes, batch_size: As in `get_labels`.
            labels: B true classes.

        Returns:
            (errors, prob): int32 array of B flags (1: wrong), float32 array of B * K class probabilities.

        Raises:
            ValueError: Sizes that do not match, or labels that are not whole numbers or out of range.
        """
        labels = _check_labels(labels, num_classes)
        if labels.size != batch_size:
            raise ValueError(f"{labels.size} labels do not fit a batch of {batch_size}")
        pred, prob = self.get_labels(ma, Sa, hr_softmax, num_classes, batch_size)
        return (pred != labels).astype(np.int32), prob

    def create_rolling_window(
        self,
        data: ArrayLike,
        output_col: ArrayLike,
        input_seq_len: int,
        output_seq_len: int,
        num_features: int,
        stride: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cut a time series into windows of inputs and the outputs that follow them.

        Window w takes the input_seq_len rows from row w * stride on, and the chosen columns of the next
        output_seq_len rows.

        Args:
            data: T rows of num_features columns (or the same values in one dimension), of any library; masked values
                count as NaN.
            output_col: Columns to predict, counted from 0.
            input_seq_len: Rows of a window's input.
            output_seq_len: Rows of a window's output.
            num_features: Columns of `data`.
            stride: Rows between the starts of two windows.

        Returns:
            Two float32 arrays of W = (T - input_seq_len - output_seq_len) // stride + 1 rows:
            (W, input_seq_len * num_features) and (W, output_seq_len * len(output_col)).

        Raises:
            ValueError: Lengths below 1, other columns than num_features, a column that does not exist, or fewer
                rows than one window takes.
            TypeError: Data that are not real numbers, such as dates, or lengths that are not integers.
        """
        lengths = {"input_seq_len": input_seq_len, "output_seq_len": output_seq_len}
        as_integers("create_rolling_window", 1, **lengths, num_features=num_features, stride=stride)
        series, columns = to_numpy(data, "data"), to_numpy(output_col, "output_col", text=True).ravel()
        if series.size % num_features or (series.ndim > 1 and series.size != len(series) * num_features):
            raise ValueError(f"data of shape {series.shape} do not have {num_features} features in each row")
        series = flat_float32(series, "data").reshape(-1, num_features)
        if columns.dtype.kind not in "iu" or not np.isin(columns, np.arange(num_features)).all():
            raise ValueError(f"output_col {columns.tolist()} names a column outside 0..{num_features - 1}")
        window = input_seq_len + output_seq_len
        if len(series) < window:
            raise ValueError(f"{len(series)} rows are fewer than one window of {input_seq_len} + {output_seq_len} rows")
        starts = np.arange(0, len(series) - window + 1, stride)[:, None]
        inputs = series[starts + np.arange(input_seq_len)]
        outputs = series[starts + np.arange(input_seq_len, window)][:, :, columns]
        return inputs.reshape(len(starts), -1), outputs.reshape(len(starts), -1)

    def get_upper_triu_cov(self, batch_size: int, num_data: int, sigma: float) -> np.ndarray:
        """Diagonal covariance of `num_data` values, as packed upper triangles, one per sample.

        Args:
            batch_size: Number of copies, one after another.
            num_data: Size n of the matrix; a triangle has n (n + 1) / 2 values, row after row.
            sigma: Standard deviation; the diagonal holds sigma^2, all else is 0.

        Returns:
            float64 array of batch_size * n (n + 1) / 2 values, rounded to float32.
        """
        triangle = np.float32(sigma) ** 2 * np.eye(num_data)[np.triu_indices(num_data)]
        return np.tile(triangle, batch_size)

    def load_mnist_images(
        self, image_file: str | os.PathLike[str], label_file: str | os.PathLike[str], num_images: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read the first images of an MNIST set from its IDX files (gzipped ones end in .gz).

        Returns:
            (images, labels): flat float32 array of num_images * rows * columns pixels in [0, 1] and int32
            array of num_images labels.

        Raises:
            ValueError: A file that is not an IDX file of its kind, or truncated, or that holds fewer than num_images
                entries; or images and labels that differ in number.
        """
        from pytagi_ddp.data.idx import read_idx  # here, to keep `import pytagi_ddp` fast

        images, labels = read_idx(Path(image_file), 3), read_idx(Path(label_file), 1)
        if len(images) != len(labels):
            raise ValueError(
                f"{os.fspath(image_file)} holds {len(images)} images, and {os.fspath(label_file)} {len(labels)} labels"
            )
        return _pixels(_first(images, num_images, image_file)), _first(labels, num_images, label_file).astype(np.int32)

    def load_cifar_images(self, image_file: str | os.PathLike[str], num: int) -> tuple[np.ndarray, np.ndarray]:
        """Read the first images of a CIFAR-10 binary batch (one byte of class, then 3 x 32 x 32 pixels).

        Returns:
            (images, labels): flat float32 array of num * 3072 pixels in [0, 1] and int32 array of num labels.

        Raises:
            ValueError: The file holds fewer than `num` images, or one of a class that CIFAR-10 does not have.
        """
        size = 1 + 3 * 32 * 32
        data = np.fromfile(image_file, np.uint8, size * min(max(num, 0), file_size(Path(image_file)) // size))
        records = _first(data.reshape(-1, size), num, image_file)
        if (largest := records[:, 0].max()) > 9:
            raise ValueError(f"{os.fspath(image_file)} is not a binary batch of CIFAR-10: it has a label {largest}")
        return _pixels(records[:, 1:]), records[:, 0].astype(np.int32)


class Normalizer:
    """Scaling of data to zero mean and unit variance, or to [0, 1], and back.

    Every method works on arrays of any shapes that broadcast together. As in pytagi, 1e-10 is added to each divisor,
    and to the factor of the inverse: change the unit of data whose standard deviation is below 1e-7. Columns and tables
    of pandas and polars are taken by position, not by label, and results are NumPy arrays.

    Args:
        method: A label of the user's own; nothing depends on it.
    """

    def __init__(self, method: str | None = None) -> None:
        self.method = method

    @staticmethod
    def standardize(data: np.ndarray, mu: np.ndarray | float, std: np.ndarray | float) -> np.ndarray:
        """(data - mu) / std."""
        data, mu, std = _plain(data=data, mu=mu, std=std)
        return (data - mu) / (std + _EPSILON)

    @staticmethod
    def unstandardize(norm_data: np.ndarray, mu: np.ndarray | float, std: np.ndarray | float) -> np.ndarray:
        """norm_data * std + mu."""
        norm_data, mu, std = _plain(norm_data=norm_data, mu=mu, std=std)
        return norm_data * (std + _EPSILON) + mu

    @staticmethod
    def unstandardize_std(norm_std: np.ndarray, std: np.ndarray | float) -> np.ndarray:
        """norm_std * std, both standard deviations."""
        norm_std, std = _plain(norm_std=norm_std, std=std)
        return norm_std * (std + _EPSILON)

    def max_min_norm(
        self, data: np.ndarray, max_value: np.ndarray | float, min_value: np.ndarray | float
    ) -> np.ndarray:
        """(data - min_value) / (max_value - min_value).

        Raises:
            ValueError: A maximum below its minimum.
        """
        data, max_value, min_value = _plain(data=data, max_value=max_value, min_value=min_value)
        if not np.all(np.asarray(max_value) >= min_value):
            raise ValueError(f"max_value {max_value} must not be below min_value {min_value}")
        return (1.0 * data - min_value) / _span(max_value, min_value)

    @staticmethod
    def max_min_unnorm(
        norm_data: np.ndarray, max_value: np.ndarray | float, min_value: np.ndarray | float
    ) -> np.ndarray:
        """norm_data * (max_value - min_value) + min_value."""
        norm_data, max_value, min_value = _plain(norm_data=norm_data, max_value=max_value, min_value=min_value)
        return norm_data * _span(max_value, min_value) + min_value

    @staticmethod
    def max_min_unnorm_std(
        norm_std: np.ndarray, max_value: np.ndarray | float, min_value: np.ndarray | float
    ) -> np.ndarray:
        """norm_std * (max_value - min_value), both standard deviations."""
        norm_std, max_value, min_value = _plain(norm_std=norm_std, max_value=max_value, min_value=min_value)
        return norm_std * _span(max_value, min_value)

    @staticmethod
    def compute_mean_std(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and (population) standard deviation of every column; NaN is left out."""
        (data,) = _plain(data=data)
        return np.nanmean(data, axis=0), np.nanstd(data, axis=0)

    @staticmethod
    def compute_max_min(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Maximum and minimum of every column; NaN is left out."""
        (data,) = _plain(data=data)
        return np.nanmax(data, axis=0), np.nanmin(data, axis=0)


def _plain(**arguments: Any) -> list[Any]:
    """The arguments in their order: columns, tables and objects as arrays of numbers, and anything else unchanged."""

    def is_foreign(values: Any) -> bool:
        return is_table(values) or (type(values) is np.ndarray and values.dtype == object)

    return [to_numpy(values, name) if is_foreign(values) else values for name, values in arguments.items()]


def _span(max_value: Any, min_value: Any) -> Any:
    """max_value - min_value + 1e-10; the factor 1.0 makes floats of short integers, which would wrap around."""
    return 1.0 * max_value - min_value + _EPSILON


def exponential_scheduler(curr_v: float, min_v: float, decaying_factor: float, curr_iter: int) -> float:
    """Decayed value max(curr_v * decaying_factor^curr_iter, min_v), for example of sigma_v."""
    return np.maximum(curr_v * decaying_factor**curr_iter, min_v)


def _is_one_hot(labels: np.ndarray, num_classes: int) -> bool:
    """Whether labels are one-hot rows, and too many of them for sequences of labels to look like that by chance."""
    return (
        labels.ndim == 2
        and labels.shape[1] == num_classes
        and len(labels) * (num_classes - 1) > 20
        and bool((np.sort(labels, 1) == np.eye(1, num_classes, num_classes - 1)).all())
    )


def _check_labels(labels: Any, num_classes: int) -> np.ndarray:
    """Return the labels as a flat int64 array, or raise ValueError."""
    labels = to_numpy(labels, "labels")
    if labels.dtype.kind in "iuf" and _is_one_hot(labels, num_classes):
        raise ValueError(
            f"labels of the shape {labels.shape}, a single 1 in each row, are one-hot, and numbers of classes are "
            "needed: labels.argmax(1)"
        )
    labels = labels.ravel()
    whole = labels.dtype.kind in "iub" or (labels.dtype.kind == "f" and bool((labels == np.floor(labels)).all()))
    if labels.size and not whole:
        raise ValueError(f"labels must be whole numbers, got {labels.dtype}")
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        first = int(outside.argmax())
        raise ValueError(f"label {labels[first]} at position {first} is not in 0..{num_classes - 1}")
    return labels.astype(np.int64)


def _probabilities(ma: Any, Sa: Any, tree: HRCSoftmax, num_classes: int, batch_size: int) -> np.ndarray:
    """Class probabilities of a batch, shape (batch_size, num_classes), after checking the sizes."""
    if len(tree.obs) != num_classes * tree.num_obs:
        raise ValueError(f"the tree encodes {len(tree.obs) // max(tree.num_obs, 1)} classes, not {num_classes}")
    means, variances = (to_numpy(a, name).astype(np.float64, copy=False) for a, name in ((ma, "ma"), (Sa, "Sa")))
    if means.size != batch_size * tree.len:
        raise ValueError(f"{means.size} means do not fit {batch_size} samples of {tree.len} output units")
    if not (np.isfinite(means).all() and np.isfinite(variances).all() and variances.min(initial=0) >= 0):
        raise ValueError(
            "the outputs are not Gaussians: some means or variances are NaN or infinite, or variances negative"
        )
    return class_probabilities(means, variances, tree)


def _first(entries: np.ndarray, num: int, path: str | os.PathLike[str]) -> np.ndarray:
    """The first `num` entries of a file, or ValueError."""
    as_integers(os.fspath(path), 1, num=num)
    if len(entries) < num:
        raise ValueError(f"{os.fspath(path)} holds {len(entries)} entries, {num} were asked for")
    return entries[:num]


def _pixels(values: np.ndarray) -> np.ndarray:
    """Scale bytes to [0, 1]."""
    return values.astype(np.float32).ravel() / np.float32(255)
