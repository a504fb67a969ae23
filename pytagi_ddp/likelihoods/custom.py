"""A likelihood of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.likelihoods.base import Likelihood, Outputs
from pytagi_ddp.likelihoods.prediction import Prediction


class Custom(Likelihood):
    """A likelihood by its deltas: function(m, s, y) -> (dm, ds).

    dm = d log Z/dm and ds = d^2 log Z/dm^2 at N(m, s), Z = E[p(y | z)], without the Jacobian of activations, which is
    added here. The function gets float64 arrays (rows, outputs), and returns two of them, or one number for all. It
    sees y = 0 where an observation is missing, and the result there is not used. It runs on the CPU, for outputs on a
    GPU too.

        likelihood = Custom(lambda m, s, y: ((y - m) / (s + 0.01), -1 / (s + 0.01)))

    Observes batch x outputs numbers.

    Args:
        function: as above. prediction: (m, s) -> `Prediction`, of float64 arrays (..., outputs); None: `predict` raises
            an error.

    Raises:
        TypeError: not functions; in `observe`, a function that does not return a pair. ValueError (in `observe`):
            deltas of another shape.
    """

    def __init__(
        self,
        function: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[ArrayLike, ArrayLike]],
        prediction: Callable[[np.ndarray, np.ndarray], Prediction] | None = None,
    ):
        if not callable(function):
            raise TypeError(f"Custom needs a function of (m, s, y), got {type(function).__name__}")
        if prediction is not None and not callable(prediction):
            raise TypeError(
                f"Custom needs a function of (m, s) that returns a Prediction, got {type(prediction).__name__}. That "
                "of another likelihood is its method prediction, as in Custom(function, Gaussian(0.1).prediction)"
            )
        self._function, self._predictive = function, prediction

    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        values = outputs.numbers(y)
        part = slice(outputs.first, outputs.first + outputs.width)
        to_host = outputs.kernels.array.to_host
        m, s = (to_host(array)[:, part].astype(np.float64) for array in (outputs.state.mu, outputs.state.var))
        known = np.nan_to_num(values.reshape(m.shape)).astype(np.float64)
        deltas = []
        found = self._function(m, s, known)
        if not hasattr(found, "__len__") or len(found) != 2:
            raise TypeError(f"the function of Custom returns a pair (dm, ds), got {found!r:.60}")
        for name, given in zip(("dm", "ds"), found, strict=True):
            array = np.asarray(given, np.float32)
            if array.shape not in ((), m.shape):
                raise ValueError(
                    f"the function of Custom gave {name} of shape {array.shape}: return {m.shape}, or one number"
                )
            deltas.append(np.ascontiguousarray(np.broadcast_to(array, m.shape)).reshape(-1))
        dm, ds = deltas
        outputs.observe("given", values, dm, ds, weight)

    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        if self._predictive is None:
            raise TypeError("Custom can only predict if it is given a function for that: Custom(function, prediction)")
        found = self._predictive(mu, var)
        if not hasattr(found, "log_prob"):
            raise TypeError(f"the prediction of Custom returns a Prediction, got {found!r:.60}")
        return found
