"""Detection of inputs that are unlike the training data, by the features of a trained classifier."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import NUMBERS, is_table, to_numpy
from pytagi_ddp.nn.core.hooks import watched
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.state import State

RIDGE = 0.01  # added to the variances of standardised features, because there may be fewer samples than features


class FeatureDensity:
    """Detects inputs that are unlike the training data, by a Gaussian of the network's features for each class.

        density = FeatureDensity(net).fit(loader)
        strange = density.distance(x_new) > np.quantile(density.distance(x_validation), 0.99)

    The limit comes from samples that were not used in training: those that were are nearer to the means.

    Features f(x) are the means at the input of each layer with weights; of an image, the mean over pixels of each
    channel. They are divided by their standard deviations within classes. Class k has the mean m_k, and all classes
    have one covariance S, with 0.01 added to its diagonal. The distance of an input is that of the nearest class,

        d(x) = min over k of (f(x) - m_k)^T S^-1 (f(x) - m_k),

    without unit, and larger for inputs that are less like the training data. The features are those of a copy of the
    network, made by the constructor.

    Args:
        net: a trained classifier, a `Sequential`.

    Raises:
        ValueError: a network without weights. TypeError: not a Sequential.

    Source: Lee et al. (2018), "A simple unified framework for detecting out-of-distribution samples and adversarial
    attacks", NeurIPS.
    """

    def __init__(self, net: Any):
        if not hasattr(net, "named_leaves"):
            kind = type(net).__name__
            raise TypeError(f"FeatureDensity takes a Sequential (of a DDPSequential: its model), got {kind}")
        self._net = copy.deepcopy(net)
        if not self._leaves():
            raise ValueError("FeatureDensity needs a network with weights, and this one has none")
        self._means: np.ndarray | None = None

    def _leaves(self) -> list[BaseLayer]:
        return [leaf for _, leaf in self._net.named_leaves() if leaf.num_weights]

    def features(self, x: ArrayLike, batch_size: int = 256) -> np.ndarray:
        """f(x) before it is standardised, (n, features), in evaluation mode; arguments as `predict`."""
        seen = {leaf: [np.empty((0, leaf.in_shape.channels or leaf.in_shape.size))] for leaf in self._leaves()}

        def see(leaf: BaseLayer, state: State, out: State) -> None:
            m = np.array(self._net.kernels.array.to_host(state.mu), np.float64)
            image, last = leaf.in_shape.image, leaf.in_shape.channels_last
            if image is not None:
                pixels, channels = image[1] * image[2], image[0]
                m = m.reshape(len(m), pixels, channels).mean(1) if last else m.reshape(len(m), channels, pixels).mean(2)
            seen[leaf].append(m.reshape(len(m), -1))

        with watched(self._net, list(seen), see):
            self._net.predict(x, batch_size)
        return np.concatenate([np.concatenate(parts) for parts in seen.values()], 1)

    def fit(self, x: Any, labels: ArrayLike | None = None) -> FeatureDensity:
        """Estimates the Gaussians of the classes; returns itself.

        Args:
            x: training inputs, or, without labels, a loader or an iterable of batches (x, labels), best without
                augmentation. Weights of batches are ignored.
            labels: the class of each input; where it is missing (NaN or negative), the input is left out.

        Raises:
            ValueError: numbers of inputs and labels that differ; no input, or no label at all. TypeError: an array
                without labels.
        """
        if labels is None and (hasattr(x, "dtype") or is_table(x)):
            raise TypeError("fit needs the class of each input: fit(x, labels), or batches (x, labels)")
        batches = [(x, labels)] if labels is not None else x
        seen = [(inputs, to_numpy(some, "labels", text=True)) for inputs, some, *_ in batches if len(inputs)]
        if not seen:
            raise ValueError("fit needs inputs with labels, and there is no input; a generator gives its batches once")
        parts = [(self.features(inputs), some.ravel()) for inputs, some in seen]
        f, of_class = (np.concatenate(part) for part in zip(*parts, strict=True))
        if len(f) != len(of_class):
            raise ValueError(f"{len(f)} inputs and {len(of_class)} labels: each input needs one")
        if of_class.dtype.kind in NUMBERS:
            known = of_class >= 0
            f, of_class = f[known], of_class[known]
        if not len(f):
            raise ValueError("no input has a label (NaN and negative numbers are missing ones)")
        classes, index = np.unique(of_class, return_inverse=True)
        self._means = np.stack([f[index == k].mean(0) for k in range(len(classes))])
        rest = f - self._means[index]
        self._std = np.sqrt(np.square(rest).mean(0))
        self._std[self._std == 0] = 1  # of a constant feature
        rest /= self._std
        covariance = rest.T @ rest / max(1, len(f) - len(classes))
        self._factor = np.linalg.cholesky(np.linalg.inv(covariance + RIDGE * np.eye(f.shape[1]))) / self._std[:, None]
        return self

    def distance(self, x: ArrayLike, batch_size: int = 256) -> np.ndarray:
        """d(x) of each input, shape (n,); arguments as `predict`.

        Raises:
            RuntimeError: before `fit`.
        """
        if self._means is None:
            raise RuntimeError("this FeatureDensity knows no class yet: call fit with training data first")
        f, means = self.features(x, batch_size) @ self._factor, self._means @ self._factor
        return np.stack([np.square(f - mean).sum(1) for mean in means]).min(0)
