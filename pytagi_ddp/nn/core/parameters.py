"""The parameters of one layer: named views into flat rows of means, variances and batch sums."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.kernels.protocol import ArrayFunctions
from pytagi_ddp.kernels.tensors import Array, Tensor
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.nn.core.tensors import FIELDS
from pytagi_ddp.nn.core.unpickled import writable
from pytagi_ddp.validate import check_finite, check_variances, flat_float32

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Part = Literal["w", "b"]  # weights or biases
Moment = Literal["mu", "var"]

REMEDY = "read it inside `with net.unshard():` of the FSDPSequential, on every rank, or in its state_dict()"


class ParametersNotHereError(RuntimeError):
    """Parameters or deltas were read that are not drawn yet, or of which this rank has only a part."""


class Parameters:
    """Weights and biases of a layer, as views into rows that may belong to the whole network.

    Args:
        rows: flat arrays of one length: weights, then biases. None, in a network in shards: the row is not on this rank
            (the batch sums, or the variances in a backward pass).
        weight_shape: shape of the weights; biases are flat.
        array: the array functions of the device that holds the rows; None: of the host.

    Attributes:
        w, b: the weights and the biases; None where there are no biases.
        no_deltas: True until the first write to the batch sums, which are zeros until then.
    """

    no_deltas = False

    def __init__(self, rows: Tensor, weight_shape: tuple[int, ...], array: ArrayFunctions | None = None):
        self.rows = rows
        self._array = array or get_kernels("cpu").array
        self.weight_shape = weight_shape
        self.num_weights = n = int(np.prod(weight_shape))
        self.num_biases = len(self) - n
        parts = slice(None, n), slice(n, None)
        w, b = (Tensor(*(None if row is None else row[part] for row in rows)) for part in parts)
        self._flat: dict[Part, Tensor] = {"w": w, "b": b}
        self.w = Tensor(*(None if row is None else row.reshape(weight_shape) for row in w))
        self.b = self._flat["b"] if self.num_biases else None

    @classmethod
    def from_prior(cls, prior: tuple[np.ndarray, ...], weight_shape: tuple[int, ...]) -> Parameters:
        """Parameters in new arrays on the host, from (mu_w, var_w, mu_b, var_b); deltas are zero."""
        mu_w, var_w, mu_b, var_b = prior
        mu, var = (np.concatenate([w, b]) if b.size else w for w, b in ((mu_w, mu_b), (var_w, var_b)))
        zeros = partial(np.zeros, mu.size, np.float32)  # takes physical memory only once it is written to
        drawn = cls(Tensor(mu, var, zeros(), zeros()), weight_shape)
        drawn.no_deltas = True
        return drawn

    def __len__(self) -> int:
        return self.rows.mu.size

    def detached(self) -> Parameters:
        """A copy on the host that shares no memory with the network."""
        rows = [np.zeros(len(self), np.float32) if row is None else self._array.to_host(row) for row in self.rows]
        return Parameters(Tensor(*rows), self.weight_shape)

    def __getstate__(self) -> tuple[Tensor, tuple[int, ...]]:
        return self.rows, self.weight_shape

    def __setstate__(self, state: tuple[Tensor, tuple[int, ...]]) -> None:
        self.__init__(*writable(state))  # type: ignore[misc]

    @property
    def views(self) -> tuple[Array, Array, Array, Array]:
        """mu_w, var_w, mu_b and var_b on their device, flat."""
        w, b = self._flat["w"], self._flat["b"]
        mu_w, var_w, mu_b, var_b = map(self._present, (w.mu, w.var, b.mu, b.var), FIELDS)
        return mu_w, var_w, mu_b, var_b

    def moments(self, part: Part, which: Moment) -> np.ndarray:
        """Means or variances, flat: on the CPU a view, from a GPU a read-only copy."""
        return self._array.visible(self._present(getattr(self._flat[part], which), f"{which}_{part}"))

    def _present(self, row: Array | None, name: str) -> Array:
        if row is None:
            raise ParametersNotHereError(f"{name} is not here, as this network lies in shards: {REMEDY}")
        return row

    def _sums(self, part: Part, which: Moment) -> tuple[Array, np.ndarray]:
        """Batch sums on their device, and the factor that turns them into deltas: s for means, s^2 for variances."""
        _, _, delta_mu_sum, delta_var_sum = self._flat[part]
        s = self.moments(part, "var")
        sums, factor = (delta_mu_sum, s) if which == "mu" else (delta_var_sum, s * s)
        return self._present(sums, f"delta_{which}_{part}"), factor

    def deltas(self, part: Part, which: Moment) -> np.ndarray:
        """s g or s^2 h, a new read-only array; `set_deltas` changes the sums."""
        sums, factor = self._sums(part, which)
        delta = factor * self._array.visible(sums)
        delta.flags.writeable = False
        return delta

    def set_moments(self, part: Part, which: Moment, values: ArrayLike) -> None:
        """Assigns means or variances.

        Raises:
            ValueError: wrong number of values, one that is not finite, or a negative variance.
        """
        name, own = f"{which}_{part}", getattr(self._flat[part], which)
        array = self._fitting(name, values, part)
        try:
            check_finite(array, name)
            if which == "var":
                check_variances(array, name)
        except ValueError as error:
            if isinstance(own, np.ndarray) and np.may_share_memory(array, own):  # `layer.var_w -= 1`
                raise ValueError(f"{error}. The operation has changed {name} in place: assign valid values") from None
            raise
        self._array.copy(array, own)

    def set_deltas(self, part: Part, which: Moment, values: ArrayLike) -> None:
        """Assigns (scaled) deltas.

        Raises:
            ValueError: wrong number of values.
        """
        array = self._fitting(f"delta_{which}_{part}", values, part)
        self.no_deltas = False
        sums, factor = self._sums(part, which)
        known = self.moments(part, "var") > 0  # a parameter without variance cannot change
        self._array.copy(np.divide(array, factor, where=known, out=np.zeros_like(factor)), sums)

    def _fitting(self, name: str, values: ArrayLike, part: Part) -> np.ndarray:
        size = self._flat[part].mu.size
        array = flat_float32(values, name, shape=self.weight_shape if part == "w" else (size,))
        if array.size != size:
            raise ValueError(f"{name} has {size} values, got {array.size}")
        return array


class AbsentParameters:
    """Takes the place of parameters that are not on this rank: it has their number, and raises an error for values.

    Args:
        weight_shape, num_biases: those of the absent parameters. why: the message of the error.
    """

    def __init__(self, weight_shape: tuple[int, ...], num_biases: int, why: str):
        self.weight_shape, self.num_weights, self.num_biases = weight_shape, math.prod(weight_shape), num_biases
        self._why = why

    def __len__(self) -> int:
        return self.num_weights + self.num_biases

    def __getattr__(self, name: str) -> Any:
        raise ParametersNotHereError(self.__dict__.get("_why", "parameters that are not here"))


class ParameterValues:
    """An attribute of layers such as `mu_w` or `delta_var_b`: an assignable flat array, empty without parameters."""

    def __init__(self, part: Part, which: Moment, deltas: bool = False):
        self._what, self._deltas = (part, which), deltas

    @overload
    def __get__(self, layer: None, owner: type) -> ParameterValues: ...
    @overload
    def __get__(self, layer: object, owner: type | None = None) -> np.ndarray: ...
    def __get__(self, layer: Any, owner: type | None = None) -> ParameterValues | np.ndarray:
        if layer is None:
            return self
        p: Parameters | None = layer.parameters
        if p is None:
            return np.zeros(0, np.float32)
        return p.deltas(*self._what) if self._deltas else p.moments(*self._what)

    def __set__(self, layer: Any, values: ArrayLike) -> None:
        p: Parameters | None = layer.parameters
        if p is None:
            raise AttributeError(f"{layer.get_layer_info()} has no parameters of its own")
        with layer._alone:
            if self._deltas:
                p.set_deltas(*self._what, values)
                return
            p.set_moments(*self._what, values)
            if layer._owner is not None:
                layer._owner.passes.invalidate(Change.PARAMETERS)
