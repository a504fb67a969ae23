"""States and deltas at the input and output of a network, as in pytagi: flat float32, sample by sample, images NCHW."""

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.protocol import ArrayFunctions
from pytagi_ddp.nn.core.state import UNKNOWN, Array, Shape, State
from pytagi_ddp.nn.core.unpickled import writable
from pytagi_ddp.nn.hierarchical_softmax import HRCSoftmax
from pytagi_ddp.validate import as_integers, check_finite, flat_float32, round_up_variances

__all__ = ["BaseDeltaStates", "BaseHiddenStates", "HRCSoftmax"]

NO_ONES = "", np.ones(0, np.float32)


def _units(size: int, block_size: int) -> int:
    """The units of a sample, if `block_size` samples have `size` values in all."""
    if size == block_size == 0:  # a batch without samples
        return 0
    if block_size < 1 or size % block_size:
        raise ValueError(f"{size} values are not a whole number of units for {block_size} samples")
    return size // block_size


class OnDevice:
    """Base of classes that hold arrays on a device and show them to the user.

    Attributes:
        device: where the arrays are.
    """

    device = "cpu"

    @property
    def _array(self) -> ArrayFunctions:
        return get_kernels(self.device).array

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(writable(state))


class BaseHiddenStates(OnDevice):
    """Means, variances and Jacobians of a batch of units.

    Attributes:
        mu_a, var_a, jcb: flat float32 arrays of block_size x actual_size values, assignable. From a GPU they are
            read-only copies.
        block_size: batch size. actual_size: units per sample. size: the product of both.
        seq_len: time steps of a sample. shape: how the units of a sample are arranged, if a network says it.
        elsewhere: whether the states are on another rank. Then `OutputUpdater` does nothing on this rank.
        positive_noise: whether the network ends with `EvenExp`, so that outputs 1, 3, ... are never negative.
    """

    seq_len = 1
    shape = UNKNOWN
    elsewhere = positive_noise = False
    _ones: tuple[str, Array] = NO_ONES  # Jacobians of 1 on a device, for `complete`

    def __init__(self, size: int | None = None, block_size: int | None = None):
        self.set_size(size or 0, block_size or 1)

    def set_size(self, new_size: int, new_block_size: int) -> str:
        """Makes room for `new_size` values in `new_block_size` samples, all zero, with Jacobian 1."""
        mu, var = self._array.zeros((2, new_block_size, _units(new_size, new_block_size)))
        self.state = State(mu, var)
        return f"{new_size} values, {new_block_size} samples"

    def set_input_x(self, mu_x: ArrayLike, var_x: ArrayLike | None, block_size: int) -> None:
        """Sets means and variances (None: zero) of `block_size` samples; the Jacobian becomes 1.

        Raises:
            ValueError: values that are NaN or infinite, negative variances, or numbers of values that do not match.
                TypeError: values that are not real numbers, or a `block_size` that is not an integer.
        """
        as_integers("set_input_x", block_size=block_size)
        mu = flat_float32(mu_x, "mu_x")
        check_finite(mu, "mu_x")
        if var_x is not None:
            var_x = flat_float32(var_x, "var_x", mu.size)
            check_finite(var_x, "var_x")
            var_x = round_up_variances(var_x, "var_x")
        self.set_size(mu.size, block_size)
        self.mu_a = mu
        if var_x is not None:
            self.var_a = var_x

    def arrange(self, shape: Shape) -> None:
        """Says how the units of a sample are arranged."""
        self.seq_len, self.shape = shape.steps, shape

    def hold(self, state: State, device: str, positive_noise: bool = False) -> None:
        """Refers to `state`, which is on `device`."""
        self.state, self.device, self.positive_noise = state, device, positive_noise

    def complete(self) -> State:
        """The state on its device, for reading: None is replaced by arrays of variances 0 or Jacobians 1."""
        mu, var, jcb = self.state
        if var is None:
            var = self._array.zeros(mu.shape)
        if jcb is None:
            if self._ones[0] != self.device or self._ones[1].size < mu.size:
                self._ones = self.device, self._array.place(np.ones(mu.size, np.float32))
            jcb = self._ones[1][: mu.size].reshape(mu.shape)
        return State(mu, var, jcb)

    def on(self, device: str) -> State:
        """The state on `device`: itself, or a copy."""
        if device == self.device:
            return self.state
        arrays = (None if a is None else self._array.to_host(a) for a in self.state)
        place = get_kernels(device).array.place
        return State(*(None if a is None else place(a) for a in arrays))

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
    def mu_a(self) -> np.ndarray:
        return self._array.visible(self.state.mu).reshape(-1)

    @mu_a.setter
    def mu_a(self, values: ArrayLike) -> None:
        self.state, self.positive_noise = self.state._replace(mu=self._shaped(values, "mu_a")), False

    @property
    def var_a(self) -> np.ndarray:
        if self.state.var is None:
            self.var_a = np.zeros(self.size, np.float32)
        return self._array.visible(self.state.var).reshape(-1)

    @var_a.setter
    def var_a(self, values: ArrayLike) -> None:
        self.state = self.state._replace(var=self._shaped(values, "var_a"))

    @property
    def jcb(self) -> np.ndarray:
        if self.state.jcb is None:
            self.jcb = np.ones(self.size, np.float32)
        return self._array.visible(self.state.jcb).reshape(-1)

    @jcb.setter
    def jcb(self, values: ArrayLike) -> None:
        self.state = self.state._replace(jcb=self._shaped(values, "jcb"))

    def _shaped(self, values: ArrayLike, what: str) -> Array:
        """The values where the states are, in memory of their own."""
        return self._array.place(np.array(flat_float32(values, what, self.size).reshape(self.state.mu.shape)))

    def __getstate__(self) -> dict:
        return self.__dict__ | {"state": self.on("cpu"), "device": "cpu", "_ones": NO_ONES}

    def get_name(self) -> str:
        return "BaseHiddenStates"


