"""A list of layers that run one after the other: the base of `Sequential` and of the blocks."""

import textwrap
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Normalization
from pytagi_ddp.nn.core.hooks import Direction
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import Array, Delta, Lifetime, Shape, State
from pytagi_ddp.nn.layers.activation import Activation
from pytagi_ddp.nn.layers.fused import ActivatedNorm, Step, backward_onto, joined
from pytagi_ddp.nn.layers.recompute import Recomputed, is_block


def listing(owner: str, parts: Mapping[Any, Any]) -> str:
    """The parts of `owner` as text, one line each."""
    inside = "".join(f"({name}): {part!r}\n" for name, part in parts.items())
    return f"{owner}(\n{textwrap.indent(inside, '  ')})"


def layers_of(arguments: Sequence[Any], owner: str) -> list[BaseLayer]:
    """The layers among the arguments of a constructor, which may be one list or tuple.

    Raises:
        ValueError: there are none. TypeError: an argument that is not a layer, or was not made as one.
    """
    one = arguments[0] if len(arguments) == 1 else None
    layers = list(one) if isinstance(one, list | tuple) else list(arguments)
    if not layers:
        raise ValueError(f"{owner} needs at least one layer")
    for layer in layers:
        if not isinstance(layer, BaseLayer):
            raise TypeError(f"{owner} takes layers, got {_not_a_layer(layer)}")
        if "in_shape" not in vars(layer):
            raise TypeError(f"__init__ of {type(layer).__name__} has to call super().__init__()")
    return layers


def _not_a_layer(thing: Any) -> str:
    if isinstance(thing, type) and issubclass(thing, BaseLayer):
        return f"the class {thing.__name__}: write {thing.__name__}(...)"
    if isinstance(thing, LayerSequence):
        return f"a {type(thing).__name__}: for layers within a network use LayerBlock"
    if isinstance(thing, Mapping):
        return f"a {type(thing).__name__}: pass its values, as layers have no names"
    if isinstance(thing, list | tuple) and thing and isinstance(thing[0], BaseLayer):
        return f"a {type(thing).__name__} of layers: unpack it, as *net[:2]"
    return f"{type(thing).__name__}: {thing!r:.200}"


class LayerSequence:
    """Layers in order, which can be indexed as a list."""

    @property
    @abstractmethod
    def layers(self) -> tuple[BaseLayer, ...]:
        """The layers as given."""

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[BaseLayer]:
        return iter(self.layers)

    @overload
    def __getitem__(self, index: SupportsIndex) -> BaseLayer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[BaseLayer, ...]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> BaseLayer | tuple[BaseLayer, ...]:
        try:
            return self.layers[index]
        except IndexError:
            raise IndexError(f"there is no layer {index}: this {type(self).__name__} has {len(self)} layers") from None
        except TypeError:
            raise TypeError(
                f"layers have numbers, and slices of them, got {index!r:.50}; by key: dict(net.named_layers())"
            ) from None


class Reorder(BaseLayer):
    """Changes the order of an image in memory. A chain inserts it where it is needed."""

    _is_leaf = False  # not a layer of the user: without parameters, state or a key
    replayable = True
    needs_variances = False
    spares_deltas = True

    def infer_output(self, shape: Shape) -> Shape:
        return shape.ordered(not shape.channels_last)

    def _transpose(self, source: Array, out: Array, channels_last: bool) -> Array:
        channels, pixels = self.in_shape.channels, self.in_shape.height * self.in_shape.width
        rows, columns = (pixels, channels) if channels_last else (channels, pixels)
        self.kernels.elementwise.transpose(source.reshape(-1, rows, columns), out.reshape(-1, columns, rows))
        return out

    def forward(self, state: State, saved: Saved) -> State:
        size, last = self.in_shape.size, self.in_shape.channels_last
        return State(
            *(
                None if a is None else self._transpose(a, saved.buffer(name, state.batch, size), last)
                for name, a in zip(("mu", "var", "jcb"), state, strict=True)
            )
        )

    def backward(self, delta: Delta, saved: Saved) -> Delta:
        into = saved.pool.take(*delta.mu.shape)
        self._transpose(delta.mu, into.mu, self.out_shape.channels_last)
        self._transpose(delta.var, into.var, self.out_shape.channels_last)
        saved.pool.give(delta)
        return into


