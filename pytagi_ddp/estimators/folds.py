"""Folds: parts of the samples that some networks do not see in training."""

from __future__ import annotations

import numpy as np


def assign_folds(samples: int, n_folds: int, seed: int) -> np.ndarray:
    """The number of each sample's fold; the sizes of the folds differ by at most one.

    Raises:
        ValueError: fewer than two samples.
    """
    if samples < 2:
        raise ValueError(f"fit needs at least 2 samples, got {samples} sample")
    fold = np.empty(samples, int)
    fold[np.random.default_rng(seed).permutation(samples)] = np.arange(samples) % min(n_folds, samples)
    return fold


def learnt_by(fold: np.ndarray, k: int) -> np.ndarray:
    """Which samples the networks of fold k learn: those of the other folds, or all if there is only one fold."""
    return (fold != k) | (fold.max() == 0)
