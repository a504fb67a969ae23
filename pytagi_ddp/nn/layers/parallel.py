"""Parallel branches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Normalization
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.pytagi_view import refuse_assignment
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.setting import Fixed
from pytagi_ddp.nn.core.state import Array, Delta, Shape, State, apply_jacobian
from pytagi_ddp.nn.layers import fused
from pytagi_ddp.nn.layers.chain import layers_of, listing
from pytagi_ddp.nn.layers.layer_block import LayerBlock
from pytagi_ddp.validate import as_integers

MERGES = ("sum", "concat")


class Parts(NamedTuple):
    """Units as a matrix whose blocks of columns are the parts.

    Attributes:
        rows: rows of a sample: pixels of a channels-last image, time steps of a sequence, otherwise 1.
        ends: 0, and the column where each part ends.
    """

    rows: int
    ends: tuple[int, ...]

    @classmethod
    def of(cls, whole: Shape, sizes: Sequence[int]) -> "Parts":
        """The parts of `whole` with these numbers of units."""
        rows = whole.height * whole.width if whole.channels_last else whole.steps
        return cls(rows, (0, *accumulate(size // rows for size in sizes)))

    def take(self, kernels: Kernels, k: int, whole: Array, into: Array) -> None:
        """Copies part k out of `whole`."""
        self._copy(kernels, k, whole, 0, into, self.ends[k])

    def put(self, kernels: Kernels, k: int, part: Array, whole: Array) -> None:
        """Copies `part` to its place in `whole`."""
        self._copy(kernels, k, part, self.ends[k], whole, 0)

    def _copy(self, kernels: Kernels, k: int, source: Array, out_start: int, out: Array, first: int) -> None:
        rows, columns = len(source) * self.rows, self.ends[k + 1] - self.ends[k]
        kernels.elementwise.copy_columns(source.reshape(rows, -1), first, out.reshape(rows, -1), out_start, columns)


class Parallel(BaseLayer):
    """Branches that each take the input, or a part of it; their outputs are added or concatenated.

    With `merge="sum"`, means are added, and so are variances, as if the branches were independent. With
    `merge="concat"`, images are concatenated along channels, sequences along the features of each time step, flat units
    one after the other; the moments are exact.

        Parallel(conv_3, conv_5, conv_7, merge="concat")  # Inception
        Parallel(LayerBlock(down, *inside, up), None, merge="concat")  # a skip connection of a U-Net
        Parallel(Linear(3, 8), Linear(5, 8), split=[3, 5])  # two inputs, given as one of 8 units

    Backward: each branch gets the deltas of its output, and the deltas of a common input are added. The Jacobian of an
    activation at the end of a branch is applied in that branch; that of an activation before the block is applied in
    every branch, also in the identity.

    `block.branches` are the branches as given.

    Args:
        branches: at least two: a layer, a `LayerBlock`, a list or tuple of layers, or None for the identity; not all
            None.
        merge: "sum" or "concat".
        split: the size of the part of the input that each branch takes: channels of an image, features of each time
            step of a sequence, or units. If the sizes sum to the number of units of an image or sequence, these are
            split as flat units, channels or steps first. None: each branch takes all.

    Raises:
        ValueError: too few branches; another merge; a split that does not fit branches or input; outputs that do not
            fit together: with "sum" of different shapes, with "concat" of different heights, widths or time steps.
        TypeError: something that is not a layer; a split that is not made of integers.
    """

    _is_leaf = False
    replayable = True
    merge, split = Fixed(), Fixed()

    def __init__(
        self,
        *branches: BaseLayer | Sequence[BaseLayer] | None,
        merge: str = "sum",
        split: Sequence[int] | None = None,
    ):
        super().__init__()
        if merge not in MERGES:
            raise ValueError(f"merge of {self.name} is 'sum' or 'concat', got {merge!r}")
        self.merge = merge
        self.split = None if split is None else self._checked_split(list(split), len(branches))
        self._given = tuple(
            LayerBlock(*layers_of([branch], self.name))
            if branch is not None and not isinstance(branch, BaseLayer)
            else branch
            for branch in branches
        )
        if len(branches) < 2 or all(branch is None for branch in branches):
            raise ValueError(f"{self.name} needs at least two branches, and a layer in one of them")
        if split is None and self._given.count(None) > 1:
            raise ValueError(f"{self.name}: the identity, None, is a branch only once, as two would not be independent")
        # A single layer becomes a block of one layer; names and files still show the layer.
        self._arrange([b if b is None or isinstance(b, LayerBlock) else LayerBlock(b) for b in self._given])
        self._in_parts: Parts | None = None  # if the input is split
        self._out_parts: Parts | None = None  # if outputs are concatenated

    def _arrange(self, slots: list[LayerBlock | None]) -> None:
        """Sets the branches as blocks; None for the identity."""
        self._slots = slots
        self._branches = [slot for slot in slots if slot is not None]
        # The order of the backward pass: identities, then the branches from the last to the first.
        self._order = sorted(range(len(slots)), key=lambda k: (slots[k] is not None, -k))

    def _checked_split(self, split: list[int], branches: int) -> list[int]:
        if len(split) != branches:
            raise ValueError(f"split of {self.name} needs a positive number for each of {branches} branches: {split}")
        return as_integers(self.name, 1, **{f"split[{k}]": size for k, size in enumerate(split)})

    @property
    def branches(self) -> tuple[BaseLayer | None, ...]:
        return self._given

    # -- shapes -----------------------------------------------------------------------------------------------

    def default_input_shape(self) -> Shape | None:
        needed = [None if slot is None else slot.default_input_shape() for slot in self._slots]
        stated = (shape for shape in needed if shape is not None)
        first = max(stated, key=lambda shape: shape.steps, default=None)  # a Linear does not know the time steps
        if self.split is None or first is None:
            return first
        alike = all(shape is None or shape == _part(first, n) for shape, n in zip(needed, self.split, strict=True))
        return _part(first if alike else Shape(1), sum(self.split))

    def features_by_step(self, features: int) -> int | None:
        parts = self.split or [features] * len(self._slots)
        outputs = [n if slot is None else slot.features_by_step(n) for slot, n in zip(self._slots, parts, strict=True)]
        known = [n for n in outputs if n is not None]
        if len(known) < len(outputs):
            return None
        return sum(known) if self.merge == "concat" else known[0]

    def input_shape(self, shape: Shape) -> Shape:
        if self.split is None or sum(self.split) == _width(shape):
            return shape
        if sum(self.split) != shape.size:
            raise ValueError(f"{self.name} splits its input into {self.split}, and the layer before gives {shape}")
        return shape.ordered(channels_last=False)

    def _inputs_of(self, shape: Shape) -> tuple[list[Shape], Parts | None]:
        """The shape of the input of each branch, and the parts of the whole input if it is split."""
        if self.split is None:
            return [shape] * len(self._given), None
        whole = shape if sum(self.split) == _width(shape) else Shape(shape.size)
        parts = [_part(whole, n) for n in self.split]
        return parts, Parts.of(whole, [part.size for part in parts])

    def infer_output(self, shape: Shape) -> Shape:
        for branch in self._branches:
            branch.out_like = None
        slots, (parts, self._in_parts) = self._slots, self._inputs_of(shape)
        outputs = [part if slot is None else slot.build(part) for slot, part in zip(slots, parts, strict=True)]
        whole = self._sum_of(outputs) if self.merge == "sum" else self._concatenation_of(outputs)
        for slot, part, out in zip(slots, parts, outputs, strict=True):
            like = whole if self.merge == "sum" else out.ordered(whole.channels_last)
            # A dense branch that is merged with an image has the units of the image, channels first.
            if (
                slot is not None
                and out.channels_last != like.channels_last
                and (out.order_matters or like.order_matters)
            ):
                slot.out_like = like
                slot.build(part)
        self._out_parts = Parts.of(whole, [out.size for out in outputs]) if self.merge == "concat" else None
        return whole

    def _identities_first(self, outputs: list[Shape]) -> list[Shape]:
        """Outputs with the order of memory of the identity, which cannot change, for all branches."""
        return [outputs[k] for k in self._order if self._slots[k] is None] + [
            out for slot, out in zip(self._slots, outputs, strict=True) if slot is not None
        ]

    def _sum_of(self, outputs: list[Shape]) -> Shape:
        # Flat units may be those of an image or a sequence.
        images, sequences = ({getattr(out, kind) for out in outputs} - {None} for kind in ("image", "sequence"))
        mixed = bool(images) and any(out.pixels for out in outputs)  # pixels have another order than in an image
        if len({out.size for out in outputs}) > 1 or len(images) > 1 or len(sequences) > 1 or mixed:
            raise ValueError(f"{self._told(outputs)}; they must be equal")
        if None in self._given:
            return self._identities_first(outputs)[0]
        return next((out for out in outputs if out.image or out.sequence), outputs[-1])

    def _concatenation_of(self, outputs: list[Shape]) -> Shape:
        # An image of one pixel is flat units, too.
        if len({(out.image[1:] if out.image and out.size > out.channels else None, out.steps) for out in outputs}) > 1:
            raise ValueError(
                f"{self._told(outputs)}; to be put side by side, they need the same height and width, or number of "
                "time steps; or all of them are flat, as the output of a Linear layer"
            )
        leading = next((out for out in self._identities_first(outputs) if out.order_matters), outputs[0])
        return _part(leading, sum(map(_width, outputs)))

    def _told(self, outputs: list[Shape]) -> str:
        return f"{self.name}: the branches give {', '.join(map(str, outputs))}"

    # -- properties of the branches ---------------------------------------------------------------------------

    def _claim(self, owner: Any) -> None:
        super()._claim(owner)
        for branch in self._branches:
            branch._claim(owner)

    def _release(self, owner: Any) -> None:
        super()._release(owner)
        for branch in self._branches:
            branch._release(owner)

    def _attach(self, kernels: Kernels) -> None:
        super()._attach(kernels)
        for branch in self._branches:
            branch._attach(kernels)

    def _input_checks(self) -> Iterator[Callable[[np.ndarray], None]]:
        if self.split is None:
            for branch in self._branches:
                yield from branch._input_checks()
            return
        _, parts = self._inputs_of(self.in_shape.ordered(channels_last=False))
        assert parts is not None
        for (start, stop), slot in zip(pairwise(parts.ends), self._slots, strict=True):
            for check in () if slot is None else slot._input_checks():
                yield partial(_check_part, check, parts.rows, slice(start, stop))

    @property
    def needs_variances(self) -> bool:  # type: ignore[override]
        return self.split is None and any(branch.needs_variances for branch in self._branches)

    def leaves(self) -> Iterator[BaseLayer]:
        for branch in self._branches:
            yield from branch.leaves()

    def named_layers(self, path: str) -> Iterator[tuple[str, BaseLayer]]:
        yield from super().named_layers(path)
        for k, branch in enumerate(self.branches):
            if branch is not None:
                yield from branch.named_layers(f"{path}.{k}")

    def settings(self) -> dict[str, Any]:
        """[name, settings] of each branch, None for the identity; and the other arguments."""
        branches = [None if branch is None else [branch.name, branch.settings()] for branch in self.branches]
        return {"branches": branches, "merge": self.merge, "split": self.split}

    def _own_settings(self) -> dict[str, Any]:
        """Merge, split, and the positions of identities; inner layers have their own settings."""
        identities = [k for k, branch in enumerate(self.branches) if branch is None]
        return {"merge": self.merge, "split": self.split, "identities": identities}

    def __repr__(self) -> str:
        options = {"merge": self.merge} | ({} if self.split is None else {"split": self.split})
        return listing(self.name, dict(enumerate(self.branches)) | options)

    # -- computing --------------------------------------------------------------------------------------------

    def forward(self, state: State, saved: Saved) -> State:
        saved.input = state
        inputs, parts = self._inputs(state, saved), self._out_parts
        if parts is None:
            return self._add(inputs, saved)
        out = saved.output(state.batch)
        saved.ends = []
        for k, (slot, part) in enumerate(zip(self._slots, inputs, strict=True)):
            end = part if slot is None else slot._run_forward(part, saved.of(slot))
            saved.ends.append(end)
            parts.put(self.kernels, k, end.mu, out.mu)
            parts.put(self.kernels, k, self._zeros(end, saved) if end.var is None else end.var, out.var)
        return out

    def _zeros(self, end: State, saved: Saved) -> Array:
        """Variances of a deterministic end: an input, or what an encoding made of it."""
        zeros = saved.scratch("zeros", end.mu.shape)
        self.kernels.array.clear(zeros)
        return zeros

    def _inputs(self, state: State, saved: Saved) -> list[State]:
        """The input of each branch."""
        parts = self._in_parts
        if parts is None:
            return [state] * len(self._given)
        inputs = []
        for k, (start, stop) in enumerate(pairwise(parts.ends)):
            taken: dict[str, Array | None] = {}
            for name, values in state._asdict().items():
                taken[name] = None
                if values is not None:
                    taken[name] = saved.buffer(f"{name} {k}", state.batch, (stop - start) * parts.rows)
                    parts.take(self.kernels, k, values, taken[name])
            inputs.append(State(**taken))
        return inputs

    def _add(self, inputs: list[State], saved: Saved) -> State:
        ends = [
            part if slot is None else fused.begin_branch(slot, part, saved.of(slot))
            for slot, part in zip(self._slots, inputs, strict=True)
        ]
        saved.ends = [end.out if isinstance(end, Normalization) else end for end in ends]
        # The sum is made in the memory of a branch, not in that of the input.
        total: Any
        total, *others = [ends[k] for k in reversed(self._order)]
        if isinstance(total, State) and total.var is None:
            total = total._replace(var=self._zeros(total, saved))
        for other in others:
            total = fused.add_ends(self.kernels, total, other, inputs[0].batch)
        return total

    def backward(self, delta: Delta, saved: Saved) -> Delta | None:
        pool, needs_input, slots = saved.pool, saved.needs_input, self._slots
        asked = [k for k in self._order if slots[k] is not None or needs_input]
        if self._out_parts is None:
            for _ in asked[1:]:
                pool.share(delta)
        whole = pool.take(len(delta.mu), self.in_shape.size) if self._in_parts and needs_input else None
        into: Delta | None = None
        for k in asked:
            own = delta if self._out_parts is None else self._part_of_deltas(k, delta, saved)
            if self._out_parts is not None and k == asked[-1]:
                pool.give(delta)
            slot, end = slots[k], saved.ends[k]
            moved: Delta | None
            # A copy, if they change before all branches have read them: where several come after the identity.
            if end.jcb is not None or (len(asked) > 2 if slot is None else not slot.spares_deltas):
                own = pool.own_copy(own)
                apply_jacobian(self.kernels, own, end)
            if slot is None:
                moved = own
            elif into is None:
                moved = slot._run_backward(own, saved.of(slot), needs_input, saved.accumulate)
            else:
                moved = fused.backward_onto(slot, into, own, saved.of(slot), saved.accumulate)
            if whole is None or self._in_parts is None or moved is None:
                into = moved
                continue
            self._in_parts.put(self.kernels, k, moved.mu, whole.mu)
            self._in_parts.put(self.kernels, k, moved.var, whole.var)
            pool.give(moved)
        return into if whole is None else whole

    def _part_of_deltas(self, k: int, delta: Delta, saved: Saved) -> Delta:
        parts = self._out_parts
        assert parts is not None
        own = saved.pool.take(len(delta.mu), (parts.ends[k + 1] - parts.ends[k]) * parts.rows)
        parts.take(self.kernels, k, delta.mu, own.mu)
        parts.take(self.kernels, k, delta.var, own.var)
        return own

    def get_layer_info(self) -> str:
        return f"{self.name}({self.input_size},{self.output_size})"


def _check_part(check: Callable[[np.ndarray], None], rows: int, part: slice, values: np.ndarray) -> None:
    """Calls `check` with a part of the input of a network."""
    check(values.reshape(len(values) * rows, -1)[:, part])


def _width(shape: Shape) -> int:
    """Channels of an image, features of a time step, or flat units."""
    return shape.channels or shape.features


def _part(shape: Shape, width: int) -> Shape:
    """`shape` with `width` channels or features."""
    if shape.image is not None:
        return Shape.of_image(width, shape.height, shape.width, shape.channels_last)
    return replace(Shape.of_sequence(shape.steps, width), of_one_step=shape.of_one_step)


refuse_assignment(Parallel, ("branches",), "make a new Parallel, and a new network")
