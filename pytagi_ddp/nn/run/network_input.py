"""The input of a network: checks, and the memory that holds it until the backward pass."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.kernels.protocol import ArrayFunctions
from pytagi_ddp.nn.core.data_struct import BaseHiddenStates
from pytagi_ddp.nn.core.state import Array, Shape, State
from pytagi_ddp.validate import check_finite, flat_float32, round_up_variances

Check = Callable[[np.ndarray], None]
MISSING = ("error", "standard normal", "pass")
REMEDY = "; if NaN says that an input is missing, set net.missing_inputs = 'standard normal'"


def rows_of_samples(values: ArrayLike, what: str, shape: Shape, size: int | None = None) -> np.ndarray:
    """`values` of any library and dtype as float32 rows, one for each sample of this shape, maybe none.

    A flat array has sample after sample. In an array of more dimensions, the last ones are those of a sample:
    (channels, height, width) of an image, (time steps, features) of a sequence, or all units. The dimensions before
    them count samples. If an LSTM or attention layer would see a single time step, only one of them may be longer than
    1, because a second one is probably meant as time steps.

    Raises:
        ValueError: not a whole number of samples, not `size` values, or dimensions that are not those of samples.
        TypeError: values that are not real numbers.
    """
    array = to_numpy(values, what)
    rows = flat_float32(array, what, size)
    of_sample = shape.extents
    if rows.size % shape.size:
        expected = ", ".join(map(str, ("samples", *of_sample)))
        shapes = f": it has the shape {array.shape}, expected ({expected})" if array.ndim > 1 else ""
        raise ValueError(
            f"{what} holds {rows.size} values, not a whole number of samples of {shape.size} inputs{shapes}"
        )
    rows = rows.reshape(-1, shape.size)
    if array.ndim > 1 and array.shape != rows.shape:
        of_one = next((array.shape[k:] for k in range(1, array.ndim) if prod(array.shape[k:]) == shape.size), None)
        given, own = ([n for n in dims if n != 1] for dims in (of_one or (), shape.image or shape.sequence or ()))
        if of_one is None or (given != own and len(own) in (1, len(given))):
            if array.shape == (shape.image or shape.sequence):
                raise ValueError(f"{what} has the shape {array.shape} of one sample: add a batch axis, {what}[None]")
            if shape.of_one_step:
                raise ValueError(_one_step(what, array))
            of_other_size = Counter(n for n in of_sample if n != 1) - Counter(array.shape)
            advice = "" if of_other_size else "; transpose it, or pass what is in another shape flat"
            raise ValueError(
                f"{what} has the shape {array.shape}, and a sample is {shape}: these have to be its last dimensions"
                f"{advice}"
            )
        in_front = array.shape[: array.ndim - len(of_one)]
        if shape.of_one_step and sum(n > 1 for n in in_front) > 1:
            raise ValueError(_one_step(what, array))
    return rows


def _one_step(what: str, array: np.ndarray) -> str:
    return (
        f"{what} has the shape {array.shape}, and this network takes one time step at a time: give the layers "
        "that are to see several steps their number (seq_len), or pass samples of one step, as 2 dimensions"
    )


def moments_of_samples(
    mu_x: ArrayLike, var_x: ArrayLike | None, what: str, shape: Shape
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows of means, called `what` in errors, and of as many variances; None stays None."""
    mu = rows_of_samples(mu_x, what, shape)
    return mu, None if var_x is None else rows_of_samples(var_x, "var_x", shape, mu.size)


class NetworkInput:
    """Checks the input of a network, and keeps it for the backward pass of the first layer.

    Args:
        shape: shape of a sample. array: the array functions of the network's device. device: its name.
        checks: the `BaseLayer.check_input` of all layers that have one.
    """

    def __init__(self, shape: Shape, array: ArrayFunctions, device: str, checks: Sequence[Check]):
        self._shape, self._array, self._device, self._checks = shape, array, device, checks
        self._size = size = shape.size
        self._mu: Array = array.empty((0, size))
        self._var: Array = array.empty((0, size))
        self._states: dict[tuple[int, bool], State] = {}

    def state(
        self, mu_x: ArrayLike | BaseHiddenStates, var_x: ArrayLike | None = None, missing: str = "error"
    ) -> State:
        """The input as a batch, maybe of no samples. Arguments and errors are those of `Sequential.forward`.

        missing: `missing_inputs` of the network.
        """
        if isinstance(mu_x, BaseHiddenStates):
            if mu_x.actual_size != self._size:
                raise ValueError(f"the network takes {self._size} inputs, the other network gives {mu_x.actual_size}")
            if var_x is not None:
                raise ValueError("the buffer of another network has its variances in it: leave var_x out")
            return mu_x.on(self._device)
        mu, var = self.moments(mu_x, var_x, missing)
        state = self._kept(len(mu), var is not None)
        self._array.copy(mu, state.mu)
        if var is not None:
            self._array.copy(var, state.var)
        return state

    def moments(self, mu_x: ArrayLike, var_x: ArrayLike | None, missing: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows of means and variances for the first layer; errors are those of `Sequential.forward`."""
        given, var = moments_of_samples(mu_x, var_x, "mu_x", self._shape)
        mu = given
        if not len(mu):
            return mu, var
        if missing != "error" and (nan := np.isnan(mu)).any():
            check_finite(np.where(nan, 0, mu), "mu_x")
            if missing == "standard normal":
                mu, var = np.where(nan, 0, mu), np.where(nan, 1, 0 if var is None else var)
        else:
            check_finite(mu, "mu_x", REMEDY)
        if var is not None:
            check_finite(var, "var_x")
            var = round_up_variances(var, "var_x")
        for check in self._checks:
            check(given)  # before NaN is replaced: an Embedding must not read it as a category
        return mu, var

    def _kept(self, batch: int, with_var: bool) -> State:
        """The memory of a batch: the same object for the same size, until the memory grows."""
        if len(self._mu) < batch:
            self._mu = self._array.empty((batch, self._size))
            self._states.clear()
        if with_var and len(self._var) < batch:
            self._var = self._array.empty((batch, self._size))
            self._states.clear()
        state = self._states.get((batch, with_var))
        if state is None:
            if len(self._states) > 100:  # a program that keeps changing its batch size
                self._states.clear()
            state = State(self._mu[:batch], self._var[:batch] if with_var else None)
            self._states[batch, with_var] = state
        return state

    @property
    def nbytes(self) -> int:
        return self._mu.nbytes + self._var.nbytes
