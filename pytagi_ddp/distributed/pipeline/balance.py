"""The number of layers of each stage of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pytagi_ddp.nn.layers.activation import Activation
from pytagi_ddp.nn.tools.profile import Profile
from pytagi_ddp.validate import as_integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from pytagi_ddp.nn.core.layer import BaseLayer
    from pytagi_ddp.nn.sequential import Sequential

PARAMETER_BYTES = 16  # mean, variance and the batch sums of both


def balance_by_time(model: Sequential, x: ArrayLike, stages: int, repeat: int = 3) -> list[int]:
    """Numbers of layers of the stages that minimise the time of the slowest stage.

    Times are those of `model.profile(x)`; use a batch of the size of a micro-batch. An activation is in the same stage
    as the next layer, so that no Jacobian has to be sent.

        PipelineSequential(model, balance=balance_by_time(model, x[:4], 2))

    Args:
        model: a network; it does not change. x: inputs. stages: their number. repeat: number of measured steps.

    Returns:
        A list for `PipelineSequential(balance=...)`, which uses that of rank 0.

    Raises:
        ValueError: fewer layers than stages, or inputs that do not fit.

    Source: `torchgpipe.balance`.
    """
    rows = _by_layer(model, model.profile(x, repeat=repeat))
    return _cut(model, [sum(row.forward_ms + row.backward_ms for row in layer) for layer in rows], stages)


def balance_by_size(model: Sequential, x: ArrayLike, stages: int) -> list[int]:
    """As `balance_by_time`, but minimises the memory of the largest stage.

    It counts parameters and their deltas, 16 bytes per parameter, and the memory of layers for the batch `x`.
    """
    rows = _by_layer(model, model.profile(x, repeat=1))
    bytes_of = [sum(row.memory for row in layer) for layer in rows]
    counts = [sum(leaf.num_weights + leaf.num_biases for leaf in layer.leaves()) for layer in model.layers]
    return _cut(model, [PARAMETER_BYTES * n + b for n, b in zip(counts, bytes_of, strict=True)], stages)


def balance_by_products(model: Sequential, stages: int) -> list[int]:
    """As `balance_by_time`, but with numbers of products and units instead of times; equal on all ranks."""
    work = [sum(_products(leaf) + leaf.out_shape.size for leaf in layer.leaves()) for layer in model.layers]
    return _cut(model, work, stages)


def check_balance(balance: Sequence[int], layers: int, stages: int) -> list[int]:
    """`balance` as integers.

    Raises:
        TypeError: not integers. ValueError: not a number above 0 for each stage, or another sum than `layers`.
    """
    counts = as_integers("a pipeline", 1, **{f"balance[{stage}]": count for stage, count in enumerate(balance)})
    if len(counts) != stages:
        raise ValueError(f"balance={counts} is for {len(counts)} stages, there are {stages}")
    if sum(counts) != layers:
        raise ValueError(f"balance={counts} is for {sum(counts)} layers, the network has {layers}")
    return counts


def _by_layer(model: Sequential, profile: Profile) -> list[list]:
    """The rows of a profile for each layer of the network; a block has the rows of all its leaves."""
    rows = iter(profile.rows)
    return [[next(rows) for _ in layer.leaves()] for layer in model.layers]


def _products(leaf: BaseLayer) -> int:
    """Number of products: each weight is used for every pixel of the output, or for every time step."""
    return leaf.num_weights * max(1, leaf.out_height * leaf.out_width, leaf.steps)


def _cut(model: Sequential, costs: Sequence[float], stages: int) -> list[int]:
    """Numbers of layers of the stages that minimise the largest sum of costs."""
    count = len(costs)
    if not 1 <= stages <= count:
        raise ValueError(f"a network of {count} layers cannot be cut into {stages} stages: each needs a layer")
    ends = [k for k in range(1, count) if not isinstance(model.layers[k - 1], Activation)] + [count]
    if len(ends) < stages:
        ends = list(range(1, count + 1))
    # worst[k]: the cost of the largest stage, and the divisions, for the layers before ends[k] in the stages so far
    worst = [(sum(costs[:end]), [end]) for end in ends]
    for _ in range(stages - 1):
        worst = [
            min(
                ((max(cost, sum(costs[ends[j] : end])), [*cuts, end]) for j, (cost, cuts) in enumerate(worst[:k])),
                default=(float("inf"), []),
            )
            for k, end in enumerate(ends)
        ]
    cuts = [0, *worst[-1][1]]
    return [stop - start for start, stop in pairwise(cuts)]
