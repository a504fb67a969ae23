"""Weights of samples: how often each of them counts."""

from typing import Any

import numpy as np

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.warn import warn

SCALE_THEM = "give w / w.mean(), which keeps the amount of evidence"
FEW, MANY = 5, 50  # observations that many samples count as: their weights are likely to sum to 1
LITTLE, MUCH = 1 / 20, 100  # mean weights that are hardly meant


def checked_weights(weights: Any, samples: int, what: str, each: bool = False) -> np.ndarray:
    """One weight for each sample, float64; with `each` perhaps several, one for each observation.

    Raises:
        ValueError: another number of weights, or one that is negative or not finite. TypeError: not numbers.
    """
    found = to_numpy(weights, what).astype(np.float64)
    if each and found.shape == (samples, *[1] * (found.ndim - 1)):
        found = found.ravel()
    if found.shape != (samples,) and not (each and found.shape[:1] == (samples,) and found.size > samples):
        of_classes = found.ndim == 1 and 1 < len(found) <= samples // 2
        remedy = "; for class weights w give w[y]" if of_classes else ""
        raise ValueError(
            f"{what} must hold one number for each of {samples} samples, got the shape {found.shape}{remedy}"
        )
    bad = ~(np.isfinite(found) & (found >= 0))
    if bad.any():
        row = int(bad.reshape(samples, -1).any(1).argmax())
        raise ValueError(
            f"{what} must hold finite numbers of at least 0, got {found[bad][0]} in row {row} (0 leaves one out)"
        )
    return found


def warn_of_sum(what: str, total: float, known: float) -> None:
    """Warns if `known` samples of weights above 0 count as far fewer, or far more, observations: `total`."""
    if known >= MANY and total < max(FEW, LITTLE * known):
        warn(f"{what} sums to {total:.3g}, and {known:g} samples count as so few observations: {SCALE_THEM}")
    elif total > MUCH * known:
        warn(
            f"{what} sums to {total:.3g}, and {known:g} samples count as so many observations: steps overshoot, and "
            f"predictions are too certain. If this is not meant, {SCALE_THEM}"
        )
