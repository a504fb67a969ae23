"""The base of all likelihoods: deltas of the outputs of a network, and checks of observations."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.arrays import to_numpy
from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Array, Delta, State
from pytagi_ddp.likelihoods.prediction import Prediction, observed_as, optimize
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.core.state import UNKNOWN, Shape, by_step, check_samples
from pytagi_ddp.nn.core.unpickled import writable
from pytagi_ddp.validate import as_numbers, check_variances, flat_float32

if TYPE_CHECKING:
    from typing_extensions import Self

ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
MISSING = -1  # as a class
IGNORED = 255  # as a class in the images of other programs
MOST = float(np.finfo(np.float32).max)
SCALES = (1e-9, 1e9)  # bounds of a scale: multiples of the median and the largest deviation, see `Likelihood._units`
SQUARES = (1e-18, 1e18)  # scales whose squares float32 holds
SCAN = np.log(10)  # distance of the values that are tried first, in logarithms of parameters
STEPS = {"eps": 1e-5}  # differences for slopes of the log-likelihood


@dataclass(frozen=True)
class Outputs:
    """Outputs of the last batch, a row for each sample or time step, and the memory of their deltas.

    Attributes:
        samples: batch size. first, width: the columns that a likelihood reads and writes.
        shape: how the outputs of a sample are arranged, if a network says it.
    """

    kernels: Kernels
    state: State
    delta: Delta
    samples: int
    first: int
    width: int
    shape: Shape = UNKNOWN

    @property
    def rows(self) -> int:
        return len(self.state.mu)

    def observe(self, kind: str, y: np.ndarray, a: ArrayLike, b: ArrayLike, weight: ArrayLike) -> None:
        """Runs the kernel `kind` for observations and parameters, rows x width values each, or one for all."""
        place = self.kernels.array.place
        first, second = (place(part if part is ONE else flat_float32(part, "parameters")) for part in (a, b))
        weights = place(self.weights(weight, self.width))
        observed = place(y.reshape(self.rows, self.width))
        self.kernels.likelihood.observe(kind, self.state, observed, first, second, weights, self.first, self.delta)

    def weights(self, weight: ArrayLike, each: int) -> np.ndarray:
        """The weights as one number for all observations, or one for each of rows x `each`.

        Raises:
            ValueError: as `spread`, or a weight that is negative or not finite.
        """
        if isinstance(weight, float | int) and 0 <= weight <= MOST:
            return ONE if weight == 1 else one(weight)
        given = to_numpy(weight, "weight")
        weights = flat_float32(given, "weight")
        if not np.all((weights >= 0) & np.isfinite(weights)):
            raise ValueError("weight must not be negative, NaN or infinite (0 leaves an observation out)")
        return self.spread(weights.reshape(given.shape), "weight", each)

    def spread(self, values: np.ndarray, what: str, each: int) -> np.ndarray:
        """`values` as one number for all observations, or one for each of rows x `each`; flat.

        Raises:
            ValueError: neither one, nor one for each sample, row or observation; or the first of several dimensions
                counts neither samples nor rows.
        """
        whole = self.rows * each
        if values.size not in (1, self.samples, self.rows, whole):
            raise ValueError(
                f"{what} must be one number, or one for each of {self.samples} samples or {whole} observations, "
                f"got {values.size}"
            )
        if values.size > 1:
            self.check_samples(values, what)
        flat = values.reshape(-1)
        return flat if flat.size in (1, whole) else np.repeat(flat, whole // flat.size)

    def numbers(self, y: ArrayLike, what: str = "y", infinite: bool = False) -> np.ndarray:
        """Observations as flat float32, rows x width.

        Raises:
            ValueError: a wrong number or shape, or infinite ones. TypeError: not numbers.
        """
        values = to_numpy(y, what)
        if values.size != (size := self.rows * self.width):
            remedy = ""
            if values.size == self.samples * self.width:
                remedy = self._of_last_step("NaN")
            elif isinstance(y, tuple) and values.size == 2 * size:
                remedy = "; a tuple (y, var) is observed by Gaussian, and (low, high) by Censored"
            elif infinite and values.size == 2 * size:  # of Censored
                remedy = "; intervals are a tuple (low, high) of two arrays"
            raise ValueError(
                f"{what} must hold {size} values ({self._counted} x {self.width} outputs), got {values.size} in the "
                f"shape {values.shape}{remedy}"
            )
        flat = flat_float32(values, what)
        self.check_samples(values, what)
        if not infinite and np.isinf(flat).any():
            raise ValueError(f"{what} holds infinite observations (NaN marks a missing one)")
        return flat

    def labels(self, y: ArrayLike, classes: int) -> np.ndarray:
        """Classes as flat int32, one for each row and `MISSING` for NaN.

        Raises:
            ValueError: a wrong number or shape, or a class out of range. TypeError: not whole numbers.
        """
        values = to_numpy(y, "y")
        flat_integers = values.dtype.kind == "i" and values.shape == (self.rows,) and values.flags.c_contiguous
        if flat_integers and values.min() >= MISSING and values.max() < classes:  # the common case
            return values if values.dtype == np.int32 else values.astype(np.int32)
        if values.size != self.rows:
            of_ones = values.size == self.rows * classes and values.shape[-1] == classes
            remedy = "; of rows with a 1 at the class give y.argmax(-1)" if of_ones else ""
            if values.size == self.samples:
                remedy = self._of_last_step("-1")
            raise ValueError(
                f"y must hold one class for each of {self._counted}, got {values.size} in the shape {values.shape}"
                f"{remedy}"
            )
        self.check_samples(values, "y")
        flat = values.reshape(-1)
        if flat.dtype.kind == "f":
            flat = np.where(np.isnan(flat), MISSING, flat)
            if np.any(flat != np.floor(flat)):
                raise TypeError("y must hold classes, whole numbers from 0 on (or NaN or -1: missing), got fractions")
        if flat.size and not (flat.min() >= MISSING and flat.max() < classes):
            raise ValueError(
                f"y must hold classes from 0 to {classes - 1} (-1: missing), got {flat.min()} to {flat.max()}"
                f"{remedy_of_labels(flat, classes)}"
            )
        return np.ascontiguousarray(flat, np.int32)

    @property
    def _counted(self) -> str:
        pixels = self.shape.pixels
        steps = f"pixels, {self.samples} x {pixels[0]} x {pixels[1]}" if pixels else "time steps"
        return f"{self.rows} {'samples' if self.rows == self.samples else steps}"

    def _of_last_step(self, missing: str) -> str:
        if self.shape.pixels:
            return ""
        return f"; for the last step alone give the others {missing}, or the last recurrent layer last_timestep=True"

    def check_samples(self, values: np.ndarray, what: str) -> None:
        check_samples(values.shape, what, self.samples, self.rows, self.shape)


class Likelihood(ABC):
    """An observation model p(y | z) of a network's outputs z.

        net(x)
        likelihood.observe(net, y)
        net.backward()
        net.step()
        prediction = likelihood.predict(net, x)

    Its settings can be assigned, as in `likelihood.sigma = 0.1`.

    Attributes:
        outputs: number of outputs of a row (a sample, or a time step of it) that one observation uses; None: each
            output has its own observation.
        noise_parameters: arguments that `fitted` estimates, by name, with the bounds of their estimates. Those of sigma
            and scale are multiples of deviations, see `fitted_to`.
    """

    outputs: int | None = None
    noise_parameters: ClassVar[Mapping[str, tuple[float, float]]] = {}

    def observe(self, net: Any, y: Any, weight: ArrayLike = 1.0) -> None:
        """Fills the deltas at the output of `net`, which has been called.

            dm = w J d log Z/dm,    ds = w J^2 d^2 log Z/dm^2

        A weight multiplies the deltas. For small steps this is the power w of the likelihood. Where one observation
        tells much (s is large compared with the noise), w > 1 overshoots: the mean goes beyond the observation. For the
        exact power, divide the noise variance of a `Gaussian` by w.

        Args:
            net: a `Sequential`, `DDPSequential`, `FSDPSequential`, `PipelineSequential` (where the outputs are on
                another rank, nothing happens) or `DataParallel`.
            y: observations for each sample, or each time step of it; the class has the details. NaN, or the class -1,
                is a missing one: its outputs get zero deltas.
            weight: w, how often an observation counts: a number, or one for each sample or observation.

        Raises:
            ValueError: a wrong number, shape or value of observations or weights, or outputs that do not fit.
            TypeError: not numbers, or not a network.
            RuntimeError: the network has not been called, or `predict` was called since.
        """
        try:
            states, deltas = net.output_z_buffer, net.input_delta_z_buffer
        except AttributeError:
            raise TypeError(f"observe takes a network first, got {type(net).__name__}") from None
        network = getattr(net, "model", net)
        passes = getattr(network, "passes", None)
        if passes is not None and network.training and passes.evaluated:
            raise RuntimeError("predict was called since net(x), or net(x) in evaluation mode: call net(x) again")
        self.update(states, y, deltas, weight)

    def update(
        self, output_states: BaseHiddenStates, y: Any, delta_states: BaseDeltaStates, weight: ArrayLike = 1.0
    ) -> None:
        """As `observe`, between buffers: for `forward_backward` of a `PipelineSequential`.

        Args:
            output_states: the network's `output_z_buffer`. delta_states: its `input_delta_z_buffer`; gets the deltas.
            y, weight: as in `observe`.

        Raises:
            ValueError, TypeError, RuntimeError: as `observe`.
        """
        states, deltas = output_states, delta_states
        if states.elsewhere or self._express(states, y, deltas, weight):
            return
        if not states.block_size:
            deltas.set_size(0, 0)
            deltas.outdated = False
            return
        outputs = self._outputs(states, deltas)
        try:
            self._observe(outputs, y, weight)
        except BaseException:
            deltas.outdated = True
            raise

    def check_observations(self, y: Any, samples: int, shape: Shape) -> None:
        """Raises what `observe` raises if observations are out of range, before there are outputs.

        Args:
            y: as in `observe`. samples: their number. shape: of the outputs of a sample.

        Raises:
            ValueError, TypeError: as `observe`.
        """
        width = shape.size // shape.steps
        self.check_outputs(width)
        nothing = np.broadcast_to(np.float32(0), (samples * shape.steps, width))  # takes no memory
        state, delta = State(nothing, nothing), Delta(nothing, nothing)
        self._checked(Outputs(get_kernels("cpu"), state, delta, samples, 0, width, shape), y)

    def _checked(self, outputs: Outputs, y: Any) -> Any:
        """The observations as the kernels take them; raises ValueError if they are out of range."""
        return y

    def _express(self, states: BaseHiddenStates, y: Any, deltas: BaseDeltaStates, weight: ArrayLike) -> bool:
        """The fast path of `update` for its common case; returns whether it has made the update."""
        return False

    def _outputs(self, states: BaseHiddenStates, deltas: BaseDeltaStates) -> Outputs:
        """Outputs to observe, with room for their deltas on their device."""
        state, steps, batch = states.state, states.seq_len, states.block_size
        if (kept := deltas.prepared) is not None:
            layout = steps, states.device, deltas.block_size, deltas.actual_size
            if kept[0] is state and kept[1] is deltas.memory and kept[2] == layout:  # as replayed passes have them
                self.check_outputs(kept[3].width)
                deltas.outdated = False
                return kept[3]
        size = states.size
        if not size:
            raise RuntimeError("there is no output to observe yet: call the network first, as in net(x)")
        kernels = get_kernels(states.device)
        if deltas.device != states.device:
            deltas.move(states.device)
        deltas.set_size(size, batch)
        whole, delta = by_step(states.complete(), steps), by_step(Delta(*deltas.arrays), steps)
        width = whole.mu.shape[1]
        self.check_outputs(width)
        outputs = Outputs(kernels, whole, delta, batch, 0, width, states.shape)
        deltas.prepared = state, deltas.memory, (steps, states.device, batch, deltas.actual_size), outputs
        return outputs

    def check_outputs(self, width: int) -> None:
        """Raises ValueError if the likelihood does not fit this number of outputs."""
        if self.outputs is not None and width != self.outputs:
            raise ValueError(f"{type(self).__name__} needs {self.outputs} outputs, the network has {width}")

    def predict(self, net: Any, x: ArrayLike, batch_size: int = 256, var_x: ArrayLike | None = None) -> Prediction:
        """The distribution of observations at x: `prediction` of the moments of `net.predict`.

        Args:
            x, batch_size, var_x: as in `Sequential.predict`.
        """
        if not hasattr(net, "predict"):
            raise TypeError(f"predict takes a network first, got {type(net).__name__}")
        return self.prediction(*net.predict(x, batch_size, var_x))

    def prediction(self, mu: ArrayLike, var: ArrayLike) -> Prediction:
        """The distribution of observations for outputs with the means `mu` and variances `var`.

        Args:
            mu, var: (..., outputs), as `net.predict` returns them.
        """
        return self._prediction(*self._moments(mu, var))

    def _moments(self, mu: ArrayLike, var: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Moments of outputs as float64, checked."""
        means, variances = (np.asarray(part, np.float64) for part in (mu, var))
        if means.ndim < 2 or means.shape != variances.shape:
            raise ValueError(f"mu and var must have one shape (samples, outputs), got {means.shape}, {variances.shape}")
        self.check_outputs(means.shape[-1])
        return means, variances

    def fitted(
        self,
        net: Any,
        x: ArrayLike,
        y: Any,
        weight: ArrayLike = 1.0,
        batch_size: int = 256,
        var_x: ArrayLike | None = None,
    ) -> Self:
        """A likelihood of this kind whose noise fits held-out data: `fitted_to` of the moments of `net.predict`.

            likelihood = Gaussian()
            for epoch in range(epochs):
                ...  # one epoch of training
                likelihood = likelihood.fitted(net, x_held_out, y_held_out)

        Do not use the training data, because the means already fit them. If the output of a linear model has the
        variance s at a training sample, the mean square of its residual is v - s, but the model expects v + s. So the
        estimate of the noise variance v would be too small by about 2 s.

        Args:
            x, batch_size, var_x: as in `Sequential.predict`. Ranks that train together should give the same data, so
                that they get the same noise.
            y, weight: as in `fitted_to`.

        Raises:
            ValueError, TypeError, FloatingPointError: as `fitted_to` and `Sequential.predict`.
        """
        mu, var = net.predict(x, batch_size, var_x)
        return self.fitted_to(mu, var, y, weight)

    def fitted_to(self, mu: ArrayLike, var: ArrayLike, y: Any, weight: ArrayLike = 1.0) -> Self:
        """A likelihood of this kind with the `noise_parameters` that make observations most probable.

            argmax of sum_i w_i log E[p(y_i | z_i)]/sum_i w_i,    z_i ~ N(m_i, s_i)

        The log-likelihood is that of `prediction(mu, var).log_prob(y)`, maximised over the logarithms of the parameters
        within their bounds: first over powers of ten, for one parameter after the other, then by L-BFGS-B. Bounds of
        sigma and scale are 1e-9 times the median and 1e9 times the largest of the deviations sqrt((y_i - m_i)^2 + s_i)
        that are not 0, so any unit of y will do; they stay between 1e-18 and 1e18, whose squares float32 holds. If an
        estimate is at its upper bound, use a likelihood without heavy tails (`StudentT`) or without overdispersion
        (`NegativeBinomial`). If sigma is near 0, the variances of the outputs explain all errors: train longer, or
        count samples more often. This likelihood does not change.

        Args:
            mu, var: moments of the outputs, (samples, ..., outputs), of held-out data, see `fitted`.
            y, weight: observations and their weights, as in `observe`; missing ones do not count.

        Raises:
            TypeError: this kind has no noise parameters. ValueError: no observations, moments that are not finite,
                impossible observations, deviations beyond 1e-18 to 1e18, or errors of `observe`.

        Source: MacKay (1992), "Bayesian interpolation", for the maximum of the evidence (type-II maximum likelihood);
        Byrd, Lu, Nocedal & Zhu (1995), SIAM J. Sci. Comput. 16, for L-BFGS-B.
        """
        means, variances = self._moments(mu, var)
        if not (np.isfinite(means).all() and np.isfinite(variances).all()):
            raise ValueError("mu and var must be finite, and some are NaN or infinite")
        check_variances(variances, "var")
        return self._fitted_to(means, variances, y, weight)

    def state_dict(self) -> dict[str, Any]:
        """The kind and the `noise_parameters`, as JSON can hold them."""
        noise = {name: np.asarray(getattr(self, name)).tolist() for name in self.noise_parameters}
        return {"kind": type(self).__name__, **noise}

    def with_state_dict(self, state_dict: Mapping[str, Any]) -> Self:
        """A likelihood with the `noise_parameters` of another one of its kind. This likelihood does not change.

        Args:
            state_dict: what `state_dict` returned.

        Raises:
            ValueError: another kind, or parameters that are out of range. TypeError: not numbers.
        """
        noise = dict(state_dict)
        if (kind := noise.pop("kind", None)) != type(self).__name__ or noise.keys() != self.noise_parameters.keys():
            raise ValueError(f"this is the state of a {kind}({', '.join(noise)}), and not of a {self!r}")
        return self._with(**noise) if noise else self

    def _fits(self, y: Any) -> bool:
        """Whether these observations depend on noise parameters."""
        return bool(self.noise_parameters)

    def _fitted_to(self, mu: np.ndarray, var: np.ndarray, y: Any, weight: ArrayLike) -> Self:
        """`fitted_to` for checked float64 moments."""
        if not self._fits(y):
            to = " to observations (y, var)" if self.noise_parameters else ""
            raise TypeError(f"{type(self).__name__} has no noise parameters that could be fitted{to}")
        nothing = f"there is no observation to fit {self!r} to"
        if not mu.size:
            raise ValueError(f"{nothing}: mu has the shape {mu.shape}")
        states = BaseHiddenStates(mu.size, len(mu))
        states.mu_a, states.var_a, states.seq_len = mu, var, prod(mu.shape[1:-1])
        outputs = self._outputs(states, BaseDeltaStates())
        self._observe(outputs, y, weight)  # refuses what `observe` refuses
        y = y if isinstance(y, tuple) else to_numpy(y, "y")
        logs = self._prediction(mu, var).log_prob(y)
        weights = outputs.weights(weight, logs.size // outputs.rows).astype(np.float64)
        counts = np.where(np.isnan(logs), 0, np.broadcast_to(weights, logs.size).reshape(logs.shape))
        known = counts > 0
        if not known.any():
            raise ValueError(f"{nothing}: all are missing, or have the weight 0")
        refuse_where(np.isinf(logs[known]), self, "what has a probability above 0")
        shares = counts[known] / counts.sum()

        def loss(free: np.ndarray) -> float:
            return -float(shares @ self._at(free)._prediction(mu, var).log_prob(y)[known])

        best, low, high = self._free(
            self._units(mu, var, y, known) if SCALES in self.noise_parameters.values() else ONE
        )
        best = np.clip(best, low, high)
        for k in range(best.size):  # far from its best value, the slope of a parameter may be 0
            steps = np.arange(np.ceil((low[k] - best[k]) / SCAN), np.floor((high[k] - best[k]) / SCAN) + 1)
            points = best + SCAN * steps[:, None] * (np.arange(best.size) == k)
            best = points[np.argmin([loss(point) for point in points])]
        bounds = np.stack([low, high], 1)
        return self._at(optimize().minimize(loss, best, method="L-BFGS-B", bounds=bounds, options=STEPS).x)

    def _units(self, mu: np.ndarray, var: np.ndarray, y: Any, known: np.ndarray) -> np.ndarray:
        """The median and the largest deviation of known observations that is not 0: the units of bounds of scales.

        Raises:
            ValueError: the median is beyond `SQUARES`.
        """
        sizes = np.hypot(self._deviations(mu, y), np.sqrt(var))[known]
        sizes = sizes[(sizes > 0) & np.isfinite(sizes)]
        if not sizes.size:
            return ONE
        median = np.median(sizes)
        if not SQUARES[0] < median < SQUARES[1]:
            raise ValueError(
                f"observations deviate from the outputs by about {median:.2g}, and float32 does not hold its square: "
                "choose another unit of y"
            )
        return np.array([median, sizes.max()])

    def _deviations(self, mu: np.ndarray, y: Any) -> np.ndarray:
        """Differences of observations and outputs; not finite where there is none."""
        return observed_as(y, mu) - mu

    def _free(self, units: np.ndarray = ONE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The logarithms of the `noise_parameters`, and their lower and upper bounds; those of scales have `units`."""
        given = self.noise_parameters.values()
        bounds = [np.clip(units * each, *SQUARES) if each is SCALES else np.array(each) for each in given]
        low, high = np.log(np.stack(bounds)).T
        return np.log([getattr(self, name) for name in self.noise_parameters]), low, high

    def _at(self, free: np.ndarray) -> Self:
        """This likelihood with the parameters given by `free`."""
        return self._with(**dict(zip(self.noise_parameters, np.exp(free).tolist(), strict=True)))

    def _with(self, **changes: Any) -> Self:
        return type(self)(**self._settings() | changes)

    def _settings(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        own = vars(self)
        return {name: own[name] for name in inspect.signature(type(self)).parameters if name in own}

    if not TYPE_CHECKING:  # otherwise mypy would accept assignments to unknown attributes

        def __setattr__(self, name: str, value: Any) -> None:
            """Assigns an attribute. A new value of a setting is checked, and all that depends on it follows.

            A subclass with a constructor of its own may assign twice in it, and there nothing follows.
            """
            made_by = getattr(type(self).__init__, "__module__", "")
            made = name in vars(self) and made_by.startswith(__name__.rpartition(".")[0])
            if made and name in self._settings():
                vars(self).update(vars(self._with(**{name: value})))
            elif made and name == "outputs":
                raise AttributeError(f"the outputs of a {type(self).__name__} are fixed: make a new one")
            else:
                super().__setattr__(name, value)

    @abstractmethod
    def _observe(self, outputs: Outputs, y: Any, weight: ArrayLike) -> None:
        """Writes the deltas of `outputs`."""

    @abstractmethod
    def _prediction(self, mu: np.ndarray, var: np.ndarray) -> Prediction:
        """`prediction` of checked float64 moments."""

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(writable(state))

    def __repr__(self) -> str:
        with np.printoptions(threshold=100):  # of the exposures of many samples some are shown
            settings = ", ".join(f"{name}={value!r}" for name, value in self._settings().items())
        return f"{type(self).__name__}({settings})"


def positive(name: str, owner: object, value: float, remedy: str = "") -> float:
    """`value` as a float.

    Args:
        remedy: what to do with an array.

    Raises:
        ValueError: it is not in `SQUARES`. TypeError: it is not a number.
    """
    if np.ndim(value):
        raise TypeError(
            f"{type(owner).__name__} needs one number as {name}, got an array of shape {np.shape(value)}{remedy}"
        )
    low, high = SQUARES
    return as_numbers(type(owner).__name__, f"[{low:g}, {high:g}]", **{name: value})[0]


def one(value: float | np.floating) -> Array:
    """A parameter that is one number for all observations."""
    return np.full(1, value, np.float32)


def remedy_of_labels(values: np.ndarray, classes: int) -> str:
    """What to give instead of labels that are out of range in a usual way; empty if it is none."""
    if values.max() == IGNORED >= classes:
        return "; if 255 is a missing label, give np.where(y == 255, -1, y.astype(int))"
    if values.max() == classes and not (values == 0).any():
        return "; if they count from 1, give y - 1"
    return ""


def refuse_where(bad: np.ndarray, owner: object, what: str, remedy: str = "") -> None:
    """Raises ValueError, with the number of bad observations and the remedy, if there are any."""
    count = int(np.count_nonzero(bad))
    if count:
        raise ValueError(
            f"{type(owner).__name__} observes {what}, and {count} of {bad.size} observations are not{remedy}"
        )