class Chain:
    """Layers in order. If a layer needs an image in another order of memory, a `Reorder` precedes it.

    Attributes:
        layers: the layers, as the user gave them.
        widest: the largest number of units at the input or output of an operation, in blocks too; set by `attach`.
        operations: the layers (blocks are wrapped if they are recomputed) and the changes of order.
    """

    widest: int

    def __init__(self, layers: Sequence[BaseLayer | Sequence[BaseLayer]], owner: str):
        self.layers = layers_of(layers, owner)
        self.operations: list[BaseLayer] = []
        self._steps: list[Step] = []  # the fused operations; set by `attach`
        self._lifetimes: dict[Lifetime, dict[BaseLayer, Lifetime]] = {}  # see `_lifetimes_of`
        self._first_learned: int | None = None  # position of the first operation with parameters

    def default_input_shape(self) -> Shape | None:
        """The input shape of the first layer that defines one; only layers that keep the shape may precede it.

        If a layer with `seq_len` follows layers that process each time step alone, it is the shape of a time step.
        """
        for layer in self.layers:
            shape = layer.default_input_shape()
            if shape is not None or not isinstance(layer, Activation):
                return shape and self._at_every_step(shape)
        return None

    def _at_every_step(self, shape: Shape) -> Shape:
        features: int | None = shape.size
        for layer in self.layers if shape == Shape(shape.size) else ():
            if features is None:
                break
            knows = any(getattr(leaf, "seq_len", 1) > 1 for leaf in layer.leaves())
            needed = layer.default_input_shape() if knows else None
            if needed and needed.steps > 1 and needed.features == features:
                return Shape.of_sequence(needed.steps, shape.size)
            features = layer.features_by_step(features)
        return shape

    def features_by_step(self, features: int) -> int | None:
        """See `BaseLayer.features_by_step`."""
        known: int | None = features
        for layer in self.layers:
            known = known and layer.features_by_step(known)
        return known

    def build(self, shape: Shape, channels_last: bool | None, image: tuple[int, int, int] | None = None) -> Shape:
        """Propagates shapes.

        Args:
            shape: the input's.
            channels_last: order of the chain's output; None: the order of the last layer.
            image: the image that flat units at the end of the chain represent.

        Raises:
            ValueError: layers that do not fit together, or a layer that must be the first one and is not.
        """
        self.operations = []
        self._first_learned = None
        for position, layer in enumerate(self.layers):
            if position and (first := next((leaf for leaf in layer.leaves() if hasattr(leaf, "check_input")), None)):
                raise ValueError(f"{first.get_layer_info()} takes the input of a network: put it first")
            if isinstance(layer, Activation):
                layer.in_place = position > 0 and layer.replayable
            shape = layer.build(self._reorder(shape, layer.input_shape(shape)))
            self.operations.append(layer)
        if shape.image is None and image is not None:
            shape = Shape(shape.size, image)
        return shape if channels_last is None else self._reorder(shape, shape.ordered(channels_last))

    def _reorder(self, shape: Shape, target: Shape) -> Shape:
        """Appends a change of order if `target` needs one."""
        if target.channels_last != shape.channels_last and target.order_matters:
            operation = Reorder()
            operation.build(target.ordered(shape.channels_last))
            self.operations.append(operation)
        return target

    def attach(self, kernels: Kernels) -> None:
        for operation in self.operations:
            operation._attach(kernels)
        self._steps = joined(self.operations)
        inside = (part for layer in self.layers for _, part in layer.named_layers(""))
        self.widest = max(operation.get_max_num_states() for operation in (*self.operations, *inside))
        self._lifetimes.clear()

    def _lifetimes_of(self, lifetime: Lifetime) -> dict[BaseLayer, Lifetime]:
        """The lifetime of each operation's output variances, if that of the last one is `lifetime`."""
        if lifetime not in self._lifetimes:
            found, last = {}, lifetime
            for operation in reversed(self.operations):
                found[operation] = last
                passed_on = last if isinstance(operation, Activation) and operation.in_place else Lifetime.NEXT
                last = max(passed_on, Lifetime.BACKWARD if operation.needs_variances else Lifetime.NEXT)
            self._lifetimes[lifetime] = found
        return self._lifetimes[lifetime]

    def recompute_blocks(self, value: bool) -> None:
        """Wraps the blocks in `Recomputed`, or unwraps them; `attach` has to follow.

        Raises:
            ValueError: there is no block.
        """
        plain = [op.block if isinstance(op, Recomputed) else op for op in self.operations]
        if value and not any(map(is_block, plain)):
            raise ValueError(
                "checkpoint_blocks recomputes what is in a LayerBlock, ResNetBlock or Parallel: here is none"
            )
        self.operations = [Recomputed(op) if value and is_block(op) else op for op in plain]

    @property
    def recomputes(self) -> bool:
        return any(isinstance(op, Recomputed) for op in self.operations)

    def last_recomputed(self, saved: Saved) -> Saved | None:
        """The context of the block that ran last, if blocks are recomputed."""
        last = next((op for op in reversed(self.operations) if isinstance(op, Recomputed)), None)
        return None if last is None else saved.of(last).of(last.block)

    def leaves(self) -> Iterator[BaseLayer]:
        for layer in self.layers:
            yield from layer.leaves()

    def visits(self, direction: Direction) -> Iterator[tuple[BaseLayer, Direction]]:
        """Leaves in the order of a pass. A backward pass also runs the leaves of recomputed blocks forward."""
        if direction == "forward":
            yield from ((leaf, "forward") for leaf in self.leaves())
            return
        recomputed = [operation for operation in self.operations if isinstance(operation, Recomputed)]
        for operation in reversed([operation for operation in self.operations if not isinstance(operation, Reorder)]):
            leaves = list(operation.leaves())
            if operation in recomputed[:-1]:  # the activations of the last one are still there
                yield from ((leaf, "forward") for leaf in leaves)
            yield from ((leaf, "backward") for leaf in reversed(leaves))

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_steps": [], "_lifetimes": {}}  # a copy is not attached

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state, _steps=[], _lifetimes={})
        self.__dict__.pop("_hooks", None)  # of an earlier version

    def forward(self, state: State, saved: Saved) -> State:
        fused = not saved.hooks or saved.hooks.of_parameters
        return self._through(self._steps if fused else map(Step, self.operations), state, saved)

    def begin(self, state: State, saved: Saved) -> State | Normalization:
        """Runs forward up to a normalisation at the end, whose last kernel call the sum of a block fuses."""
        *before, last = self._steps
        if not isinstance(last, ActivatedNorm) or (saved.hooks and not saved.hooks.may_defer):
            return self.forward(state, saved)
        state = self._through(before, state, saved)
        return self._with_hooks(last.layer, saved, last.begin, state)

    def _through(self, steps: Iterable[Step], state: State, saved: Saved) -> State:
        saved.set_lifetimes(self._lifetimes_of(saved.lifetime))
        pool, hooked = saved.pool, bool(saved.hooks)
        before = pool.acquired
        for step in steps:
            state = self._with_hooks(step.layer, saved, step.forward, state) if hooked else step.forward(state, saved)
            pool.release(before, state)
        return state

    def _with_hooks(self, layer: BaseLayer, saved: Saved, call: Callable[[State, Saved], Any], state: State) -> Any:
        """`call(state, saved)` for a layer, between its hooks."""
        if not saved.hooks or not layer._is_leaf:
            return call(state, saved)
        saved.hooks.before(layer, "forward")
        result = call(state, saved)
        saved.hooks.after(layer, "forward")
        return result

    @property
    def spares_deltas(self) -> bool:
        """See `BaseLayer.spares_deltas`."""
        return self.operations[-1].spares_deltas

    def backward(self, delta: Delta, saved: Saved, onto: Delta | None = None) -> Delta | None:
        """Backward pass through all operations down to the first one with parameters, or to the input.

        onto: deltas to which those of the input are added, see `fused.backward_onto`.
        """
        if self._first_learned is None:
            learned = (any(leaf.parameters is not None for leaf in op.leaves()) for op in self.operations)
            self._first_learned = next((k for k, yes in enumerate(learned) if yes), len(self.operations))
        needs_input, accumulate = saved.needs_input, saved.accumulate
        hooked = saved.hooks or None
        for position in range(len(self.operations) - 1, -1, -1):
            if not needs_input and position < self._first_learned:
                break
            needed = needs_input or position > self._first_learned
            operation = self.operations[position]
            inside = saved.of(operation)
            hooks = hooked if operation._is_leaf else None
            if hooks is not None:
                hooks.before(operation, "backward")
            if onto is not None and position == 0:
                into = backward_onto(operation, onto, delta, inside, accumulate)
            else:
                into = operation._run_backward(delta, inside, needed, accumulate)
            if hooks is not None:
                hooks.after(operation, "backward")
            if into is None:
                return None
            delta = into
        if needs_input:
            return delta
        saved.pool.give(delta)
        return None
