"""Synchronisation of arrays, values and models over ranks."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np

from pytagi_ddp.distributed.backends import Backend, get_distributed_backend
from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.distributed.ddp import DDPSequential
from pytagi_ddp.distributed.exchange import pool_statistics
from pytagi_ddp.nn.core.data_struct import BaseDeltaStates, BaseHiddenStates
from pytagi_ddp.nn.sequential import Sequential

InPlace = TypeVar("InPlace", bound=np.ndarray | Sequential | DDPSequential | BaseHiddenStates | BaseDeltaStates)
VALUES = (bool, int, float, complex, str, bytes, np.generic, type(None))


@overload
def synchronize(backend: Backend, tree: InPlace, root: int = 0) -> InPlace: ...
@overload
def synchronize(backend: Backend, tree: Any, root: int = 0) -> Any: ...
def synchronize(backend: Backend, tree: Any, root: int = 0) -> Any:
    """Gives every rank the values of rank `root`; collective.

    Takes NumPy and CuPy arrays, Python and NumPy numbers, strings, bytes and None; `Sequential`, `DDPSequential`,
    hidden and delta states; and dicts, lists, tuples, named tuples and dataclasses of all these. Arrays, models and
    states change in place. Values are returned, and may differ before (None, for example) on the other ranks;
    containers are returned as copies with these values. Anything else raises an error.

    Of a model, parameters and running statistics are synchronised. From then on, the running statistics of a
    `Sequential` are updated by `all_reduce_deltas` only.

    Args:
        backend: name given to `initialize`, or a communicator.
        tree: has the same structure, shapes and dtypes on every rank.
        root: the rank whose values all ranks get.

    Returns:
        The synchronised tree.

    Raises:
        TypeError: a value of another type in the tree of some rank; raised on every rank, with its place.
        ValueError: trees differ between ranks; raised on every rank, with the first difference. Or no such `root`.
    """
    communicator = get_distributed_backend(backend)
    if not 0 <= root < communicator.world_size:
        raise ValueError(f"synchronize: root must be a rank from 0 to {communicator.world_size - 1}, got {root}")
    walk = _Walk()
    walk.visit(tree, "tree", ())
    _compare(communicator.all_gather_object((walk.found, walk.problem), "synchronize"))
    for array in walk.arrays:
        _broadcast(communicator, array, root)
    for prepare in walk.after:
        prepare()
    values = iter(communicator.broadcast_object(walk.values, root) if walk.values else ())
    return _rebuild(tree, values)


class _Walk:
    """Collects the arrays and values of a tree, in the order of their places."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []  # (place, description), equal on all ranks
        self.problem: str | None = None
        self.arrays: list = []
        self.values: list = []
        self.after: list[Callable[[], None]] = []

    def visit(self, node: Any, place: str, parents: tuple[int, ...]) -> None:
        if id(node) in parents:
            self._refuse(place, "a container inside itself")
        elif _is_array(node):
            self._array(node, place)
        elif isinstance(node, VALUES):
            self._find(place, "a value")
            self.values.append(node)
        elif isinstance(node, Sequential):
            self._model(node, place)
            trainer = node.trainer
            self.after.append(partial(pool_statistics, node) if trainer is None else trainer.parameters_changed)
        elif isinstance(node, DDPSequential):
            self._model(node.model, place)
            self.after.append(node.parameters_changed)
        elif isinstance(node, BaseHiddenStates):
            self._states(place, dict(zip(("mu", "var", "jcb"), node.state, strict=True)))
        elif isinstance(node, BaseDeltaStates):
            self._states(place, dict(zip(("delta_mu", "delta_var"), node.arrays, strict=True)))
        elif (children := _children(node)) is not None:
            self._find(place, f"a {type(node).__name__} of {', '.join(key for key, _ in children) or 'nothing'}")
            for key, child in children:
                self.visit(child, place + key, (*parents, id(node)))
        else:
            self._refuse(place, f"a {type(node).__name__}")

    def _find(self, place: str, what: str) -> None:
        self.found.append((place, what))

    def _refuse(self, place: str, what: str) -> None:
        self.problem = self.problem or f"{place} is {what}, which synchronize cannot take"

    def _array(self, array: Any, place: str) -> None:
        self._find(place, f"an array of {array.dtype}, shape {tuple(array.shape)}")
        if array.dtype.hasobject:
            self._refuse(place, f"an array of {array.dtype}")
        elif isinstance(array, np.ndarray) and not array.flags.writeable:
            self._refuse(place, "a read-only array")
        self.arrays.append(array)

    def _model(self, model: Any, place: str) -> None:
        for key, leaf in model.named_leaves():
            self._find(f"{place}.{key}", f"{leaf!r}, {leaf.num_weights} weights, {leaf.num_biases} biases")
        self._array(model.arena.theta, f"{place}.theta")
        self._array(model.arena.statistics, f"{place}.statistics")

    def _states(self, place: str, arrays: dict[str, Any]) -> None:
        for name, array in arrays.items():
            if array is None:
                self._find(f"{place}.{name}", "absent")
            else:
                self._array(array, f"{place}.{name}")


def _is_array(node: Any) -> bool:
    return hasattr(node, "__cuda_array_interface__") or (
        isinstance(node, np.ndarray) and not isinstance(node, np.ma.MaskedArray)
    )


def _children(node: Any) -> list[tuple[str, Any]] | None:
    """(key, child) of each child of a container; None if `node` is not a container."""
    if isinstance(node, dict):
        return [(f"[{key!r}]", node[key]) for key in sorted(node, key=repr)]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return [(f".{name}", child) for name, child in zip(node._fields, node, strict=True)]
    if type(node) in (list, tuple):
        return [(f"[{index}]", child) for index, child in enumerate(node)]
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return [(f".{field.name}", getattr(node, field.name)) for field in dataclasses.fields(node)]
    return None


def _rebuild(node: Any, values: Iterator) -> Any:
    if isinstance(node, VALUES):
        return next(values)
    children = None if _is_array(node) else _children(node)
    if children is None:
        return node
    new = [_rebuild(child, values) for _, child in children]
    if isinstance(node, dict):
        result = copy.copy(node)
        result.update(zip(sorted(node, key=repr), new, strict=True))
        return result
    if isinstance(node, tuple):
        return type(node)(*new) if hasattr(node, "_fields") else tuple(new)
    if isinstance(node, list):
        return new
    result = copy.copy(node)
    for field, value in zip(dataclasses.fields(node), new, strict=True):
        object.__setattr__(result, field.name, value)  # frozen ones too
    return result


def _compare(everyone: list[tuple[list[tuple[str, str]], str | None]]) -> None:
    for rank, (_, problem) in enumerate(everyone):
        if problem is not None:
            raise TypeError(f"on rank {rank}, {problem}")
    first = everyone[0][0]
    for rank, (found, _) in enumerate(everyone):
        for k in range(max(len(first), len(found))):
            (here, a), (there, b) = (places[k] if k < len(places) else ("", "nothing") for places in (first, found))
            if (here, a) != (there, b):
                raise ValueError(
                    f"ranks 0 and {rank} hold different trees: {here or there} is {a} on rank 0, and "
                    f"{there or here} is {b} on rank {rank}"
                )


def _broadcast(communicator: Communicator, array: Any, root: int) -> None:
    if array.flags.c_contiguous:
        communicator.broadcast(array, root)
    else:
        packed = array.copy(order="C")
        communicator.broadcast(packed, root)
        array[...] = packed
