"""Deltas at the output of a network from observations."""

from math import prod

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.tensors import Delta, State
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates, refuse_negative_noise
from pytagi_ddp.nn.core.state import by_step, check_samples
from pytagi_ddp.validate import flat_float32
from pytagi_ddp.warn import warn


class OutputUpdater:
    """Turns observations into deltas at the output of a network.

    The noise of observations is given as variances, not as standard deviations. A NaN observation is missing: its
    output gets zero deltas, in every method. An infinite observation is an error.

    Args:
        model_device: the device of the network. If the network moves later, updates run on its new device.

    Source: Goulet, Nguyen & Amiri (2021), JMLR 22.
    """

    def __init__(self, model_device: str):
        self._express = get_kernels(model_device).output_update.express_update
        self.device = model_device

    def __repr__(self) -> str:
        return f"OutputUpdater({self.device!r})"

    def update(
        self,
        output_states: BaseHiddenStates,
        mu_obs: ArrayLike,
        var_obs: ArrayLike,
        delta_states: BaseDeltaStates,
    ) -> None:
        """One observation y ~ N(z, var_obs) for each output: dm = J (y - m)/(s + var_obs), ds = -J^2/(s + var_obs).

        Args:
            output_states: the network's `output_z_buffer`.
            mu_obs: observations, batch x outputs values, flat or with one dimension for the batch in front.
            var_obs: their variances, as many; or one number for all. If there are more, the first ones are used (as in
                pytagi), so that an array for a full batch also works for a smaller last batch.
            delta_states: the network's `input_delta_z_buffer`; receives the deltas.

        Raises:
            ValueError: wrong number or shape of values, an infinite observation, or a variance that is negative or NaN.
            TypeError: not numbers, or an argument that is not a buffer.
            RuntimeError: the network has not been called yet.

        Warns:
            UserWarning: more than twice as many variances as observations, with different values.
        """
        try:
            if output_states.elsewhere:
                return
            if self._express(output_states, mu_obs, var_obs, delta_states):
                return
        except AttributeError:
            _check_buffers("update", output_states, delta_states)
            raise
        if not _to_observe("update", output_states, delta_states, mu_obs):
            return
        size = output_states.size
        observed = State(_observations(mu_obs, size, output_states), _variances(var_obs, size, output_states))
        self._run("update", output_states, delta_states, observed)

    def update_using_indices(
        self,
        output_states: BaseHiddenStates,
        mu_obs: ArrayLike,
        var_obs: ArrayLike,
        selected_idx: ArrayLike,
        delta_states: BaseDeltaStates,
    ) -> None:
        """Observations of some outputs only, the same number n for each sample; the others get zero deltas.

        If outputs are sequences, (time steps, features) per sample, each time step counts as a sample.

        Args:
            output_states, delta_states: as in `update`.
            mu_obs, var_obs: batch x n observations and their variances, the latter as in `update`.
            selected_idx: batch x n output numbers, counted from 1 within a sample (hierarchical softmax). If a number
                occurs twice in a sample, its last observation counts.

        Raises:
            ValueError: wrong number of values, a bad value as in `update`, or an output number out of range.
            TypeError: as `update`.
        """
        if not _to_observe("update_using_indices", output_states, delta_states, mu_obs):
            return
        steps = output_states.seq_len
        batch, outputs = output_states.block_size * steps, output_states.actual_size // steps
        index = to_numpy(selected_idx, "selected_idx")
        check_samples(index.shape, "selected_idx", output_states.block_size, batch)
        index = index.reshape(-1)
        if index.size == 0 or index.size % batch:
            raise ValueError(f"selected_idx must hold the same number of outputs for {batch} samples, got {index.size}")
        if index.dtype.kind not in "iu" or index.min() < 1 or index.max() > outputs:
            raise ValueError(
                f"selected_idx must be integers from 1 to {outputs}, "
                f"got {index.dtype} from {index.min()} to {index.max()}"
            )
        n = index.size // batch
        means = _observations(mu_obs, index.size, output_states)
        observed = State(means, _variances(var_obs, index.size, output_states)).reshape(batch, n)
        places = index.astype(np.int32).reshape(batch, n) - 1
        self._run("update_using_indices", output_states, delta_states, observed, places)

    def update_heteros(self, output_states: BaseHiddenStates, mu_obs: ArrayLike, delta_states: BaseDeltaStates) -> None:
        """Observations whose noise variance the network predicts (AGVI): outputs in pairs [mean, noise variance].

        The last layers are Linear(..., 2 k) and `EvenExp`. Predictions: mean = mu[0::2], total variance =
        var[0::2] + mu[1::2].

        Args:
            output_states, delta_states: as in `update`.
            mu_obs: one observation for each pair.

        Raises:
            ValueError: an odd number of outputs, a negative noise variance (without `EvenExp`, nothing keeps it
                positive), wrong number of observations, or an infinite one.
            TypeError: as `update`.
        """
        if not _to_observe("update_heteros", output_states, delta_states, mu_obs):
            return
        if output_states.actual_size % 2:
            raise ValueError(f"update_heteros needs outputs in pairs, the network has {output_states.actual_size}")
        refuse_negative_noise(output_states)
        observed = State(_observations(mu_obs, output_states.size // 2, output_states), None)
        self._run("update_heteros", output_states, delta_states, observed)

    @staticmethod
    def _run(
        name: str, states: BaseHiddenStates, deltas: BaseDeltaStates, observed: State, *places: np.ndarray
    ) -> None:
        """Moves deltas and observations to the device of the states, and calls the kernel `name` there."""
        kernels = get_kernels(states.device)
        deltas.move(states.device)
        deltas.set_size(states.size, states.block_size)
        place = kernels.array.place
        observed = State(place(observed.mu), None if observed.var is None else place(observed.var))
        steps = states.seq_len
        output, delta = by_step(states.complete(), steps), by_step(Delta(*deltas.arrays), steps)
        getattr(kernels.output_update, name)(output, observed, *map(place, places), delta)


def _check_buffers(method: str, states: object, deltas: object) -> None:
    """Raises TypeError if `states` or `deltas` is not a buffer, as in a wrong order of arguments."""
    for buffer, kind, name in (states, BaseHiddenStates, "first"), (deltas, BaseDeltaStates, "last"):
        if not isinstance(buffer, kind):
            place = "output_z_buffer" if kind is BaseHiddenStates else "input_delta_z_buffer"
            raise TypeError(
                f"{method} takes the {place} of a network as its {name} argument, got {type(buffer).__name__}"
            )


def _to_observe(method: str, states: BaseHiddenStates, deltas: BaseDeltaStates, mu_obs: ArrayLike) -> bool:
    """Whether this rank has outputs to observe. For a batch without samples, the deltas are emptied.

    Raises:
        ValueError: there are observations for such a batch. TypeError: not buffers. RuntimeError: the network has not
            been called yet.
    """
    _check_buffers(method, states, deltas)
    if states.elsewhere:
        return False
    if not states.block_size:
        flat_float32(to_numpy(mu_obs, "mu_obs"), "mu_obs", 0)
        deltas.set_size(0, 0)
        deltas.outdated = False
        return False
    if not states.size:
        raise RuntimeError("there is no output to observe yet: call the network first, as in net(x)")
    return True


def _observations(values: ArrayLike, size: int, states: BaseHiddenStates) -> np.ndarray:
    values = to_numpy(values, "mu_obs")
    observations = flat_float32(values, "mu_obs", size)
    _check_order(values, "mu_obs", states)
    infinite = np.count_nonzero(np.isinf(observations))
    if infinite:
        raise ValueError(f"mu_obs: {infinite} of {size} observations are infinite (NaN marks a missing one)")
    return observations


def _check_order(values: np.ndarray, what: str, states: BaseHiddenStates) -> None:
    rows = states.block_size * states.seq_len
    check_samples(values.shape, what, states.block_size, rows, states.shape)


def _variances(values: ArrayLike, size: int, states: BaseHiddenStates) -> np.ndarray:
    values = to_numpy(values, "var_obs")
    variances = flat_float32(values, "var_obs")
    of_sample = size // states.block_size
    if values.ndim > 1 and prod(values.shape[1:]) not in (of_sample, of_sample // states.seq_len):
        raise ValueError(
            f"var_obs has the shape {values.shape}, and the first dimension counts samples, each of which has "
            f"{of_sample} observations: transpose it, or pass what is in another shape flat"
        )
    if values.size == size:
        _check_order(values, "var_obs", states)
    if values.ndim == 0:
        variances = np.repeat(variances, size)
    elif variances.size < size:
        raise ValueError(f"var_obs must hold {size} values, got {variances.size}")
    if variances.size > 2 * size and np.ptp(variances) > 0:  # fewer may be those of a full batch
        warn(
            f"var_obs has {variances.size} values, which differ, for {size} observations, and the first ones are used: "
            "give the variances of the samples of this batch, as in var_obs[rows]"
        )
    variances = variances[:size]
    if not np.all(variances >= 0):
        raise ValueError(f"var_obs are variances and must not be negative or NaN, the smallest is {variances.min()}")
    return variances
