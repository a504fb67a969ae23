"""Forgetting of evidence: variances are increased towards those of the prior."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.prior import prior_moments
from pytagi_ddp.nn.core.stepping import cut
from pytagi_ddp.nn.core.tensors import TensorSpec
from pytagi_ddp.validate import LARGEST_FLOAT32, as_numbers

FORGETS_UNTIL = 0.7  # share of the epochs before which evidence is forgotten


def prior_pieces(tensors: Iterable[TensorSpec], leaves: Sequence[BaseLayer]) -> Iterator[TensorSpec]:
    """Splits `tensors`, the means or variances of `leaves`, into pieces with one prior each, their attribute `prior`.

    A layer of your own may draw its means without this library's generator. So means that differ count as drawn around
    0.
    """
    for number, of_leaf in groupby(tensors, attrgetter("leaf")):
        mu_w, var_w, mu_b, var_b = prior_moments(leaves[number])
        for spec, (mu, var) in zip(of_leaf, ((mu_w, var_w), (mu_b, var_b)), strict=True):
            changes = np.flatnonzero(var[1:] != var[:-1]) + 1  # the projections of attention differ in their priors
            for start, stop in zip([0, *changes], [*changes, var.size] if var.size else [], strict=False):
                means = mu[start:stop]
                prior = float(means[0]) if (means == means[0]).all() else 0.0, float(var[start])
                yield spec.having(start=int(start), stop=int(stop), prior=prior)


def forgets_before(epoch: int, epochs: int, until: float = FORGETS_UNTIL) -> bool:
    """Whether evidence is forgotten before an epoch, counted from 0: not before the first one and the last 30 %.

    Data that are seen again are not new evidence. So only the last epochs reduce the variances permanently.
    """
    return 0 < epoch < until * epochs


def check_factor(factor: float) -> float:
    """The factor that `forget_evidence` multiplies by.

    Raises:
        TypeError: not a number. ValueError: below 1, NaN, infinite, or so in float32.
    """
    return as_numbers("forget_evidence", f"[1, {LARGEST_FLOAT32}]", factor=factor)[0]


class Forgetting:
    """Forgets evidence in the variances of the parameters [start, stop).

    Args:
        pieces: those of all parameters, from `prior_pieces`.
    """

    def __init__(self, pieces: Iterable[TensorSpec], kernels: Kernels, start: int, stop: int):
        self._kernels, parts, place = kernels, cut(pieces, start, stop), kernels.array.place
        places = np.array([(part.begin - start, part.end - start) for part in parts], np.int32).reshape(-1, 2)
        starts, stops = (place(column.copy()) for column in places.T)
        self._segments = starts, stops, place(np.array([part.prior[1] for part in parts], np.float32))

    def __call__(self, var: Array, factor: float) -> None:
        """Increases `var` in place, see `kernels.cpu.step.forget`."""
        if self._segments[0].size:  # a rank may have padding only
            self._kernels.step.forget(var, *self._segments, factor)
