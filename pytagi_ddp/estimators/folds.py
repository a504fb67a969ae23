"""Folds: parts of the samples that some networks do not see in training."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

MANY = 25  # values of a column that tell persons or places apart
SMOOTH = 0.25  # mean squared difference of neighbours, relative to that without any relation
CHECKED = 20000  # samples among which they are looked for: the first ones


def assign_folds(group: np.ndarray, n_folds: int, seed: int) -> np.ndarray:
    """The number of each sample's fold. With enough groups of one sample, sizes of folds differ by at most one.

    Args:
        group: a number for each sample; those of a group are in one fold, unless there are fewer groups than folds.

    Raises:
        ValueError: fewer than two samples.
    """
    samples = len(group)
    if samples < 2:
        raise ValueError(f"fit needs at least 2 samples (with a weight above 0), got {samples} sample")
    folds, order = min(n_folds, samples), np.random.default_rng(seed).permutation(samples)
    size = np.bincount(group)
    if np.count_nonzero(size) < folds:
        group, size = np.arange(samples), np.ones(samples, int)
    order = order[np.argsort(-size[group[order]], kind="stable")]  # large groups first
    fold_of, sizes = np.full(len(size), -1), [0] * folds
    for one in group[order].tolist():
        if fold_of[one] < 0:
            fold_of[one] = sizes.index(min(sizes))
            sizes[fold_of[one]] += int(size[one])
    return fold_of[group]


def joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A number for each sample, the same for samples that share a group of either kind, directly or through others."""
    groups = int(first.max()) + 1
    graph = coo_array((np.ones(len(first)), (first, groups + second)), shape=(groups + int(second.max()) + 1,) * 2)
    found: np.ndarray = connected_components(graph, directed=False)[1]
    return found[first]


def alike(x: np.ndarray) -> tuple[int, int] | None:
    """Two columns whose values repeat together, as those of one person or place; None if there are none.

    Both have more than `MANY` values beside the most frequent one (which may be 0, or NaN), each twice on average, in
    rows that differ; and neither is a smooth function of the other, such as a square, or the sine of a day.
    """
    x = x[:CHECKED]
    ordered = np.sort(x, 0)
    different = np.count_nonzero(ordered[1:] > ordered[:-1], 0) + 1  # without NaN
    some = np.flatnonzero((different > MANY) & (different - 1 <= len(x) / 2))
    rows = len(np.unique(x, axis=0)) if len(some) > 1 else 0
    seen: dict[bytes, list[tuple[int, np.ndarray]]] = {}
    for k in some.tolist():
        values, first, rank, times = np.unique(x[:, k], return_index=True, return_inverse=True, return_counts=True)
        if not MANY < len(values) - 1 <= (len(x) - times.max()) / 2 or len(values) == rows:
            continue
        before = seen.setdefault(np.argsort(np.argsort(first))[rank].tobytes(), [])  # equal for the same partition
        for j, other in before:
            if not _is_smooth(rank, other) and not _is_smooth(other, rank):
                return j, k
        before.append((k, rank))
    return None


def _is_smooth(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether y changes little between neighbours in x, which are ranks of values: without any relation, it is 1."""
    of_value = np.empty(int(x.max()) + 1)
    of_value[x] = y
    return bool(np.mean(np.diff(of_value) ** 2) < SMOOTH * 2 * of_value.var())


def learnt_by(fold: np.ndarray, k: int) -> np.ndarray:
    """Which samples the networks of fold k learn: those of the other folds, or all if there is only one fold."""
    return (fold != k) | (fold.max() == 0)
