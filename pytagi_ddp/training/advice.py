"""Warnings about data and networks with which a training goes well by its numbers, but learns badly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pytagi_ddp.data import ArrayLoader
from pytagi_ddp.likelihoods import (
    Bernoulli,
    Categorical,
    Censored,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from pytagi_ddp.nn import (
    LSTM,
    ClosedFormSoftmax,
    Conv2d,
    Linear,
    MixtureSigmoid,
    Remax,
    Sequential,
    Sigmoid,
    Softmax,
)
from pytagi_ddp.nn.core.validate import check_finite
from pytagi_ddp.nn.run.network_input import REMEDY
from pytagi_ddp.warn import warn

KNOWS = (
    "the network knows more than its prior, or has a prior of its own, and the EvidenceSchedule pulls it towards the "
    "prior of a new network: what it has learnt from other data is lost in time. Pass evidence=None to keep it. (What "
    "it has learnt from the same data is not lost.)"
)
FEW = (
    "the EvidenceSchedule counts these data only, so what the network has learnt from other data is replaced in a few "
    "epochs. To learn further data pass evidence=None, or give the network the schedule of a stream, "
    "EvidenceSchedule(net) without epochs. (What it has learnt from the same data is not lost.)"
)
SMALL, LARGE = 0.05, 100.0  # root mean squares outside of which a column is not standardised
# Standard deviations of a column between 0 and its mean, from which errors are several times as large, and such a mean.
OFF_CENTRE, LARGE_MEAN = 3.0, 2.0
TABLE = 200  # columns at most; others are likely to be the pixels of images
LARGE_COUNT = 1000  # from which errors are several times the standard deviations that are predicted
LOOKED_AT = 1 << 17  # values, about
OF_NUMBERS = (Censored, Gaussian, HeteroscedasticGaussian, Laplace, StudentT)
LINKS: dict[type, tuple[type, ...]] = {
    Categorical: (Softmax, Remax, ClosedFormSoftmax),
    Bernoulli: (Sigmoid, MixtureSigmoid),
}


def advise(batches: Iterable[Any], likelihood: Any, network: Sequential) -> None:
    """Warns about a last layer that the likelihood has already, and about arrays that do not fit it.

    Raises:
        ValueError: all parameters or all weights are 0, or samples are numbers and the network has several inputs.
    """
    leaves = [leaf for leaf in network.arena.leaves if leaf.parameters]
    if leaves and not network.arena.in_shards and not any(leaf.var_w.any() or leaf.var_b.any() for leaf in leaves):
        raise ValueError(
            "all parameters have the variance 0, as those of a draw of net.sample(), and learn nothing: train the "
            "network itself"
        )
    first, last = network.layers[0], network.layers[-1]
    if isinstance(last, LINKS.get(type(likelihood), ())):
        warn(f"{type(likelihood).__name__} takes linear outputs: leave out {type(last).__name__}, the last layer")
    if not isinstance(batches, ArrayLoader):
        return
    x, y, inputs = batches.x, batches.y, network.in_shape.size
    if x.ndim == 1 and inputs > 1:
        raise ValueError(f"x has the shape {x.shape}, and a sample of the network {inputs} inputs: (samples, {inputs})")
    if network.missing_inputs == "error":
        check_finite(x, "x", REMEDY)
    if isinstance(y, tuple) and isinstance(likelihood, Gaussian):
        y = y[0]  # of (y, var)
    if isinstance(y, np.ndarray) and batches.weight is not None:
        y = y[batches.weight > 0]
        if not len(y):
            raise ValueError("weight: all weights are 0, and no sample is left to learn from")
    limits = (likelihood.lower, likelihood.upper) if isinstance(likelihood, Censored) else (0, 0)
    if np.isinf(limits).all() and isinstance(y, np.ndarray):
        warn("Censored without limits sees each y as it is: give Censored(lower=...), or y as a tuple (low, high)")
    if isinstance(likelihood, Categorical) and isinstance(y, np.ndarray) and y.min() == -1:
        if (np.abs(y) == 1).all():
            warn("-1 is a missing label, which is not learnt: for labels -1 and 1 give (y + 1) // 2")
        elif y.max() == likelihood.n - 2:
            warn(
                f"-1 is a missing label, which is not learnt, and the class {likelihood.n - 1} does not occur: if -1 "
                "is a class here, give y + 1"
            )
    if isinstance(likelihood, Poisson | NegativeBinomial) and isinstance(y, np.ndarray):
        known = y[np.isfinite(y)]
        count = float(np.mean(known)) / float(np.mean(likelihood.exposure)) if known.size else 0.0
        if count > LARGE_COUNT:
            warn(
                f"counts are about {count:.0f} for an exposure of 1, but the prior is for rates around 1: give "
                f"{type(likelihood).__name__} exposure={count:.0f}, or error bars will be too small"
            )
    looked_at = {"x": x} if isinstance(first, Linear | Conv2d | LSTM) else {}
    if isinstance(likelihood, OF_NUMBERS) and isinstance(y, np.ndarray):
        looked_at["y"] = y
    columns = x.reshape(len(x), -1)
    is_table = isinstance(first, Linear) and x.ndim <= 2 and columns.shape[1] <= TABLE
    if is_table and (k := off_centre(columns)) is not None:
        mean, std = np.nanmean(columns[:, k]), np.nanstd(columns[:, k])
        warn(
            f"column {k} of x is about {mean:.3g}, give or take {std:.2g}, but the prior is for numbers around 0: "
            "standardise x (subtract the mean, divide by the standard deviation), or predictions will be bad"
        )
        looked_at.pop("x")
    sizes = {name: sizes_of(values) for name, values in looked_at.items()}
    large = [name for name, size in sizes.items() if size.max(initial=0) > LARGE]
    small = [name for name, size in sizes.items() if 0 < size.max(initial=0) < SMALL]
    for names, size in ((large, f"{LARGE:g} or more"), (small, f"{SMALL:g} or less")):
        if names:
            warn(
                f"numbers in {' and '.join(names)} are about {size}, but the prior is for numbers around 1: "
                "standardise them (subtract the mean, divide by the standard deviation), or predictions will be bad"
            )


def advise_batch_size(samples: int | None, parameters: int) -> None:
    """Warns about steps with more samples of numbers than the parameters of an output can bear.

    Args:
        samples: of a step, on all ranks; None: unknown. parameters: those of the network for each output.
    """
    if samples is not None and samples > max(1, parameters // 2):
        warn(
            f"a step learns {samples} samples, which is too many for a network with {parameters} parameters for each "
            "output: it would change them much too far, and be certain of wrong values. Give a smaller batch_size, or "
            "none"
        )


def off_centre(values: np.ndarray) -> int | None:
    """The column whose mean is the most standard deviations from 0, if these are more than `OFF_CENTRE`.

    A column of two values (a yes or no, a category) may be so, and a constant one; and, unless all of them are, one of
    numbers around 1, such as a pixel that is nearly always white.
    """
    some = np.asarray(values[:: max(1, values.size // LOOKED_AT)], np.float64)
    some = np.where(np.isfinite(some), some, 0)
    low, high, size = some.min(0), some.max(0), np.abs(some.mean(0))
    many = ((some != low) & (some != high)).any(0)
    ratios = np.where(many, size, 0) / np.where(many, some.std(0), 1)
    if not (ratios[many] > OFF_CENTRE).all():
        ratios[size < LARGE_MEAN] = 0
    worst = int(ratios.argmax())
    return worst if ratios[worst] > OFF_CENTRE else None


def sizes_of(values: np.ndarray) -> np.ndarray:
    """The root mean square of each column, of some rows."""
    some = np.asarray(values[:: max(1, values.size // LOOKED_AT)], np.float64)
    with np.errstate(over="ignore"):
        squares = np.where(np.isfinite(some), some, 0) ** 2
    return np.sqrt(squares.mean(0)) if len(squares) else np.zeros(1)
