"""Forgetting of evidence: variances are widened towards those of the prior."""

from collections.abc import Iterable, Iterator
from numbers import Real

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.prior import prior_variances
from pytagi_ddp.nn.stepping import PriorPiece, cut

LARGEST = float(np.finfo(np.float32).max)


def prior_pieces(leaves: Iterable[BaseLayer]) -> Iterator[PriorPiece]:
    """The parameters of `leaves` in order, in pieces of one prior variance; mostly the weights or biases of a leaf.

    Those of frozen layers are left out.
    """
    begin = 0
    for leaf in leaves:
        if leaf.frozen:
            begin += leaf.num_weights + leaf.num_biases
            continue
        for var in prior_variances(leaf):
            changes = np.flatnonzero(var[1:] != var[:-1]) + 1  # the projections of attention differ in their priors
            for start, stop in zip([0, *changes], [*changes, var.size] if var.size else [], strict=False):
                yield PriorPiece(begin + int(start), begin + int(stop), float(var[start]))
            begin += var.size


def check_factor(factor: float) -> float:
    """The factor that `forget_evidence` multiplies by.

    Raises:
        TypeError: no number. ValueError: below 1, NaN, infinite, or so in float32.
    """
    if not isinstance(factor, Real):
        raise TypeError(f"forget_evidence() takes a number, got {type(factor).__name__}")
    if not 1 <= factor <= LARGEST:  # NaN is nowhere
        raise ValueError(
            f"forget_evidence() multiplies variances by a finite factor of at least 1, got {factor}: 1 forgets "
            "nothing, a large factor forgets all evidence"
        )
    return float(factor)


def forget(var: Array, pieces: Iterable[PriorPiece], kernels: Kernels, factor: float, start: int = 0) -> None:
    """Widens variances in place, see `kernels.cpu.step.forget`.

    Args:
        var: the variances of the parameters from `start` on, flat.
        pieces: of all parameters.
        kernels: of the device of `var`.
        factor: of `check_factor`.
    """
    parts = cut(pieces, start, start + var.size)
    if parts:  # a rank may have nothing but padding
        place = kernels.array.place
        starts, stops = (
            place((np.array(ends) - start).astype(np.int32)) for ends in list(zip(*parts, strict=True))[:2]
        )
        priors = place(np.array([part.var for part in parts], np.float32))
        kernels.step.forget(var, starts, stops, priors, factor)
