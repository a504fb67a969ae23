"""The step of the parameters, divided into parts for threads."""

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array, Tensor
from pytagi_ddp.nn.core.tensors import TensorSpec

SEGMENT = 16_384  # parameters that one thread updates at a time


@cache
def cap_factor(samples: int) -> float:
    """Divisor c of the cap sqrt(s)/c on one step's change: 0.1, 2 or 3 for 1, 2-255 or more samples; 1 for none."""
    from pytagi_ddp.kernels.formulas import update  # here, so that `import pytagi_ddp` does not import Numba

    return float(update.cap_factor.py_func(samples))


def cut(tensors: Iterable[TensorSpec], begin: int, end: int) -> list[TensorSpec]:
    """The parts of `tensors` at the positions [begin, end), with at most `SEGMENT` values each."""
    parts = []
    for spec in tensors:
        first, last = max(spec.begin, begin), min(spec.end, end)
        parts += [spec.clipped(a, min(a + SEGMENT, last)) for a in range(first, last, SEGMENT)]
    return parts


class Stepping:
    """Steps over parameters. Every parameter is updated by itself, so that any division gives the same bits.

    Args:
        parts: means, from `cut`; variances have the same positions. Parts of `prior_pieces` can be pulled towards their
            priors.
        kernels: those of the device. first: position of the first parameter in the rows given to `step`.
    """

    def __init__(self, parts: list[TensorSpec], kernels: Kernels, first: int = 0):
        zeros, copy = kernels.array.zeros, kernels.array.copy
        self._parts, self._kernels = parts, kernels
        self._starts, self._stops, self._steps, self._negative, self.non_finite = (
            zeros(len(parts), np.int32) for _ in range(5)
        )
        columns = zip(*((part.begin - first, part.end - first, part.steps) for part in parts), strict=True)
        for values, target in zip(columns, (self._starts, self._stops, self._steps), strict=False):
            copy(np.array(values, np.int32), target)
        self._prior = zeros(len(parts)), zeros(len(parts))  # means and variances
        if any(part.prior[1] for part in parts):
            for values, target in zip(zip(*(part.prior for part in parts), strict=True), self._prior, strict=True):
                copy(np.array(values, np.float32), target)

    def look(self, parameters: Tensor, factors: Array) -> None:
        """Counts, in `non_finite`, parameters of each part that are not finite or have non-finite batch sums."""
        if self._parts:
            self._kernels.step.look(parameters, factors, self._starts, self._stops, self.non_finite)

    def step(self, parameters: Tensor, factors: Array) -> None:
        """Adds the capped deltas, see `kernels.cpu.step`; nothing changes if `look` has found non-finite values.

        Args:
            parameters: rows of means, variances and both batch sums.
            factors: scale, samples, caps and the rate of the pull towards the prior.
        """
        segments = (self._starts, self._stops, self._steps, *self._prior)
        if self._parts:  # a rank may have padding only
            self._kernels.step.step(parameters, factors, *segments, self._negative, self.non_finite)

    def start_of(self, part: int) -> int:
        """Position of the first parameter of a part."""
        return self._parts[part].begin

    def negative_variances(self) -> Iterator[tuple[int, int]]:
        """(number of the leaf, weights whose variance fell to <= 0 in the last step) for each part of weights."""
        for part, count in zip(self._parts, self._kernels.array.to_host(self._negative), strict=True):
            if part.field == "mu_w":
                yield part.leaf, int(count)


def refusal(bad: int, of: int, where: str) -> FloatingPointError:
    """The error of a step with `bad` non-finite deltas, the first of them in the layer `where`."""
    return FloatingPointError(
        f"{bad} of {of} parameters have a delta that is not finite, or are not finite, the first of them in {where}; "
        "with such deltas there was no step, and nothing has changed. Check the observations and their variances, and "
        "whether inputs, outputs or variances of parameters are too large for float32: standardise the inputs, or make "
        "the prior smaller."
    )
