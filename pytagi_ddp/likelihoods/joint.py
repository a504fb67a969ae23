"""Several likelihoods for the outputs of one network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.likelihoods.base import Likelihood, Outputs
from pytagi_ddp.likelihoods.prediction import Prediction

if TYPE_CHECKING:
    from typing_extensions import Self


class Joint(Likelihood):
    """Outputs of different kinds: each part takes the next columns of the output, and they are independent given z.

        likelihood = Joint(Categorical(3), (Gaussian(0.1), 2), Poisson())  # 3 + 2 + 1 outputs
        likelihood.observe(net, (labels, numbers, counts))
        labels, numbers, counts = likelihood.predict(net, x).parts

    Observes a tuple, with the observations of each part; None: none for this part. `weight`: a number, or one
    for each sample, for all parts. `fitted` fits the parts that have noise parameters and are observed; others stay.

    Args:
        parts: likelihoods, or tuples (likelihood, number of outputs); without a number a part has as many as it needs,
            or one.

    Raises:
        TypeError: a part that is not a likelihood, or is a `Joint`. ValueError: no parts, or a number of outputs that
            does not fit one.
    """

    def __init__(self, *parts: Likelihood | tuple[Likelihood, int]):
        if not parts:
            raise ValueError("Joint needs at least one likelihood")
        self._parts: list[tuple[Likelihood, int, int]] = []
        first = 0
        for part in parts:
            likelihood, width = part if isinstance(part, tuple) and len(part) == 2 else (part, None)
            if isinstance(likelihood, Joint):
                raise TypeError("a Joint cannot be a part of a Joint: give its parts")
            if not isinstance(likelihood, Likelihood):
                raise TypeError(
                    f"Joint is made of likelihoods, or tuples (likelihood, number of outputs), got {part!r:.80}"
                )
            width = (likelihood.outputs or 1) if width is None else int(width)
            if width < 1:
                raise ValueError(f"Joint: {likelihood!r} needs at least one output, got {width}")
            likelihood.check_outputs(width)
            self._parts.append((likelihood, first, width))
            first += width
        self.outputs = first

    def __repr__(self) -> str:
        return f"Joint({', '.join(f'({likelihood!r}, {width})' for likelihood, _, width in self._parts)})"

    def _observed(self, y: Any) -> Iterator[tuple[Likelihood, int, int, Any]]:
        """(likelihood, first output, number of outputs, observations) of each part."""
        return ((*part, values) for part, values in zip(self._parts, _of_parts(y, len(self._parts)), strict=True))

    def _checked(self, outputs: Outputs, y: Any) -> None:
        for likelihood, first, width, values in self._observed(y):
            if values is not None:
                likelihood._checked(replace(outputs, first=outputs.first + first, width=width), values)

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        for likelihood, first, width, values in self._observed(y):
            if values is None:
                values = np.full(outputs.rows * (width if likelihood.outputs is None else 1), np.nan)
            likelihood._observe(replace(outputs, first=outputs.first + first, width=width), values, weight)

    def state_dict(self) -> dict[str, Any]:
        return {"kind": "Joint", "parts": [part.state_dict() for part, _, _ in self._parts]}

    def with_state_dict(self, state_dict: Mapping[str, Any]) -> Self:
        states = state_dict.get("parts", ())
        if len(states) != len(self._parts):
            raise ValueError(f"this is the state of {len(states)} parts, and not of {self!r}")
        pairs = zip(self._parts, states, strict=True)
        return type(self)(*[(part.with_state_dict(state), width) for (part, _, width), state in pairs])

    def _fitted_to(self, mu: np.ndarray, var: np.ndarray, y: Any, weight: ArrayLike) -> Self:
        if not any(part.noise_parameters for part, _, _ in self._parts):
            raise TypeError(f"no part of {self!r} has noise parameters that could be fitted")
        parts = []
        for part, first, width, values in self._observed(y):
            if values is not None and part._fits(values):
                outputs = slice(first, first + width)
                part = part._fitted_to(mu[..., outputs], var[..., outputs], values, weight)
            parts.append((part, width))
        return type(self)(*parts)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> JointPrediction:  # type: ignore[override]
        return JointPrediction(
            [part.prediction(mu[..., at : at + width], var[..., at : at + width]) for part, at, width in self._parts]
        )


class JointPrediction:
    """The predictions of the parts of a `Joint`.

    Attributes:
        parts: one `Prediction` for each part.
    """

    def __init__(self, parts: list[Prediction]):
        self.parts = parts

    def __repr__(self) -> str:
        return f"JointPrediction({self.parts!r})"

    def log_prob(self, y: Sequence[Any]) -> np.ndarray:
        """The logarithm of the density of all observations of a sample, (..., samples); missing ones count as 0.

        Raises:
            ValueError: another number of parts, or as `Prediction.log_prob`.
        """
        total: Any = 0.0
        for part, values in zip(self.parts, _of_parts(y, len(self.parts)), strict=True):
            if values is not None:
                logs = part.log_prob(values)
                known, of_sample = np.where(np.isnan(logs), 0, logs), tuple(range(1 - part.mean.ndim, 0))
                total = total + known.sum(of_sample)
        return total

    def sample(self, n: int, seed: int | None = None) -> list[np.ndarray]:
        """n draws of each part, each (n, ...)."""
        random = np.random.default_rng(seed)
        return [part.sample(n, random) for part in self.parts]


def _of_parts(y: Any, parts: int) -> Sequence[Any]:
    """`y` if it has one entry for each part; otherwise raises ValueError."""
    if not isinstance(y, list | tuple) or len(y) != parts:
        raise ValueError(
            f"y must be a tuple or list with one entry for each of {parts} parts of Joint, as in "
            "fit(x, (labels, numbers))"
        )
    return y
