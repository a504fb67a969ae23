"""The batches of a rank from arrays, a loader or any iterable, and their observations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from numbers import Number
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.data import ArrayLoader
from pytagi_ddp.data.array_loader import each_part
from pytagi_ddp.data.batches import RankBatches
from pytagi_ddp.likelihoods import Bernoulli, Categorical, Likelihood
from pytagi_ddp.warn import warn
from pytagi_ddp.weights import checked_weights

if TYPE_CHECKING:
    from typing_extensions import TypeIs

KINDS = (
    "a tuple (x, y) or (x, y, weight) of arrays, a BatchLoader, FolderLoader or ArrayLoader, or an iterable of batches "
    "(x, y) or (x, y, weight)"
)

SHARED = "each rank is given those of all ranks, or an iterable of its own batches"


def as_batches(
    data: Any, batch_size: int, share: int, shares: int, seed: int = 0, evaluation: bool = False
) -> Iterable[Any]:
    """The batches (x, y) or (x, y, weight) of one share of `data`. Arrays are divided here.

    Raises:
        TypeError: not one of `KINDS`. ValueError: a loader that was made for another rank, or another number of ranks.
    """
    if isinstance(data, tuple):
        if len(data) not in (2, 3):
            raise TypeError(f"data are {KINDS}; got a tuple of {len(data)}")
        x, y, *weight = data
        return ArrayLoader(x, y, batch_size, share, shares, seed=seed, evaluation=evaluation, weight=[*weight, None][0])
    if isinstance(data, RankBatches) and (data.rank, data.world_size) != (share, shares):
        raise ValueError(
            f"the {type(data).__name__} is for rank {data.rank} of {data.world_size}, and this is rank {share} of "
            f"{shares}: make it with rank={share} and world_size={shares}, those of net (of a pipeline, those of "
            "net.data_group)"
        )
    if evaluation and isinstance(data, RankBatches):
        augments = getattr(data, "augment", False) or getattr(data, "transform", None) is not None
        if augments or getattr(data.sampler, "drop_last", False):
            done = "changes samples at random" if augments else "leaves samples out"
            warn(f"the {type(data).__name__} for evaluation {done}, as for training: make it with evaluation=True")
    if not hasattr(data, "__iter__") or hasattr(data, "shape"):
        hint = ": make a BatchLoader of it" if hasattr(data, "images") else ""
        raise TypeError(f"data are {KINDS}; got {type(data).__name__}{hint}")
    return data


def length(batches: Iterable[Any]) -> int | None:
    """The number of batches; None: it is unknown."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return None


def epoch_of(batches: Iterable[Any], epoch: int, start: int, samples: int | None) -> Iterator[Any]:
    """The batches of an epoch, from `start` on, or after `samples`; calls their `set_epoch`, if there is one."""
    if isinstance(batches, RankBatches):
        batches.set_epoch(epoch, start, samples)
        return map(parts_of, batches)
    for place in (batches, getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)):
        set_epoch = getattr(place, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
    return map(parts_of, islice(batches, start, None))


def parts_of(batch: Any) -> tuple[Any, Any, np.ndarray | None]:
    """The parts of a batch (x, y) or (x, y, weight); the weights are None, or one for each sample or observation.

    Raises:
        TypeError: something else. ValueError: weights that do not fit.
    """
    if isinstance(batch, tuple | list) and len(batch) in (2, 3):
        if any(isinstance(part, Number) or getattr(part, "shape", None) == () for part in batch[:2]):
            raise TypeError("a batch holds several samples, got one sample (x, y): give all as arrays, as fit(x, y)")
        x, y, *weight = batch
        return x, y, checked_weights(weight[0], len(x), "weight", True) if weight and weight[0] is not None else None
    size = f" of {len(batch)}" if isinstance(batch, tuple | list | dict) else ""
    raise TypeError(f"batches are (x, y) or (x, y, weight), got a {type(batch).__name__}{size}; data are {KINDS}")


def counts_samples(batches: Iterable[Any]) -> TypeIs[RankBatches]:
    """Whether a position can be counted in samples: for arrays and the library's loaders."""
    return isinstance(batches, RankBatches) and batches.trains


def summary(batches: Iterable[Any] | None, what: str) -> dict[str, Any]:
    """What has to be equal on all ranks: the number of samples, and for arrays their first and last sample."""
    ends: list[bytes] = []
    weighted = None
    if isinstance(batches, ArrayLoader):
        weighted = batches.weight is not None
        each_part(lambda part: ends.append(part[[0, -1]].tobytes()), (batches.x, batches.y, batches.weight))
    return {
        f"num_samples of the {what} ({SHARED})": batches.num_samples if isinstance(batches, RankBatches) else None,
        f"weight of the {what} is given": weighted,
        f"the checksum of the first and last sample of the {what} ({SHARED})": crc32(b"".join(ends)),
    }


def described(likelihood: Any) -> str:
    """A likelihood with its settings, without addresses of functions, which differ between ranks."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(likelihood))


def observed(y: Any, several: bool) -> Any:
    """Observations as NumPy arrays; for a `Joint` a tuple of its parts, None for a part without observations.

    A list of several tensors is a tuple, too: a `DataLoader` of PyTorch makes lists of tuples.
    """

    def part(values: Any) -> Any:
        of_tensors = isinstance(values, list) and all(hasattr(one, "detach") and one.ndim for one in values)
        return tuple(map(part, values)) if of_tensors else values

    return each_part(lambda values: to_numpy(values, "y"), tuple(map(part, y)) if several else part(y))


def classes_of(batches: Iterable[Any]) -> list[str] | None:
    """The names of the classes of a loader's data set; None: it has none."""
    classes = getattr(getattr(batches, "dataset", None), "classes", None)
    return list(map(str, classes)) if isinstance(classes, list | tuple) else None


def other_class(first: list[str] | None, second: list[str] | None) -> tuple[int, str | None, str | None] | None:
    """The first class that differs, and its two names; None: there is none, or one of the lists is unknown."""
    if first is None or second is None:
        return None
    pairs = enumerate(zip_longest(first, second))
    return next(((k, one, other) for k, (one, other) in pairs if one != other), None)


def choose_likelihood(batches: Iterable[Any], outputs: int) -> Likelihood:
    """The likelihood of these observations, if only one is possible.

    Classes 0 to n - 1, all of which occur, and n outputs: `Categorical`. True and False: `Bernoulli`.

    Raises:
        ValueError: several are possible.
    """
    y = getattr(batches, "y", getattr(getattr(batches, "dataset", None), "labels", None))
    if isinstance(y, np.ndarray):
        if y.dtype.kind == "b" and y.size == len(y) * outputs:
            return Bernoulli()
        if y.dtype.kind in "iu" and y.ndim == 1 and outputs > 1:
            classes = np.unique(y)
            if np.array_equal(classes, range(outputs)):
                return Categorical(outputs)
            if np.array_equal(classes, range(1, outputs + 1)):
                raise ValueError(f"y holds the classes 1 to {outputs}, and classes count from 0: give y - 1")
        what = f"y is {y.dtype} of the shape {y.shape}, and the network has {outputs} outputs"
    else:
        what = f"the observations are not known before the training, and the network has {outputs} outputs"
    raise ValueError(
        f"which likelihood is meant? {what}. Give it: Gaussian(sigma) for numbers whose noise has the standard "
        "deviation sigma, Categorical(n) for classes 0 to n - 1 and n outputs, or another one of "
        "pytagi_ddp.likelihoods"
    )
