"""What a network is given."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.kernels.protocol import ArrayFunctions
from pytagi_ddp.nn.data_struct import BaseHiddenStates
from pytagi_ddp.nn.state import Array, State
from pytagi_ddp.nn.validate import check_finite, flat_float32, round_up_variances

MISSING = ("error", "standard normal", "pass")


class NetworkInput:
    """Checks the input of a network, and keeps it where the first layer reads it again in the backward pass.

    Args:
        size: units of a sample. array: the array functions of the network's device. device: its name.
        check: what the first layer asks of them, see `BaseLayer.check_input`.
    """

    def __init__(self, size: int, array: ArrayFunctions, device: str, check: Callable[[np.ndarray], None]):
        self._size, self._array, self._device, self._check = size, array, device, check
        self._mu: Array = array.empty((0, size))
        self._var: Array = array.empty((0, size))
        self._states: dict[tuple[int, bool], State] = {}

    def state(
        self, mu_x: ArrayLike | BaseHiddenStates, var_x: ArrayLike | None = None, missing: str = "error"
    ) -> State:
        """The input as a batch; arguments and errors are those of `Sequential.forward`, and its `missing_inputs`."""
        if isinstance(mu_x, BaseHiddenStates):
            if mu_x.actual_size != self._size:
                raise ValueError(f"the network takes {self._size} inputs, the other network gives {mu_x.actual_size}")
            return mu_x.on(self._device)
        mu = flat_float32(mu_x, "mu_x")
        if mu.size == 0 or mu.size % self._size:
            raise ValueError(f"mu_x holds {mu.size} values, not a whole number of samples of {self._size} inputs")
        var = None if var_x is None else flat_float32(var_x, "var_x", mu.size)
        if missing != "error" and (nan := np.isnan(mu)).any():
            check_finite(np.where(nan, 0, mu), "mu_x")
            if missing == "standard normal":
                mu, var = np.where(nan, 0, mu), np.where(nan, 1, 0 if var is None else var)
        else:
            check_finite(mu, "mu_x")
        if var is not None:
            check_finite(var, "var_x")
            var = round_up_variances(var, "var_x")
        self._check(mu)
        shape = (mu.size // self._size, self._size)
        state = self._kept(shape[0], var is not None)
        self._array.copy(mu.reshape(shape), state.mu)
        if var is not None:
            self._array.copy(var.reshape(shape), state.var)
        return state

    def _kept(self, batch: int, with_var: bool) -> State:
        """Where a batch is kept: the same object for the same size, until the memory grows."""
        if len(self._mu) < batch:
            self._mu = self._array.empty((batch, self._size))
            self._states.clear()
        if with_var and len(self._var) < batch:
            self._var = self._array.empty((batch, self._size))
            self._states.clear()
        state = self._states.get((batch, with_var))
        if state is None:
            if len(self._states) > 100:  # a program with ever other batch sizes
                self._states.clear()
            state = State(self._mu[:batch], self._var[:batch] if with_var else None)
            self._states[batch, with_var] = state
        return state

    @property
    def nbytes(self) -> int:
        return self._mu.nbytes + self._var.nbytes
