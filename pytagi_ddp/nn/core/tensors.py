"""The table of a network's tensors, which steps, state dicts, files, checkpoints and ranks use.

The table is `net.arena.tensors`: a `TensorSpec` for each tensor, made once per network. A file format is a function of
the table and its values (`nn.files.state_dicts`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytagi_ddp.validate import check_finite, check_variances

Kind = Literal["learned", "running", "carried"]
FIELDS = ("mu_w", "var_w", "mu_b", "var_b")  # tensors of kind "learned" of a layer


@dataclass(frozen=True)
class TensorSpec:
    """A range [start, stop) of the values of one tensor of a network, or the whole tensor.

    For state that is not learnt, a layer sets field, size, kind, initial and variance (`state_tensors`), and the table
    sets the rest. `len` is the number of values in the range.

    Attributes:
        field: name of the tensor, unique in its layer and kind. Parameters: "mu_w", "var_w", "mu_b" or "var_b".
        size: number of values of the whole tensor.
        kind: "learned": means or variances of parameters. "running": statistics of the data, equal on every rank,
            updated in training, saved with the parameters. "carried": memory from one call to the next, such as that of
            a recurrent layer; different on each rank, saved on request, and reset by `Sequential.reset_lstm_states`. A
            layer reads and writes it by `Saved.carried` and `Saved.carry`.
        initial: value in a new network; not of parameters.
        variance: whether the values are variances, which must not be negative.
        layer: key of the layer in a state dict, "Linear.2". leaf: number of the layer in `arena.leaves`.
        steps: time steps at which the layer uses its parameters, see `BaseLayer.steps`.
        offset: position of the tensor among all of its kind: in `arena.statistics`, in `arena.carried`, or in each row
            of the parameters, where the variance of a parameter has the position of its mean.
        start, stop: the range.
        prior: mean and variance of the prior of the parameters in the range, in `prior_pieces`; (0, 0) elsewhere.
        array: the memory of the range on this rank, if it was requested.
        saved: whether this rank writes the range into checkpoints. One of the ranks that hold the same range does.
    """

    field: str
    size: int
    kind: Kind
    initial: float = 0.0
    variance: bool = False
    layer: str = ""
    leaf: int = 0
    steps: int = 1
    offset: int = 0
    start: int = 0
    stop: int = 0
    prior: tuple[float, float] = (0.0, 0.0)
    array: Any = dataclasses.field(default=None, compare=False)
    saved: bool = True

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def entry(self) -> str:
        """Key of the entry of a state dict that has the tensor: "Linear.2", "BatchNorm2d.3.running"."""
        return self.layer if self.kind == "learned" else f"{self.layer}.{self.kind}"

    @property
    def name(self) -> str:
        """Name of the tensor in files: "Linear.2/mu_w"."""
        return f"{self.entry}/{self.field}"

    @property
    def begin(self) -> int:
        """Position of the first value of the range among all of its kind."""
        return self.offset + self.start

    @property
    def end(self) -> int:
        """Position after the last value of the range."""
        return self.offset + self.stop

    def clipped(self, begin: int, end: int) -> TensorSpec:
        """The part at the positions [begin, end), perhaps empty, with its part of `array`."""
        start = min(max(self.start, begin - self.offset), self.stop)
        stop = max(start, min(self.stop, end - self.offset))
        array = None if self.array is None else self.array[start - self.start : stop - self.start]
        return self.having(start=start, stop=stop, array=array)

    def having(self, **changes: Any) -> TensorSpec:
        """A copy with other values of some attributes; `dataclasses.replace` takes ten times as long."""
        new = object.__new__(TensorSpec)
        new.__dict__.update(self.__dict__, **changes)
        return new

    def check(self, values: np.ndarray, what: str) -> None:
        """Raises ValueError, beginning with `what`, for values that are not finite, or negative variances."""
        check_finite(values, what)
        if self.variance:
            check_variances(values, what)


def table_of(leaves: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """The table: parameters, running state and carried state of each of `leaves`, layers by their keys, in order."""
    ends: dict[Kind, int] = {"learned": 0, "running": 0, "carried": 0}
    return tuple(spec for k, (key, leaf) in enumerate(leaves.items()) for spec in _placed(k, key, leaf, ends))


def _placed(number: int, key: str, leaf: Any, ends: dict[Kind, int]) -> Iterator[TensorSpec]:
    """The tensors of a layer, after those that end at `ends`."""
    begin, of_weights, of_biases = ends["learned"], leaf.num_weights, leaf.num_biases
    if of_weights or of_biases:
        places = ((begin, of_weights), (begin + of_weights, of_biases))
        for k, field in enumerate(FIELDS):
            offset, size = places[k // 2]
            yield TensorSpec(field, size, "learned", 0.0, k % 2 == 1, key, number, leaf.steps, offset, 0, size)
    ends["learned"] += of_weights + of_biases
    for spec in sorted(leaf.state_tensors(), key=lambda spec: spec.kind == "carried"):
        yield spec.having(layer=key, leaf=number, offset=ends[spec.kind], stop=spec.size)
        ends[spec.kind] += spec.size
