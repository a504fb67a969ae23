"""States and deltas at the ends of a network, as pytagi shows them: flat float32, sample by sample, images NCHW."""

import numpy as np

from pytagi_ddp.nn.state import Array, State


def flat_float32(values, what: str, size: int | None = None) -> np.ndarray:
    """`values` of any real dtype, shape and strides as a flat float32 array.

    Raises:
        TypeError: values that are not real numbers. ValueError: not `size` of them.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{what} must hold real numbers, got dtype {array.dtype}")
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and callers look for that
        array = np.ascontiguousarray(array, np.float32).reshape(-1)
    if size is not None and array.size != size:
        raise ValueError(f"{what} must hold {size} values, got {array.size}")
    return array


class BaseHiddenStates:
    """Means, variances and Jacobians of a batch of units.

    Attributes:
        mu_a, var_a, jcb: flat float32 arrays of block_size x actual_size values; assignable.
        block_size: batch size. actual_size: units per sample. size: both multiplied.
    """

    def __init__(self, size: int | None = None, block_size: int | None = None):
        self.set_size(size or 0, block_size or 1)

    def set_size(self, new_size: int, new_block_size: int) -> str:
        """Makes room for `new_size` values in `new_block_size` samples, all zero, with Jacobian 1."""
        if new_block_size < 1 or new_size % new_block_size:
            raise ValueError(f"{new_size} values are no whole number of units for {new_block_size} samples")
        mu, var = np.zeros((2, new_block_size, new_size // new_block_size), np.float32)
        self.state = State(mu, var)
        return f"{new_size} values, {new_block_size} samples"

    def set_input_x(self, mu_x, var_x, block_size: int) -> None:
        """Takes means and variances (None: zero) of `block_size` samples."""
        mu = flat_float32(mu_x, "mu_x")
        self.set_size(mu.size, block_size)
        self.mu_a = mu
        if var_x is not None:
            self.var_a = var_x

    @property
    def block_size(self) -> int:
        return self.state.batch

    @property
    def actual_size(self) -> int:
        return self.state.mu.shape[1]

    @property
    def size(self) -> int:
        return self.state.mu.size

    @property
    def mu_a(self) -> Array:
        return self.state.mu.reshape(-1)

    @mu_a.setter
    def mu_a(self, values) -> None:
        self.state = self.state._replace(mu=self._shaped(values, "mu_a"))

    @property
    def var_a(self) -> Array:
        if self.state.var is None:
            self.var_a = np.zeros(self.size, np.float32)
        return self.state.var.reshape(-1)

    @var_a.setter
    def var_a(self, values) -> None:
        self.state = self.state._replace(var=self._shaped(values, "var_a"))

    @property
    def jcb(self) -> Array:
        if self.state.jcb is None:
            self.jcb = np.ones(self.size, np.float32)
        return self.state.jcb.reshape(-1)

    @jcb.setter
    def jcb(self, values) -> None:
        self.state = self.state._replace(jcb=self._shaped(values, "jcb"))

    def _shaped(self, values, what: str) -> np.ndarray:
        return flat_float32(values, what, self.size).reshape(self.state.mu.shape)

    def get_name(self) -> str:
        return "BaseHiddenStates"


class BaseDeltaStates:
    """Innovation deltas of a batch of units: the posterior of a unit N(m, s) is (m + s delta_mu, s + s^2 delta_var).

    Attributes:
        delta_mu, delta_var: flat float32 arrays of block_size x actual_size values; assignable.
    """

    def __init__(self, size: int | None = None, block_size: int | None = None):
        self._memory = np.zeros((2, 0), np.float32)
        self.set_size(size or 0, block_size or 1)

    def set_size(self, new_size: int, new_block_size: int) -> str:
        """Makes room for `new_size` values in `new_block_size` samples; memory is kept when it is large enough."""
        if new_block_size < 1 or new_size % new_block_size:
            raise ValueError(f"{new_size} values are no whole number of units for {new_block_size} samples")
        if self._memory.shape[1] < new_size:
            self._memory = np.zeros((2, new_size), np.float32)
        self.block_size, self.actual_size = new_block_size, new_size // new_block_size
        return f"{new_size} values, {new_block_size} samples"

    @property
    def size(self) -> int:
        return self.block_size * self.actual_size

    @property
    def delta_mu(self) -> Array:
        return self._memory[0, : self.size]

    @delta_mu.setter
    def delta_mu(self, values) -> None:
        self.delta_mu[:] = flat_float32(values, "delta_mu", self.size)

    @property
    def delta_var(self) -> Array:
        return self._memory[1, : self.size]

    @delta_var.setter
    def delta_var(self, values) -> None:
        self.delta_var[:] = flat_float32(values, "delta_var", self.size)

    def copy_from(self, source: "BaseDeltaStates", num_data: int = -1) -> None:
        """Takes the deltas of `source`: all of them, or the first `num_data` values."""
        n = source.size if num_data < 0 else num_data
        if n > source.size:
            raise ValueError(f"cannot copy {n} deltas from a buffer of {source.size}")
        if num_data < 0:
            self.set_size(source.size, source.block_size)
        elif n > self.size:
            raise ValueError(f"cannot copy {n} deltas into a buffer of {self.size}")
        self.delta_mu[:n] = source.delta_mu[:n]
        self.delta_var[:n] = source.delta_var[:n]

    def reset_zeros(self) -> None:
        self._memory[:] = 0

    def get_name(self) -> str:
        return "BaseDeltaStates"
