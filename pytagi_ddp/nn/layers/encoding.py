"""Encoding of numbers by bins."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.kernels.tensors import Array
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import Fixed
from pytagi_ddp.nn.core.state import Delta, Lifetime, Shape, State, apply_jacobian, by_step
from pytagi_ddp.validate import LARGEST_FLOAT32, as_numbers

LARGEST = 2**24  # bins: float32 has all integers up to here
AS_IT_IS = (0.0, 1.0)  # edges of an input that is not encoded, and the default ends of a bin


class PiecewiseLinearEncoding(BaseLayer):
    """Encodes each input by bins. The bin between the edges e_k and e_k+1 has the output

        u_k = (z - e_k)/(e_k+1 - e_k), clipped to 0 from below and to 1 from above.

    The first bin is not clipped from below, and the last one not from above: beyond the edges, the encoding is linear.
    A dense layer after it learns a piecewise-linear function of each input. This helps with tables, whose targets often
    change within a small range of a column; quantiles of the column are the usual edges.

    For z ~ N(m, s), u_k is a clipped Gaussian. Its mean, variance and expected slope (the Jacobian) are exact. The
    dependence between bins of one input is neglected, as between all units.

    With `ends`, the output of a bin goes from `bottom` to `top` instead of 0 to 1: bottom + (top - bottom) u_k.

    With `values`, numbers that occur often have a unit of their own, after the bins of all inputs: it is `height` where
    the input is this number (up to 1e-6 of it, or of 1), else 0. So a network learns what is special about this number,
    as by one-hot encoding. With s > 0 the probability of a single number is 0, and so are the moments of its unit.

    In a sequence, (time steps, features) per sample, there are edges for each feature, and each time step is encoded.

    Args:
        edges: for each input, two or more increasing numbers; None: the input is not encoded.
        ends: for each input, (bottom, top) of each of its bins; None, for an input or for all: (0, 1).
        values: for each input, increasing numbers that have a unit; None, for an input or for all: none.
        height: output of the unit of a number where the input is this number.

    Raises:
        ValueError: edges or values that do not increase in float32 or are not finite, only one edge, no inputs, ends
            that are not finite or not as many as bins, a height that is not finite, or an input of another size.
            TypeError: edges, ends or values that are not numbers.

    Source: Gorishniy, Rubachev & Babenko (2022), "On embeddings for numerical features in tabular deep learning",
    NeurIPS. Moments: Huber (2020), "Bayesian perceptron", for clipped Gaussian units.
    """

    _setting_names = ("edges", "ends", "values", "height")
    replayable = True
    needs_variances = False
    gives_jacobian = True
    edges, ends, values, height = Fixed(), Fixed(), Fixed(), Fixed()

    def __init__(
        self,
        edges: Sequence[ArrayLike | None],
        ends: Sequence[ArrayLike | None] | None = None,
        values: Sequence[ArrayLike | None] | None = None,
        height: float = 1.0,
    ):
        super().__init__()
        self.edges = [None if some is None else _checked("edges", k, some, 2) for k, some in enumerate(edges)]
        if not self.edges:
            raise ValueError("PiecewiseLinearEncoding needs edges for at least one input, got none")
        self._bins = [1 if some is None else len(some) - 1 for some in self.edges]
        for name, given in (("ends", ends), ("values", values)):
            if given is not None and len(given) != len(self.edges):
                raise ValueError(
                    f"PiecewiseLinearEncoding has edges for {len(self.edges)} inputs, and {name} for {len(given)}"
                )
        nothing = [None] * len(self.edges)
        of_bins = [
            None if some is None else _checked_ends(k, some, self._bins[k]) for k, some in enumerate(ends or nothing)
        ]
        self.ends = of_bins if any(of_bins) else None
        numbers = [None if some is None else _checked("values", k, some, 1) for k, some in enumerate(values or nothing)]
        self.values = numbers if any(numbers) else None
        (self.height,) = as_numbers(self.name, f"[{-LARGEST_FLOAT32}, {LARGEST_FLOAT32}]", height=height)
        if self._units > LARGEST:
            raise ValueError(f"PiecewiseLinearEncoding has at most {LARGEST} bins and values, got {self._units}")
        self.in_shape, self.out_shape = Shape(len(self.edges)), Shape(self._units)

    @property
    def _units(self) -> int:
        return sum(self._bins) + sum(map(len, self._of_inputs()))

    @property
    def steps(self) -> int:
        return self.in_shape.size // len(self.edges)

    def default_input_shape(self) -> Shape:
        return Shape(len(self.edges))

    def features_by_step(self, features: int) -> int | None:
        return self._units if features == len(self.edges) else None

    def input_shape(self, shape: Shape) -> Shape:
        if len(self.edges) not in (shape.size, shape.features):
            raise ValueError(f"{self.name} has edges for {len(self.edges)} inputs, and cannot take an input of {shape}")
        return shape.ordered(channels_last=False)

    def infer_output(self, shape: Shape) -> Shape:
        return Shape.of_sequence(self.steps, self._units)

    def forward(self, state: State, saved: Saved) -> State:
        certain = state.var is None and saved.lifetime != Lifetime.USER  # the user reads variances
        out = State(saved.units("mu", state.batch), None) if certain else saved.output(state.batch)
        out = out._replace(jcb=saved.units("jcb", state.batch))
        saved.input = state = state if certain else saved.with_variance(state)
        rows, outputs = by_step(state, self.steps), by_step(out, self.steps)
        self.kernels.encoding.forward(rows, self._first(saved), saved.constant("units", self.constants), outputs)
        return out

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        into = None
        if saved.needs_input:
            into = saved.pool.take(saved.input.batch, self.in_shape.size)
            by_rows = by_step(delta, self.steps), self._first(saved), by_step(into, self.steps)
            self.kernels.encoding.backward(*by_rows)
            apply_jacobian(self.kernels, into, saved.input)
        saved.pool.give(delta)
        return into

    def _first(self, saved: Saved) -> Array:
        return saved.constant("first", lambda: np.cumsum([0, *self._bins], dtype=np.float32))

    def _of_inputs(self) -> list[list[float]]:
        """The values of each input."""
        return [some or [] for some in self.values or [None] * len(self.edges)]

    def constants(self) -> np.ndarray:
        """For each unit the number of its input, low, high, bottom, top, and the least and the largest u.

        For the unit of a number, low = high.
        """
        units = []
        for k, (edges, ends) in enumerate(zip(self.edges, self.ends or [None] * len(self.edges), strict=True)):
            edges, last = edges or AS_IT_IS, self._bins[k] - 1
            for j, (bottom, top) in enumerate(ends or [AS_IT_IS] * (last + 1)):
                bounds = 0.0 if j else -np.inf, 1.0 if j < last else np.inf
                units.append((k, edges[j], edges[j + 1], bottom, top, *bounds))
        for k, values in enumerate(self._of_inputs()):
            units += [(k, value, value, 0.0, self.height, 0.0, 1.0) for value in values]
        return np.array(units, np.float32).T.copy()

    def get_layer_info(self) -> str:
        return f"{self.name}({len(self.edges)}->{self._units})"


def _numbers(name: str, number: int, given: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise TypeError(f"{name}[{number}] of PiecewiseLinearEncoding must be numbers or None, got {given!r}") from None


def _checked(name: str, number: int, given: ArrayLike, least: int) -> list[float]:
    """The edges or values of an input, rounded to float32."""
    values = _numbers(name, number, given)
    if values.ndim != 1 or len(values) < least or not np.isfinite(values).all() or (np.diff(values) <= 0).any():
        raise ValueError(
            f"{name}[{number}] of PiecewiseLinearEncoding must be {'two' if least == 2 else 'one'} or more finite "
            f"numbers that increase in float32, or None, got {given!r}"
        )
    return values.tolist()


def _checked_ends(number: int, ends: ArrayLike, bins: int) -> list[list[float]]:
    """The ends of the bins of an input, rounded to float32."""
    values = _numbers("ends", number, ends)
    if values.shape != (bins, 2) or not np.isfinite(values).all():
        raise ValueError(
            f"ends[{number}] of PiecewiseLinearEncoding must be (bottom, top) of {bins} bins, all finite, got {ends!r}"
        )
    return values.tolist()
