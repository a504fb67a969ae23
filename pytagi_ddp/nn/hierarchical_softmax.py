"""Classification as a path of binary decisions: the tree, its observations and the class probabilities.

Class r of K is written with L = ceil(log2 K) bits, most significant first. Bit c picks a branch at depth c of
a binary tree and is observed as +1 (bit 0) or -1 (bit 1) by the output unit of the node that the first c bits
lead to. Nodes are numbered from 1, level by level, and only nodes with a class below them are numbered.

Source: Morin & Bengio (2005), "Hierarchical probabilistic neural network language model", AISTATS; for TAGI,
Goulet, Nguyen & Amiri (2021), "Tractable approximate Gaussian inference for Bayesian neural networks", JMLR
22, and the cuTAGI library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.validate import as_integers

# The slope of the probit link; its inverse is the standard deviation of the noise on a binary decision.
ALPHA = 3.0


@dataclass
class HRCSoftmax:
    """The tree of K classes as flat lists, as pytagi returns it.

    Attributes:
        obs: K * num_obs observations, +1.0 or -1.0: those of class 0, then of class 1, ...
        idx: K * num_obs output units that are observed, counted from 1, in the same order.
        num_obs: Observations per class, L = ceil(log2 K).
        len: Output units that the network needs.
    """

    obs: list[float] = field(default_factory=list)
    idx: list[int] = field(default_factory=list)
    num_obs: int = 0
    len: int = 0


@lru_cache(maxsize=16)
def encode_classes(num_classes: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Encode every class as its path through the binary tree.

    Level c has ceil(K / 2^(L - c)) nodes. The unit that observes bit c of class r is r >> (L - c), plus the
    number of nodes above level c, plus 1.

    Args:
        num_classes: K, at least 2.

    Returns:
        (signs, units, num_units): two read-only arrays of shape (K, L), float64 (+1 or -1) and int64 (counted
        from 1), and the number of output units.

    Raises:
        ValueError: Fewer than two classes.
    """
    (num_classes,) = as_integers("a hierarchical softmax", 2, num_classes=num_classes)
    depth = (num_classes - 1).bit_length()
    shifts = depth - np.arange(depth)
    level_sizes = -(-num_classes >> shifts)
    above = np.cumsum(level_sizes) - level_sizes
    classes = np.arange(num_classes)[:, None]
    signs = 1.0 - 2.0 * (classes >> (shifts - 1) & 1)
    units = (classes >> shifts) + above + 1
    signs.flags.writeable = units.flags.writeable = False
    return signs, units, int(level_sizes.sum())


def hierarchical_softmax(num_classes: int) -> HRCSoftmax:
    """Build the binary tree of `num_classes` classes.

    Raises:
        ValueError: Fewer than two classes.
    """
    signs, units, num_units = encode_classes(num_classes)
    return HRCSoftmax(signs.ravel().tolist(), units.ravel().tolist(), signs.shape[1], num_units)


def class_probabilities(mu: ArrayLike, var: ArrayLike, hrc: HRCSoftmax) -> np.ndarray:
    """Probability of every class from the output units' Gaussians.

    P(unit n says +1) = Phi(mu_n / sqrt(1 / alpha^2 + var_n)), alpha = 3, and a class has the product over its
    path of P or 1 - P. When K is not a power of two, the missing leaves keep their mass and the classes sum
    to less than 1.

    Args:
        mu: Means of the output units, B * hrc.len values; of several dimensions, the last one has whole samples.
        var: Variances of the output units, as many.
        hrc: The tree.

    Returns:
        float64 array of shape (B, K).

    Raises:
        ValueError: Sizes that differ or are not a multiple of `hrc.len`, also those of rows, or an empty tree.
    """
    from scipy.special import ndtr  # here, so that `import pytagi_ddp` stays fast

    if not hrc.len:
        raise ValueError("the tree is empty: build one with hierarchical_softmax(num_classes)")
    mu, var = to_numpy(mu, "mu"), to_numpy(var, "var")
    width = mu.shape[-1] if mu.ndim > 1 else 1
    mu, var = (a.ravel().astype(np.float64, copy=False) for a in (mu, var))
    if width > 1 and width % hrc.len:  # otherwise 11 rows of 12 units would count as 12 samples of 11
        raise ValueError(f"the tree has {hrc.len} output units per sample, which does not fit rows of {width} means")
    if mu.size != var.size or mu.size % hrc.len:
        raise ValueError(
            f"the tree has {hrc.len} output units per sample, which does not fit {mu.size} means "
            f"and {var.size} variances"
        )
    z = (mu / np.sqrt(1 / ALPHA**2 + var)).reshape(-1, hrc.len).T
    # Phi(-z) instead of 1 - Phi(z): a confident decision leaves its rare branch a probability above zero.
    branches = ndtr(np.concatenate([z, -z]))
    units, says_minus = np.array(hrc.idx) - 1, np.array(hrc.obs) < 0
    paths = (units + hrc.len * says_minus).reshape(-1, hrc.num_obs)
    probabilities = branches[paths[:, 0]]
    for branch in paths[:, 1:].T:
        probabilities *= branches[branch]
    return np.ascontiguousarray(probabilities.T)
