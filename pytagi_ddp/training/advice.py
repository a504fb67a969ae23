"""Warnings about data and networks with which a training goes well by its numbers, but learns badly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pytagi_ddp.arrays import to_numpy
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
    BaseLayer,
    ClosedFormSoftmax,
    Conv2d,
    EvidenceSchedule,
    LayerBlock,
    Linear,
    MixtureSigmoid,
    Parallel,
    Remax,
    Sequential,
    Sigmoid,
    Softmax,
)
from pytagi_ddp.nn.run.network_input import REMEDY
from pytagi_ddp.validate import check_finite
from pytagi_ddp.warn import warn

KNOWS = (
    "the network knows more than its prior, or has a prior of its own, and the EvidenceSchedule pulls it towards the "
    "prior of a new network: what it has learnt from other data is lost in time. Pass evidence=None to keep it. (What "
    "it has learnt from the same data is not lost.)"
)
UNFROZEN = "a layer that was frozen" + KNOWS.removeprefix("the network")
FEW = (
    "the EvidenceSchedule counts these data only, so what the network has learnt from other data is replaced in a few "
    "epochs. To learn further data pass evidence=None, or give the network the schedule of a stream, "
    "EvidenceSchedule(net) without epochs. (What it has learnt from the same data is not lost.)"
)
SMALL, LARGE = 0.05, 100.0  # root mean squares outside of which a column is not standardised
IS_LARGE = f"{LARGE:g} or more"
SHARE = 0.01  # of large numbers in a batch: standardised data may have one outlier
# Standard deviations of a column between 0 and its mean, from which errors are several times as large, and such a mean.
OFF_CENTRE, LARGE_MEAN = 3.0, 2.0
FEWEST = 30  # samples that show where a column is
TABLE = 200  # columns at most; others are likely to be the pixels of images
LARGE_COUNT = 1000  # from which errors are several times the standard deviations that are predicted
LOOKED_AT = 1 << 17  # values, about
FAR = 1e100  # limit of values
MANY = 10  # epochs after which a network has learnt something
OFTEN = 4  # epochs of a warm-up after which a training that ends is reported
OF_NUMBERS = (Censored, Gaussian, HeteroscedasticGaussian, Laplace, StudentT)
LINKS: dict[type, tuple[type, ...]] = {
    Categorical: (Softmax, Remax, ClosedFormSoftmax),
    Bernoulli: (Sigmoid, MixtureSigmoid),
}


def advise(batches: Iterable[Any], likelihood: Any, network: Sequential) -> None:
    """Warns about a last layer that the likelihood has already, and about arrays that do not fit it.

    Raises:
        ValueError: all parameters have the variance 0; all weights are 0; inputs that are NaN, infinite or no rows.
    """
    leaves = [leaf for leaf in network.arena.leaves if leaf.parameters]
    if leaves and not network.arena.in_shards and not any(leaf.var_w.any() or leaf.var_b.any() for leaf in leaves):
        raise ValueError(
            "all parameters have the variance 0, as those of a draw of net.sample(), and learn nothing: train the "
            "network itself"
        )
    last = network.layers[-1]
    if isinstance(last, LINKS.get(type(likelihood), ())):
        warn(f"{type(likelihood).__name__} takes linear outputs: leave out {type(last).__name__}, the last layer")
    if not isinstance(batches, ArrayLoader):
        return
    if batches.batch_size == 1 and network.arena.carried.size:
        warn(
            "fit presents arrays in random order, and layers of this network remember the samples before: give "
            "it a list of batches in their order, and reset the memory before each epoch, or train by your own loop"
        )
    x, y, inputs = batches.x, batches.y, network.in_shape.size
    if x.ndim == 1 and inputs > 1:
        raise ValueError(f"x has the shape {x.shape}, and a sample of the network {inputs} inputs: (samples, {inputs})")
    if network.missing_inputs == "error":
        check_finite(x, "x", REMEDY)
    if isinstance(y, tuple) and isinstance(likelihood, Gaussian):
        y = y[0]  # of (y, var)
    if isinstance(y, np.ndarray):
        y = y if batches.weight is None else y[(batches.weight.reshape(len(y), -1) > 0).any(1)]
        if not len(y):
            raise ValueError("weight: all weights are 0, and no sample is left to learn from")
        advise_observations(y, likelihood)
    if network.schedule is not None and network.schedule.steps:
        return  # further samples need the scales of the first ones
    numbers = isinstance(likelihood, OF_NUMBERS) and isinstance(y, np.ndarray)
    advise_scales(x if takes_scaled(network) else None, y if numbers else None)


def advise_batch(x: Any, y: Any, likelihood: Any, network: Sequential, what: str = "") -> None:
    """Warns if many numbers of a batch are large; the other advice about scales needs more samples.

    what: the data, in messages.
    """
    found = {"x": to_numpy(x, "mu_x")} if takes_scaled(network) else {}
    if isinstance(y, tuple) and isinstance(likelihood, Gaussian):
        y = y[0]  # of (y, var)
    if isinstance(likelihood, OF_NUMBERS) and isinstance(y, np.ndarray):
        found["y"] = y
    shares = {name: np.mean(np.abs(rows_of(values)) > LARGE) for name, values in found.items() if values.size}
    warn_of_scales([f"{name}{what}" for name, share in shares.items() if share > SHARE], IS_LARGE)


def takes_scaled(network: Sequential) -> bool:
    """Whether inputs should be standardised: they are multiplied by weights, in all branches that begin with them."""
    return all(isinstance(leaf, Linear | Conv2d | LSTM) for leaf in first_leaves(network.layers[0]))


def first_leaves(layer: BaseLayer) -> Iterator[BaseLayer]:
    """The layers that take the input of this one as it is."""
    if isinstance(layer, LayerBlock):
        yield from first_leaves(layer.layers[0])
    elif isinstance(layer, Parallel):
        for branch in layer.branches:
            if branch is not None:
                yield from first_leaves(branch)
    else:
        yield layer


def advise_observations(y: np.ndarray, likelihood: Any) -> None:
    """Warns about observations that are likely to mean something else than this likelihood takes them for."""
    if isinstance(likelihood, Censored) and np.isinf([likelihood.lower, likelihood.upper]).all():
        warn("Censored without limits sees each y as it is: give Censored(lower=...), or y as a tuple (low, high)")
    if isinstance(likelihood, Categorical) and y.min() == -1:
        if (np.abs(y) == 1).all():
            warn("-1 is a missing label, which is not learnt: for labels -1 and 1 give (y + 1) // 2")
        elif y.max() == likelihood.n - 2:
            warn(
                f"-1 is a missing label, which is not learnt, and the class {likelihood.n - 1} does not occur: if -1 "
                "is a class here, give y + 1"
            )
    if isinstance(likelihood, Poisson | NegativeBinomial) and (known := y[np.isfinite(y)]).size:
        count = float(np.mean(known)) / float(np.mean(likelihood.exposure))
        if count > LARGE_COUNT:
            warn(
                f"counts are about {count:.0f} for an exposure of 1, but the prior is for rates around 1: give "
                f"{type(likelihood).__name__} exposure={count:.0f}, or error bars will be too small"
            )


def advise_scales(x: np.ndarray | None, y: np.ndarray | None) -> None:
    """Warns about inputs, or observed numbers, that are not standardised. None: they are not looked at."""
    named = {name: rows_of(values) for name, values in (("x", x), ("y", y)) if values is not None}
    table = x is not None and x.ndim <= 2 and len(named["x"]) >= FEWEST and named["x"].shape[1] <= TABLE
    if table and (found := off_centre(named["x"])):
        warn(
            "column {} of x is about {:.3g}, give or take {:.2g}, but the prior is for numbers around 0: standardise x "
            "(subtract the mean, divide by the standard deviation), or predictions will be bad".format(*found)
        )
        del named["x"]
    sizes = {name: np.sqrt(np.square(rows).mean(0)).max(initial=0) for name, rows in named.items()}
    warn_of_scales([name for name, size in sizes.items() if size > LARGE], IS_LARGE)
    warn_of_scales([name for name, size in sizes.items() if 0 < size < SMALL], f"{SMALL:g} or less")


def warn_of_scales(names: list[str], size: str) -> None:
    """Warns about the data of these names, if there are any, whose numbers have this size."""
    if names:
        warn(
            f"numbers in {' and '.join(names)} are about {size}, but the prior is for numbers around 1: standardise "
            "them (subtract the mean, divide by the standard deviation), or predictions will be bad"
        )


def advise_batch_size(samples: int | None, least: int, parameters: int | None, batches: Iterable[Any]) -> None:
    """Warns about steps with fewer than `least` samples, or more numbers than the parameters of an output can bear.

    Args:
        samples: of a step, on all ranks; None: unknown. least: see `plan.least_samples`.
        parameters: those of the network for each output; None: observations are classes, and there is no upper limit.
        batches: the training data.
    """
    if samples is None:
        return
    if isinstance(batches, ArrayLoader):
        samples = min(samples, len(batches.x))
    if samples < least:
        warn(
            f"a step learns {samples} sample, in which each pixel is an observation: it may change the network much "
            f"too far. Give a batch_size of at least {least}"
        )
    if parameters is not None and samples > max(least, parameters // 2):
        warn(
            f"a step learns {samples} samples, which is too many for a network with {parameters} parameters for each "
            "output: it would change them much too far, and be certain of wrong values. Give a smaller batch_size, or "
            "none"
        )


def advise_result(batches: Iterable[Any], likelihood: Any, nll: float | None, parameters: int) -> None:
    """Warns about a network that is no better than a constant, after it has learnt few samples of numbers.

    Args:
        batches: the training data. nll: negative log-likelihood of the last epoch. parameters: number of parameters.
    """
    if nll is None or np.isnan(nll) or not isinstance(batches, ArrayLoader) or not isinstance(likelihood, Gaussian):
        return
    y = batches.y
    if not isinstance(y, np.ndarray) or batches.weight is not None or len(y) >= parameters:
        return
    rows = np.asarray(y[:: max(1, y.size // LOOKED_AT)], np.float64).reshape(-1, y[0].size)
    variances = np.array([np.nanvar(column) for column in rows.T if not np.isnan(column).all()])
    predicted = np.maximum(variances, likelihood.sigma**2)  # the likelihood has this noise
    constant = float(np.mean(np.log(2 * np.pi * predicted) + variances / predicted)) / 2
    if nll >= constant:
        warn(
            f"the network has learnt nothing: its train_nll is {nll:.2f}, and that of a constant is {constant:.2f}. "
            f"{len(y)} samples are few for {parameters} parameters: give evidence=None, fewer layers or units, or use "
            "TAGIRegressor"
        )


def advise_interrupted(schedule: EvidenceSchedule | None) -> None:
    """Warns about a training that has ended in the warm-up of its schedule, where evidence is counted repeatedly."""
    if schedule is None or schedule.epochs is None or schedule.epochs == 1:
        return
    epochs = schedule.steps // (schedule.steps_per_epoch or 1)
    if OFTEN < epochs <= schedule.warm_up * schedule.epochs:
        warn(
            f"the training has ended after {epochs} of {schedule.epochs} epochs, in the warm-up of its "
            "EvidenceSchedule, in which each epoch counts the samples again: predicted standard deviations are too "
            f"small. Train a new network with epochs={epochs}"
        )


def off_centre(rows: np.ndarray) -> tuple[int, float, float] | None:
    """The column whose mean is the most standard deviations from 0, if these are more than `OFF_CENTRE`, and both.

    A column of two values (a yes or no, a category) may be so, and a constant one; and, unless all of them are, one of
    numbers around 1, such as a pixel that is nearly always white.
    """
    low, high, mean, std = rows.min(0), rows.max(0), rows.mean(0), rows.std(0)
    many = ((rows != low) & (rows != high)).any(0)
    ratios = np.where(many, np.abs(mean), 0) / np.where(many, std, 1)
    if not (ratios[many] > OFF_CENTRE).all():
        ratios[np.abs(mean) < LARGE_MEAN] = 0
    k = int(ratios.argmax())
    return (k, mean[k], std[k]) if ratios[k] > OFF_CENTRE else None


def rows_of(values: np.ndarray) -> np.ndarray:
    """Some rows of an array, float64; numbers that are not finite are 0, and all have finite squares."""
    some = np.asarray(values[:: max(1, values.size // LOOKED_AT)], np.float64).reshape(-1, values[0].size)
    return np.clip(np.where(np.isfinite(some), some, 0), -FAR, FAR)
