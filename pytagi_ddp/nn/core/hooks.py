"""Calls before and after each layer that computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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
        self.handles: list[HookHandle] = []

    def __bool__(self) -> bool:
        return bool(self.handles)

    @property
    def of_parameters(self) -> bool:
        """Whether all hooks are `HookHandle.of_parameters`."""
        return all(handle.of_parameters for handle in self.handles)

    @property
    def may_defer(self) -> bool:
        """Whether a layer may leave work with its parameters to the next operation, see `Chain.begin`."""
        return all(handle.of_parameters and handle.parameters_stay for handle in self.handles)

    def before(self, leaf: Leaf, direction: Direction) -> None:
        for handle in tuple(self.handles):  # a hook may remove itself
            if handle.before is not None:
                handle.before(leaf, direction)

    def after(self, leaf: Leaf, direction: Direction) -> None:
        for handle in tuple(reversed(self.handles)):
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
        self._handles, self.before, self.after = hooks.handles, before, after
        self._handles.insert(0 if outermost else len(self._handles), self)

    def remove(self) -> None:
        """Removes the hooks; does nothing the second time."""
        if self in self._handles:
            self._handles.remove(self)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


@contextmanager
def watched(net: Any, leaves: Sequence[Leaf], see: Callable[[Leaf, Any, Any], None]) -> Iterator[None]:
    """Inside, forward passes of the network call `see` with each of `leaves`, its input and its output."""

    def forward(leaf: Leaf, state: Any, saved: Any) -> Any:
        out = type(leaf).forward(leaf, state, saved)
        see(leaf, state, out)
        return out

    with net.add_hook():  # so that layers are called one by one
        for leaf in leaves:
            leaf.forward = partial(forward, leaf)
        try:
            yield
        finally:
            for leaf in leaves:
                del leaf.forward