def refuse_negative_noise(states: BaseHiddenStates) -> None:
    """Raises ValueError if outputs in pairs [mean, noise variance] have negative noise variances.

    On a GPU, it looks only where the network does not end with `EvenExp`, as it would wait for the GPU.
    """
    if states.device == "cpu" or not states.positive_noise:
        noise = states.mu_a[1::2]
        if negative := np.count_nonzero(noise < 0):
            raise ValueError(
                f"outputs 1, 3, ... are noise variances, and {negative} of {len(noise)} are negative: end the network "
                "with EvenExp()"
            )


class BaseDeltaStates(OnDevice):
    """Innovation deltas of a batch of units: the posterior of a unit N(m, s) is (m + s delta_mu, s + s^2 delta_var).

    Attributes:
        delta_mu, delta_var: flat float32 arrays of block_size x actual_size values, assignable. From a GPU they are
            read-only copies.
        outdated: whether the deltas belong to an earlier batch: the network was called, and the deltas have not been
            accessed since. `backward` refuses such deltas.
    """

    outdated = False
    prepared: tuple | None = None  # views that a likelihood made of this memory and of a state, and both of these

    def __init__(self, size: int | None = None, block_size: int | None = None):
        self.memory = self._array.zeros((2, 0))
        self.set_size(size or 0, block_size or 1)

    def set_size(self, new_size: int, new_block_size: int) -> str:
        """Makes room for `new_size` values in `new_block_size` samples; memory is kept when it is large enough."""
        units = _units(new_size, new_block_size)
        if self.memory.shape[1] < new_size:
            self.memory = self._array.zeros((2, new_size))
        self.block_size, self.actual_size = new_block_size, units
        return f"{new_size} values, {new_block_size} samples"

    def check(self, batch: int, units: int) -> None:
        """Raises an error if the deltas do not belong to the last batch, of `batch` samples of `units` units each."""
        if batch == self.size == 0:
            return
        if (self.block_size, self.actual_size) != (batch, units):
            held = f"{self.block_size} x {self.actual_size}"
            none = "" if self.size else ". A network computes the deltas of its inputs if its input_state_update = True"
            raise ValueError(f"input_delta_z_buffer holds {held} deltas, the batch has {batch} x {units}{none}")
        if self.outdated:
            raise RuntimeError(
                "input_delta_z_buffer was not filled since the network was called: its deltas are of an earlier batch. "
                "OutputUpdater.update() and set_delta_z() fill it; reset_zeros() says that nothing was observed"
            )

    def refuse_step(self) -> None:
        """Raises RuntimeError if the deltas belong to the last batch; called when no backward pass has read them."""
        if not self.outdated:
            raise RuntimeError(
                "step() while the deltas at the output wait for a backward pass: call backward() first, which makes "
                "those of the parameters. To leave the batch out, call forward again, or drop_deltas() of the network"
            )

    def move(self, device: str) -> None:
        """Moves the deltas to `device`."""
        if device != self.device:
            memory = self._array.to_host(self.memory)
            self.device = device
            self.memory, self.prepared = self._array.place(memory), None

    @property
    def size(self) -> int:
        return self.block_size * self.actual_size

    @property
    def arrays(self) -> tuple[Array, Array]:
        """Deltas of means and of variances on their device, each (block_size, actual_size), for reading and writing."""
        self.outdated = False
        shape = (self.block_size, self.actual_size)
        return self.memory[0, : self.size].reshape(shape), self.memory[1, : self.size].reshape(shape)

    @property
    def delta_mu(self) -> np.ndarray:
        return self._array.visible(self.arrays[0].reshape(-1))

    @delta_mu.setter
    def delta_mu(self, values: ArrayLike) -> None:
        self._array.copy(flat_float32(values, "delta_mu", self.size), self.arrays[0].reshape(-1))

    @property
    def delta_var(self) -> np.ndarray:
        return self._array.visible(self.arrays[1].reshape(-1))

    @delta_var.setter
    def delta_var(self, values: ArrayLike) -> None:
        self._array.copy(flat_float32(values, "delta_var", self.size), self.arrays[1].reshape(-1))

    def copy_from(self, source: "BaseDeltaStates", num_data: int = -1) -> None:
        """Copies the deltas of `source`: all of them, or the first `num_data` values."""
        n = source.size if num_data < 0 else num_data
        if n > source.size:
            raise ValueError(f"cannot copy {n} deltas from a buffer of {source.size}")
        if num_data < 0:
            self.set_size(source.size, source.block_size)
        elif n > self.size:
            raise ValueError(f"cannot copy {n} deltas into a buffer of {self.size}")
        outdated = source.outdated  # reading `delta_mu` clears it
        self._array.copy(source.delta_mu[:n], self.memory[0, :n])
        self._array.copy(source.delta_var[:n], self.memory[1, :n])
        self.outdated = source.outdated = outdated

    def reset_zeros(self) -> None:
        """Makes all deltas zero: nothing was observed."""
        self.outdated = False
        self._array.clear(self.memory)

    def __getstate__(self) -> dict:
        return self.__dict__ | {"memory": self._array.to_host(self.memory), "device": "cpu", "prepared": None}

    def get_name(self) -> str:
        return "BaseDeltaStates"
