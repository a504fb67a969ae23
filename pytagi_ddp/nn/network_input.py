"""What a network is given."""

from typing import Any

from pytagi_ddp.nn.data_struct import BaseHiddenStates
from pytagi_ddp.nn.state import Array, State
from pytagi_ddp.nn.validate import check_finite, check_variances, flat_float32


class NetworkInput:
    """Checks the input of a network, and keeps it where the first layer reads it again in the backward pass.

    Args:
        size: units of a sample. array: the array functions of the network's device. device: its name.
    """

    def __init__(self, size: int, array: Any, device: str):
        self._size, self._array, self._device = size, array, device
        self._mu: Array = array.empty((0, size))
        self._var: Array | None = None

    def state(self, mu_x, var_x=None) -> State:
        """The input as a batch; arguments and errors are those of `Sequential.forward`."""
        if isinstance(mu_x, BaseHiddenStates):
            if mu_x.actual_size != self._size:
                raise ValueError(f"the network takes {self._size} inputs, the other network gives {mu_x.actual_size}")
            return mu_x.on(self._device)
        mu = flat_float32(mu_x, "mu_x")
        if mu.size == 0 or mu.size % self._size:
            raise ValueError(f"mu_x holds {mu.size} values, not a whole number of samples of {self._size} inputs")
        var = None if var_x is None else flat_float32(var_x, "var_x", mu.size)
        check_finite(mu, "mu_x")
        if var is not None:
            check_finite(var, "var_x")
            check_variances(var, "var_x")
        shape = (mu.size // self._size, self._size)
        if len(self._mu) < shape[0]:
            self._mu = self._array.empty(shape)
        kept = self._mu[: shape[0]]
        self._array.copy(mu.reshape(shape), kept)
        if var is not None:
            var = self._var = self._array.place(var.reshape(shape), self._var)
        return State(kept, var)

    @property
    def nbytes(self) -> int:
        return self._mu.nbytes + (0 if self._var is None else self._var.nbytes)
