"""What a network has learnt, as a dictionary of arrays: collected from it, checked, and taken by it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pytagi_ddp.listing import some
from pytagi_ddp.nn.layer import BaseLayer
from pytagi_ddp.nn.network import Network
from pytagi_ddp.nn.parameters import FIELDS
from pytagi_ddp.nn.state import Array
from pytagi_ddp.nn.validate import check_finite, check_variances, flat_float32


class StateDict(dict[str, tuple[np.ndarray, ...]]):
    """Key of a layer -> (mu_w, var_w, mu_b, var_b), flat float32 arrays, empty where there are none.

    A key is `<layer name>.<place>`, as in pytagi: `Linear.2`, `Conv2d.main.3.0` (child 0 of the main block of layer
    3), `BatchNorm2d.shortcut.4.2`. Running statistics stand under `<key>.running` as (mean, var, empty, empty), what a
    layer carries from call to call under `<key>.carried`. `==` compares all arrays.
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


class Entry(NamedTuple):
    """One entry that a state dict of a network may have.

    Attributes:
        key: of the entry. kind: "running" or "carried"; empty for parameters, which every state dict has.
        sizes: the number of values of each array, by its name. variances: names of the arrays that hold variances.
        arrays: gives the arrays where they live.
    """

    key: str
    kind: str
    sizes: dict[str, int]
    variances: Sequence[str]
    arrays: Callable[[], Sequence[Array]]


def entries(model: Network) -> Iterator[Entry]:
    """All entries in forward order. In a network in shards, their arrays are to be asked for in this order."""
    for key, leaf in model.named_leaves():
        if leaf.parameters is not None:
            w, b = leaf.num_weights, leaf.num_biases
            sizes = dict(zip(FIELDS, (w, w, b, b), strict=True))
            yield Entry(key, "", sizes, FIELDS[1::2], partial(_views, model, leaf))
        for kind in ("running", "carried"):
            if tensors := [tensor for tensor in leaf.state_tensors() if tensor.kind == kind]:
                sizes = {tensor.name: tensor.size for tensor in tensors}
                variances = [tensor.name for tensor in tensors if tensor.variance]
                arrays = [leaf.state[name] for name in sizes]
                yield Entry(f"{key}.{kind}", kind, sizes, variances, partial(list, arrays))


def _views(model: Network, leaf: BaseLayer) -> Sequence[Array]:
    model.arena.bring(leaf)
    assert leaf.parameters is not None
    return leaf.parameters.views


def without_cuda(key: str) -> str:
    """A key as it is on every device: pytagi writes `LinearCuda.2` on a GPU."""
    return re.sub(r"^(\w+?)Cuda(?=\.)", r"\1", key)


def layer_of(key: str) -> str:
    """The key of the layer that an entry belongs to."""
    return re.sub(r"\.(running|carried)$", "", without_cuda(key))


def padded(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The arrays of an entry, which has four at least, the last of them empty."""
    return *arrays, *[np.zeros(0, np.float32)] * (len(FIELDS) - len(arrays))


def state_dict(model: Network, carried: bool = False) -> StateDict:
    host = model.kernels.array.to_host
    wanted = (entry for entry in entries(model) if carried or entry.kind != "carried")
    return StateDict((entry.key, padded(list(map(host, entry.arrays())))) for entry in wanted)


def savable(model: Network, carried: bool = False) -> StateDict:
    """The state dict, checked as it will be when it is read again.

    Raises:
        ValueError: values that loading would refuse.
    """
    result = state_dict(model, carried)
    try:
        _checked(model, result)
    except ValueError as error:
        raise ValueError(f"the network is not saved, because it could not be loaded again: {error}") from None
    return result


def load_state_dict(model: Network, values: dict[str, Any]) -> None:
    """Checks everything before it changes anything. Running and carried state may be missing, as in pytagi's files."""
    # Copies, as the values may be views of this very network, which would change on the way.
    _put(model, [(entry, [array.copy() for array in arrays]) for entry, arrays in _checked(model, values)])


def load_from_file(model: Network, values: dict, what: str) -> None:
    """`load_state_dict` of what the file `what` held.

    Raises:
        ValueError: what the network cannot take; names the file.
    """
    try:
        _put(model, _checked(model, values))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{what}: {error.args[0]}") from error


def _put(model: Network, checked: list[tuple[Entry, list[np.ndarray]]]) -> None:
    model.drop_deltas()
    for entry, arrays in checked:
        for array, target in zip(arrays, entry.arrays(), strict=True):
            model.kernels.array.copy(array, target)


def _checked(model: Network, values: dict) -> list[tuple[Entry, list[np.ndarray]]]:
    """The entries of the network that `values` has, with their new values.

    Raises:
        KeyError, ValueError, TypeError: what the network cannot take; names the entry.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"a state dict is a dictionary of arrays by layer, got {type(values).__name__}")
    if strange := [key for key in values if not isinstance(key, str)]:
        raise TypeError(f"the keys of a state dict are texts such as 'Linear.0', got {strange[0]!r:.50}")
    given = {without_cuda(key): value for key, value in values.items()}
    checked: list[tuple[Entry, list[np.ndarray]]] = []
    missing, misfits = [], []
    for entry in entries(model):
        if entry.key not in given:
            missing += [] if entry.kind else [entry.key]
            continue
        try:
            checked.append((entry, _fitting(entry, given.pop(entry.key))))
        except ValueError as error:
            misfits.append(str(error))
    if missing or given:
        parts = {"it lacks": missing, "it has no place for": sorted(given), "what does not fit": misfits}
        listed = "; ".join(f"{what} {some(names)}" for what, names in parts.items() if names)
        raise KeyError(f"the state dict is another network's: {listed}")
    if misfits:
        raise ValueError("; ".join(misfits))
    return checked


def _fitting(entry: Entry, value: Sequence[ArrayLike]) -> list[np.ndarray]:
    """The arrays of an entry, without the empty ones that it may end with."""
    key, sizes = entry.key, entry.sizes
    expected = max(len(FIELDS), len(sizes))
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        raise TypeError(f"{key}: expected {expected} arrays ({', '.join(sizes)}), got {type(value).__name__}")
    if len(value) != expected:
        raise ValueError(f"{key}: expected {expected} arrays ({', '.join(sizes)}), got {len(value)}")
    arrays = {name: flat_float32(a, f"{key} {name}", n) for a, (name, n) in zip(value, sizes.items(), strict=False)}
    for name, array in arrays.items():
        check_finite(array, f"{key} {name}")
        if name in entry.variances:
            check_variances(array, f"{key} {name}")
    for rest in value[len(sizes) :]:
        flat_float32(rest, f"{key}, behind {', '.join(sizes)}", 0)
    return list(arrays.values())
