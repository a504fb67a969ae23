"""The parameters and state of a network as a dictionary of arrays.

Loading has two phases in every format: `check` returns the new values and changes nothing, `put` sets them. Ranks that
share a network vote between the two.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.interrupts import held_back
from pytagi_ddp.listing import some
from pytagi_ddp.nn.core.network import Network
from pytagi_ddp.nn.core.tensors import FIELDS, TensorSpec
from pytagi_ddp.validate import flat_float32
from pytagi_ddp.warn import warn


class StateDict(dict[str, tuple[np.ndarray, ...]]):
    """Key of a layer -> (mu_w, var_w, mu_b, var_b), flat float32 arrays, empty where there are none.

    A key is `<layer name>.<place>`, as in pytagi: `Linear.2`, `Conv2d.main.3.0` (child 0 of the main block of layer
    3), `BatchNorm2d.shortcut.4.2`. Running statistics have the key `<key>.running`, as (mean, var, empty, empty); the
    state that a layer carries from call to call has the key `<key>.carried`. `==` compares all arrays.
    """

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, dict)
            and self.keys() == other.keys()
            and all(len(self[k]) == len(other[k]) and all(map(np.array_equal, self[k], other[k])) for k in self)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


Values = list[tuple[TensorSpec, np.ndarray]]  # tensors of a network, in its order, with their values on the host


def held(model: Network) -> Iterator[TensorSpec]:
    """The parameters and running statistics of a network that is whole on this rank, with their memory."""
    for spec in model.arena.tensors:
        if spec.kind != "carried" and len(spec):
            yield spec.having(array=model.arena.values(spec))


def without_cuda(key: str) -> str:
    """A key without the device: pytagi writes `LinearCuda.2` on a GPU."""
    return re.sub(r"^(\w+?)Cuda(?=\.)", r"\1", key)


def layer_of(key: str) -> str:
    """The key of the layer that an entry belongs to."""
    return re.sub(r"\.(running|carried)$", "", without_cuda(key))


def collect(model: Network, carried: bool = False) -> Values:
    """Copies of all values of the network."""
    host, arena = model.kernels.array.to_host, model.arena
    return [(spec, host(arena.values(spec))) for spec in arena.tensors if carried or spec.kind != "carried"]


def savable(model: Network, carried: bool = False) -> Values:
    """`collect`, after a check that the values can be loaded again.

    Raises:
        ValueError: values that cannot, such as NaN; names them.
    """
    values, problems = collect(model, carried), []
    for spec, array in values:
        try:
            spec.check(array, f"{spec.entry} {spec.field}")
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError(f"the network is not saved, because it could not be loaded again: {'; '.join(problems)}")
    return values


def by_entry(values: Iterable[tuple[TensorSpec, np.ndarray]]) -> StateDict:
    """Values of tensors as a state dict."""
    arrays: dict[str, list[np.ndarray]] = {}
    for spec, array in values:
        arrays.setdefault(spec.entry, []).append(array)
    empty = np.zeros(0, np.float32)
    return StateDict({entry: (*found, *[empty] * (len(FIELDS) - len(found))) for entry, found in arrays.items()})


def check(model: Network, values: dict[str, Any]) -> Values:
    """The tensors of the network that a state dict has, with copies of their new values, for `put`; changes nothing.

    The values are copied, because they may be views of this network. Running and carried state may be missing, as in
    pytagi's files.

    Raises:
        KeyError, ValueError, TypeError: values that the network cannot take; names the entry.
    """
    return [(spec, array.copy()) for spec, array in _checked(model, values)]


def check_file(model: Network, values: dict[str, Any], what: str) -> Values:
    """`check` of the values of the file `what`, without copies.

    Raises:
        ValueError: values that the network cannot take; names the file.
    """
    try:
        return _checked(model, values)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{what}: {error.args[0]}") from error


def put(model: Network, values: Values) -> None:
    """Sets the values of `check`; pending deltas are dropped."""
    with held_back():  # all values change, or none
        model.drop_deltas()
        for spec, array in values:
            model.kernels.array.copy(array, model.arena.values(spec))
        model.arena.keep_state()


def _checked(model: Network, values: dict[str, Any]) -> Values:
    """`check` without copies."""
    if not isinstance(values, Mapping):
        raise TypeError(f"a state dict is a dictionary of arrays by layer, got {type(values).__name__}")
    if strange := [key for key in values if not isinstance(key, str)]:
        raise TypeError(f"the keys of a state dict are texts such as 'Linear.0', got {strange[0]!r:.50}")
    given = {without_cuda(key): value for key, value in values.items()}
    checked: Values = []
    missing, misfits, unknown = [], [], []
    entries: dict[str, list[TensorSpec]] = {}
    for spec in model.arena.tensors:
        entries.setdefault(spec.entry, []).append(spec)
    for key, tensors in entries.items():
        if key not in given:
            missing += [key] if tensors[0].kind == "learned" else []
            unknown += [key.removesuffix(".running")] if tensors[0].kind == "running" else []
            continue
        try:
            parameters = model.arena.leaves[tensors[0].leaf].parameters
            checked += _fitting(key, tensors, given.pop(key), getattr(parameters, "weight_shape", None))
        except ValueError as error:
            misfits.append(str(error))
    if missing or given:
        parts = {"it lacks": missing, "it has no place for": sorted(given), "what does not fit": misfits}
        listed = "; ".join(f"{what} {some(names)}" for what, names in parts.items() if names)
        raise KeyError(f"the state dict is another network's: {listed}")
    if misfits:
        raise ValueError("; ".join(misfits))
    if unknown:
        warn(
            f"the running statistics of {some(unknown)} are not given, and stay as they are: compute them by update_bn"
        )
    return checked


def _fitting(
    key: str, tensors: Sequence[TensorSpec], value: Sequence[ArrayLike], weight_shape: tuple[int, ...] | None
) -> Values:
    """The values of an entry, without the empty arrays that it may end with."""
    names, expected = ", ".join(spec.field for spec in tensors), max(len(FIELDS), len(tensors))
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        raise TypeError(f"{key}: expected {expected} arrays ({names}), got {type(value).__name__}")
    if len(value) != expected:
        raise ValueError(f"{key}: expected {expected} arrays ({names}), got {len(value)}")
    found = []
    for spec, given in zip(tensors, value, strict=False):
        shape = weight_shape if spec.field in FIELDS[:2] else None
        array = flat_float32(given, f"{key} {spec.field}", spec.size, shape)
        spec.check(array, f"{key} {spec.field}")
        found.append((spec, array))
    for rest in value[len(tensors) :]:
        flat_float32(rest, f"{key}, behind {names}", 0)
    return found
