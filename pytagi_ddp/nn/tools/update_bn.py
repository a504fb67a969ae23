"""Running statistics of BatchNorm2d, computed again for the present parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.core.running import RunningStatistics
from pytagi_ddp.validate import as_integers


class StatisticsChange(NamedTuple):
    """How far the old running statistics of a BatchNorm2d were from the new ones; medians over its features.

    Attributes:
        layer: its key in the state dictionary.
        mean_shift: distance between the old and the new mean, in new standard deviations.
        var_ratio: old variance over new variance.
    """

    layer: str
    mean_shift: float
    var_ratio: float


class HasBatchNorm(Protocol):
    """A network whose statistics can be recomputed: `Sequential` and `DDPSequential`."""

    def update_bn(self, loader: Iterable[Any], num_batches: int | None = None) -> list[StatisticsChange]: ...


def update_bn(loader: Iterable[Any], net: HasBatchNorm, num_batches: int | None = None) -> list[StatisticsChange]:
    """Sets the running statistics of every BatchNorm2d to the exact ones of the given batches.

    In training, running statistics are averages over the last steps, whose parameters were others. So call this before
    evaluating, predicting or saving a deep network with BatchNorm2d (docs/batch_norm.md).

    Each batch goes forward once, as in training: normalised by its own statistics. With N_k, mean_k and M_k (the sum
    of (m - mean_k)^2 + s) of batch k, at the input of each BatchNorm2d,

        N = sum N_k      mean = sum N_k mean_k / N      var = sum (M_k + N_k (mean_k - mean)^2) / (N - 1)

    the moments of all values of all batches together. The sums over batches are float64. Parameters, pending deltas,
    and the mode of the network do not change. Afterwards `output_z_buffer` is empty, `backward` needs a new forward
    pass, and `batch_statistics` are those of the last batch. A frozen BatchNorm2d (`training = False` in a network in
    training) keeps its statistics. Without a BatchNorm2d to update, the loader is not read.

    With a `DDPSequential` this is collective: every rank calls it with its own batches (any number, also none) and the
    same frozen norms. All ranks get the statistics of all batches, with the same bits.

    Args:
        loader: batches of training data: inputs, or tuples or lists that begin with the inputs. A `BatchLoader` or
            `FolderLoader` starts with the first batch of its epoch, and keeps its position.
        net: a `Sequential` or `DDPSequential`.
        num_batches: how many batches to use (on each rank), from the first; None: all.

    Returns:
        For each BatchNorm2d, in forward order, the change of its running statistics.

    Raises:
        ValueError: num_batches below 1; no batch, or fewer than two values for a feature; inputs that do not fit.
        FloatingPointError: statistics are not finite, because the network has diverged; names the layer.
        RuntimeError: a `DDPSequential` whose replicas differ, between two merges.
        TypeError: `net` is not a network, for example if the arguments are in the wrong order.

    After an error the running statistics have not changed.

    Source: `torch.optim.swa_utils.update_bn`; Wu & Johnson (2021), "Rethinking 'Batch' in BatchNorm" (PreciseBN).
    """
    if not hasattr(net, "update_bn"):
        raise TypeError(f"update_bn takes the batches first and then a network, got {type(net).__name__} for that")
    return net.update_bn(loader, num_batches)


def take_statistics(
    model: Network,
    loader: Iterable[Any],
    num_batches: int | None,
    add_over_ranks: Callable[[np.ndarray], None] | None = None,
    run: Callable[[Any], object] | None = None,
) -> list[StatisticsChange]:
    """`update_bn` for a network on this rank.

    Args:
        model, loader, num_batches: as in `update_bn`.
        add_over_ranks: adds the float64 sums of all ranks, in place.
        run: a function that makes a forward pass in training mode, without replay; None: `passes.forward_only`.
    """
    check_num_batches(num_batches)
    norms = _norms(model)
    inputs = _inputs(loader, num_batches)
    if not norms:
        if run is not None:  # other stages of a pipeline may have norms
            for x in inputs:
                run(x)
        return []
    arena, array = model.arena, model.kernels.array
    tail, statistics, carried = map(array.to_host, (arena.tail, arena.statistics, arena.carried))  # changed by passes
    ends = np.cumsum([norm.num_sums for norm, _ in norms.values()])
    sums = np.zeros(ends[-1])  # (count, sums, sums of squares) of every norm's input, over all batches
    parts = dict(zip(norms, np.split(sums, ends[:-1]), strict=True))
    try:
        _add_moments(model, [(norm, parts[key]) for key, (norm, _) in norms.items()], inputs, run)
        if add_over_ranks is not None:
            add_over_ranks(sums)
        fresh = statistics.copy()
        for key, (_, place) in norms.items():
            fresh[place] = _moments(parts[key], key)
    except BaseException:
        array.copy(statistics, arena.statistics)
        raise
    finally:
        array.copy(tail, arena.tail)
        array.copy(carried, arena.carried)
    array.copy(fresh, arena.statistics)
    arena.keep_state()
    return [_change(key, statistics[place], fresh[place]) for key, (_, place) in norms.items()]


def unfrozen_norms(model: Network) -> list[str]:
    """Keys of the norms that `take_statistics` sets; they must be equal on all ranks."""
    return list(_norms(model))


def check_num_batches(num_batches: int | None) -> None:
    """Raises unless it is at least 1, or None for all batches."""
    if num_batches is not None:
        as_integers("update_bn", 1, num_batches=num_batches)


def _add_moments(
    model: Network,
    norms: Sequence[tuple[RunningStatistics, np.ndarray]],
    inputs: Iterable[Any],
    run: Callable[[Any], object] | None,
) -> None:
    """Adds (count, sums, sums of squares) of each norm's input, over all batches, to the array beside it."""
    to_host = model.kernels.array.to_host

    def watch(part: np.ndarray) -> Callable[[int, Any, Any], None]:
        count, total, square = part[:1], *part[1:].reshape(2, -1)

        def add(rows: int, mean: Any, m2: Any) -> None:
            mean = to_host(mean).astype(np.float64)
            count[0] += rows
            total[:] += rows * mean
            square[:] += to_host(m2) + rows * mean * mean

        return add

    pooled = [norm.pool_at_step for norm, _ in norms]
    try:
        for norm, sums in norms:
            norm.on_moments, norm.pool_at_step = watch(sums), False
        with nullcontext() if model.training else model.passes.in_mode(training=True):
            for x in inputs:
                (run or model.passes.forward_only)(x)
    finally:
        for (norm, _), pool in zip(norms, pooled, strict=True):
            norm.on_moments, norm.pool_at_step = None, pool


