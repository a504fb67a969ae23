"""Calls before and after each layer that computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

Direction = Literal["forward", "backward"]
Leaf = Any  # a `BaseLayer`, whose file imports this one
Hook = Callable[[Leaf, Direction], None]


class LeafHooks:
    """The hooks of a network: functions of a leaf and "forward" or "backward", called around its part of a pass.

    A leaf is a layer that computes, also inside blocks. In the backward pass, `after` is called once the batch sums of
    the leaf's parameters are complete. Leaves before the first one with parameters are only visited if the deltas of
    the input are needed. A block that is run again (`checkpoint_blocks`) calls the hooks of its leaves again, with
    "forward".

    While there are hooks, passes walk through the leaves one by one and are not replayed, unless every hook is
    `HookHandle.of_parameters`.
    """

    def __init__(self) -> None:
        self._pairs: list[HookHandle] = []

    def __bool__(self) -> bool:
        return bool(self._pairs)

    @property
    def of_parameters(self) -> bool:
        """Whether all hooks are `HookHandle.of_parameters`."""
        return all(handle.of_parameters for handle in self._pairs)

    @property
    def may_defer(self) -> bool:
        """Whether a layer may leave work with its parameters to the next operation, see `Chain.begin`."""
        return all(handle.of_parameters and handle.parameters_stay for handle in self._pairs)

    def add(self, handle: HookHandle, outermost: bool) -> None:
        self._pairs.insert(0 if outermost else len(self._pairs), handle)

    def remove(self, handle: HookHandle) -> None:
        if handle in self._pairs:
            self._pairs.remove(handle)

    def before(self, leaf: Leaf, direction: Direction) -> None:
        for handle in tuple(self._pairs):  # a hook may remove itself
            if handle.before is not None:
                handle.before(leaf, direction)

    def after(self, leaf: Leaf, direction: Direction) -> None:
        for handle in tuple(reversed(self._pairs)):
            if handle.after is not None:
                handle.after(leaf, direction)


class HookHandle:
    """A pair of hooks. `remove`, or the end of a `with` block, removes them.

    Attributes:
        before, after: the functions, or None.
        of_parameters: True if the hooks may be skipped for layers without parameters, and if passes with them may be
            replayed: they make all calls that a replay must repeat by `kernels.graph.call`.
        parameters_stay: whether the parameters of a leaf can still be read after its call of `after`.
    """

    of_parameters = parameters_stay = False

    def __init__(self, hooks: LeafHooks, before: Hook | None, after: Hook | None, outermost: bool = False):
        for name, hook in (("before", before), ("after", after)):
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} is a function of a layer and a direction, got {hook!r}")
        self._hooks, self.before, self.after = hooks, before, after
        hooks.add(self, outermost)

    def remove(self) -> None:
        """Removes the hooks; does nothing the second time."""
        self._hooks.remove(self)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()
