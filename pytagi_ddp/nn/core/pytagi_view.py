"""Further attributes for programs that were written for pytagi.

In pytagi nearly all of them can be assigned, often without effect. Here an assignment has its effect, or raises an
AttributeError that says what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from numbers import Integral
from typing import Any, NoReturn, TypeVar, cast
from weakref import ref

import numpy as np

from pytagi_ddp.nn.core.data_struct import BaseHiddenStates
from pytagi_ddp.nn.core.parameters import Parameters
from pytagi_ddp.nn.core.state import Shape
from pytagi_ddp.nn.core.window import Window

Init = TypeVar("Init", bound=Callable[..., None])


def refuse_assignment(owner: type, names: tuple[str, ...], remedy: str) -> None:
    """Gives the properties `names` of a class a setter that raises AttributeError with the remedy."""

    def refusal(name: str) -> Any:
        def refuse(self: Any, value: Any) -> NoReturn:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned: {remedy}")

        return refuse

    for name in names:
        setattr(owner, name, getattr(owner, name).setter(refusal(name)))


def either_order(position: int, *later: str) -> Callable[[Init], Init]:
    """Decorates the constructor of a layer, so that it accepts the order of arguments of both versions of pytagi.

    If the argument at `position` is an integer, the arguments from there on are those named `later`, in their order.
    Otherwise they are in the declared order. Type checkers know the declared order only.
    """

    def of(init: Init) -> Init:
        @wraps(init)
        def take(self: Any, *arguments: Any, **named: Any) -> None:
            here = arguments[position] if len(arguments) > position else None
            if isinstance(here, Integral) and not isinstance(here, bool | np.bool_):
                by_name = dict(zip(later, arguments[position:], strict=False))
                init(self, *arguments[:position], *arguments[position + len(later) :], **by_name, **named)
            else:
                init(self, *arguments, **named)

        return cast(Init, take)

    return of


class LayerView:
    """Sizes and settings of a layer, by pytagi's names."""

    in_shape: Shape
    out_shape: Shape
    parameters: Parameters | None
    bias: bool
    gain_weight: float
    gain_bias: float
    _network: ref[Any] | None

    @property
    def _owner(self) -> Any:
        """The `Sequential` that the layer belongs to, if it still exists, or None."""
        return None if self._network is None else self._network()

    @property
    def _alone(self) -> AbstractContextManager[None]:
        """A context for assignments, in which no other thread can be in a pass of the network."""
        return nullcontext() if self._owner is None else self._owner.passes.one_thread

    @property
    def input_size(self) -> int:
        return self.in_shape.size

    @property
    def output_size(self) -> int:
        return self.out_shape.size

    @property
    def in_channels(self) -> int:
        return self.in_shape.channels

    @property
    def in_height(self) -> int:
        return self.in_shape.height

    @property
    def in_width(self) -> int:
        return self.in_shape.width

    @property
    def out_channels(self) -> int:
        return self.out_shape.channels

    @property
    def out_height(self) -> int:
        return self.out_shape.height

    @property
    def out_width(self) -> int:
        return self.out_shape.width

    @property
    def device(self) -> str:
        return self._owner.device if self._owner else "cpu"

    @property
    def num_threads(self) -> int:
        # Here, so that `import pytagi_ddp` stays fast.
        from pytagi_ddp.kernels.cpu.runtime.threads import get_threads

        return get_threads()

    @property
    def num_weights(self) -> int:
        return self.parameters.num_weights if self.parameters else 0

    @property
    def num_biases(self) -> int:
        return self.parameters.num_biases if self.parameters else 0

    def get_max_num_states(self) -> int:
        return max(self.in_shape.size, self.out_shape.size)

    @property
    def is_bias(self) -> bool:
        return self.bias

    @property
    def gain_w(self) -> float:
        return self.gain_weight

    @property
    def gain_b(self) -> float:
        return self.gain_bias

    def to_cuda(self) -> NoReturn:
        """Raises RuntimeError: a layer moves with its network."""
        raise RuntimeError(f"{type(self).__name__} moves with its network: call to_device('cuda') of the Sequential")

    switch_to_cuda = to_cuda


SIZES = ("input_size", "output_size", "in_channels", "in_height", "in_width", "out_channels", "out_height", "out_width")
refuse_assignment(LayerView, SIZES, "it follows from the layers before; build the layers, and the network, anew")
refuse_assignment(
    LayerView, ("num_weights", "num_biases", "is_bias"), "the constructor of the layer takes what it says"
)
refuse_assignment(LayerView, ("gain_w", "gain_b"), "set gain_weight or gain_bias, then call init_weight_bias()")
refuse_assignment(LayerView, ("device",), "call to_device() of the network")
refuse_assignment(LayerView, ("num_threads",), "call set_threads() of the network")


class SizesView:
    """The sizes of a layer of units, for a time step, by pytagi's names."""

    name: str
    _sizes: tuple[int, int]

    @property
    def input_size(self) -> int:
        return self._sizes[0]

    @property
    def output_size(self) -> int:
        return self._sizes[1]

    def get_layer_info(self) -> str:
        return f"{self.name}({self.input_size},{self.output_size})"


refuse_assignment(SizesView, ("input_size", "output_size"), "make a new layer, and a new network")


class WindowView:
    """The window of a convolution or pooling, by pytagi's names."""

    window: Window

    @property
    def kernel_size(self) -> int:
        return self.window.kernel_size

    @property
    def stride(self) -> int:
        return self.window.stride

    @property
    def padding(self) -> int:
        return self.window.padding

    @property
    def padding_type(self) -> int:
        return self.window.padding_type


refuse_assignment(
    WindowView, ("kernel_size", "stride", "padding", "padding_type"), "the constructor of the layer takes it"
)


class _InnerStates(BaseHiddenStates):
    """Units inside a network, whose variances are not kept."""

    @property  # type: ignore[misc]
    def var_a(self) -> NoReturn:  # type: ignore[override]
        raise AttributeError("variances inside a network are not kept; those of its output are in output_z_buffer")


class BlockView:
    """The buffers of a ResNetBlock, by pytagi's names."""

    device: str
    shortcut: Any
    _owner: Any

    @property
    def input_z(self) -> BaseHiddenStates:
        """Means and Jacobians of the block's input, right after a forward pass in training mode."""
        states, owner = _InnerStates(), self._owner
        if owner is not None and not owner.training:
            raise AttributeError("in evaluation mode nothing is kept inside a network")
        saved = owner and owner.passes.saved_of(self)
        if saved is not None:
            states.hold(saved.input, self.device)
        return states

    @property
    def shortcut_output_z(self) -> BaseHiddenStates:
        """`input_z` of a block without a shortcut of its own."""
        if self.shortcut is not None:
            raise AttributeError("the output of a shortcut is not kept")
        return self.input_z

    @property
    def input_delta_z(self) -> NoReturn:
        raise AttributeError("deltas inside a network are not kept; those of its ends are in its *_delta_z_buffer")

    shortcut_output_delta_z = input_delta_z

    def init_shortcut_state(self) -> None:
        """Does nothing; for programs written for pytagi."""

    init_shortcut_delta_state = init_input_buffer = init_shortcut_state


refuse_assignment(
    BlockView,
    ("input_z", "shortcut_output_z", "input_delta_z", "shortcut_output_delta_z"),
    "buffers inside a network are its own; give the network another input or other deltas",
)