def batches_of(loader: Iterable[Any], num_batches: int | None = None) -> Iterator[Any]:
    """The first `num_batches` batches of a loader, or all; a loader keeps its position in its epoch."""
    return islice(loader.from_first() if hasattr(loader, "from_first") else loader, num_batches)


def _inputs(loader: Iterable[Any], num_batches: int | None) -> Iterator[Any]:
    for batch in batches_of(loader, num_batches):
        x = batch[0] if isinstance(batch, tuple | list) else batch
        if len(x):  # the last batch of a rank may be empty
            yield x


def _norms(model: Network) -> dict[str, tuple[RunningStatistics, slice]]:
    """Each norm that is not frozen, and the place of its running statistics, by its key."""
    found: dict[str, tuple[RunningStatistics, slice]] = {}
    for spec in model.arena.tensors:
        leaf = model.arena.leaves[spec.leaf]
        if spec.kind == "running" and isinstance(leaf, RunningStatistics) and (leaf.training or not model.training):
            begin = found[spec.layer][1].start if spec.layer in found else spec.begin
            found[spec.layer] = leaf, slice(begin, spec.end)
    return found


def _moments(sums: np.ndarray, key: str) -> np.ndarray:
    """Means, then variances, in float32."""
    count, (total, square) = sums[0], sums[1:].reshape(2, -1)
    if count < 2:
        raise ValueError(f"update_bn needs at least two values for each feature, {key} was given {count:.0f}")
    mean = total / count
    moments = np.concatenate([mean, np.maximum(square - total * mean, 0) / (count - 1)]).astype(np.float32)
    if not np.isfinite(moments).all():
        raise FloatingPointError(f"update_bn: the input of {key} is not finite; the network has diverged")
    return moments


def _change(key: str, before: np.ndarray, after: np.ndarray) -> StatisticsChange:
    (mean, var), (new_mean, new_var) = (a.reshape(2, -1).astype(np.float64) for a in (before, after))
    new_var = np.maximum(new_var, np.finfo(np.float32).tiny)
    shift = np.abs(mean - new_mean) / np.sqrt(new_var)
    return StatisticsChange(key, float(np.median(shift)), float(np.median(var / new_var)))
