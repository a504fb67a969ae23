"""Forgetting of evidence: variances are widened towards those of the prior."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from numbers import Real
from operator import attrgetter

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.prior import prior_variances
from pytagi_ddp.nn.core.stepping import cut
from pytagi_ddp.nn.core.tensors import TensorSpec

LARGEST = float(np.finfo(np.float32).max)


def prior_pieces(tensors: Iterable[TensorSpec], leaves: Sequence[BaseLayer]) -> Iterator[TensorSpec]:
    """The variances `tensors` of parameters of `leaves`, in pieces of one prior variance, which is their `initial`."""
    for number, of_leaf in groupby(tensors, attrgetter("leaf")):
        for spec, var in zip(of_leaf, prior_variances(leaves[number]), strict=True):
            changes = np.flatnonzero(var[1:] != var[:-1]) + 1  # the projections of attention differ in their priors
            for start, stop in zip([0, *changes], [*changes, var.size] if var.size else [], strict=False):
                yield spec.having(start=int(start), stop=int(stop), initial=float(var[start]))


def check_factor(factor: float) -> float:
    """The factor that `forget_evidence` multiplies by.

    Raises:
        TypeError: not a number. ValueError: below 1, NaN, infinite, or so in float32.
    """
    if not isinstance(factor, Real):
        raise TypeError(f"forget_evidence() takes a number, got {type(factor).__name__}")
    if not 1 <= factor <= LARGEST:  # NaN is nowhere
        raise ValueError(
            f"forget_evidence() multiplies variances by a finite factor of at least 1, got {factor}: 1 forgets "
            "nothing, a large factor forgets all evidence"
        )
    return float(factor)


def forget(var: Array, pieces: Iterable[TensorSpec], kernels: Kernels, factor: float, start: int = 0) -> None:
    """Widens variances in place, see `kernels.cpu.step.forget`.

    Args:
        var: the variances of the parameters from `start` on, flat.
        pieces: of all parameters, from `prior_pieces`.
        kernels: of the device of `var`.
        factor: of `check_factor`.
    """
    parts = cut(pieces, start, start + var.size)
    if parts:  # a rank may have nothing but padding
        columns = np.array([(part.begin - start, part.end - start) for part in parts], np.int32).T
        starts, stops = (kernels.array.place(column.copy()) for column in columns)
        priors = kernels.array.place(np.array([part.initial for part in parts], np.float32))
        kernels.step.forget(var, starts, stops, priors, factor)
