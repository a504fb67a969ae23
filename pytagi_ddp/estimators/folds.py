"""Parts of the samples that some networks learn without, and that are then news to them."""

from __future__ import annotations

import numpy as np


def assign_folds(samples: int, n_folds: int, seed: int) -> np.ndarray:
    """The number of each sample's fold; all are as large as each other, or larger by one.

    Raises:
        ValueError: fewer than two samples, of which none says how well the others are predicted.
    """
    if samples < 2:
        raise ValueError(f"fit needs at least 2 samples, got {samples} sample")
    fold = np.empty(samples, int)
    fold[np.random.default_rng(seed).permutation(samples)] = np.arange(samples) % min(n_folds, samples)
    return fold


def learnt_by(fold: np.ndarray, k: int) -> np.ndarray:
    """Which samples the networks of fold k learn: those of the others, or all if there are no others."""
    return (fold != k) | (fold.max() == 0)
