"""Fused operations: each computes two or three consecutive layers of a network.

A chain uses them instead of its layers, with the same results. They save the same values in the contexts of the layers,
so that each layer's own backward pass can follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytagi_ddp.kernels.protocol import Kernels
from pytagi_ddp.kernels.tensors import Normalization
from pytagi_ddp.nn.core.attributes import is_ours
from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.saved import Saved
from pytagi_ddp.nn.core.state import Delta, State
from pytagi_ddp.nn.layers.activation import Activation
from pytagi_ddp.nn.layers.batch_norm import BatchNorm2d
from pytagi_ddp.nn.layers.convolution import Convolution


class Step:
    """A single layer, not fused.

    Attributes:
        layer: the layer whose hooks are called.
    """

    def __init__(self, layer: BaseLayer):
        self.layer = layer

    def forward(self, state: State, saved: Saved) -> State:
        """`BaseLayer.forward`, where `saved` is the context of the chain."""
        return self.layer._run_forward(state, saved.of(self.layer))


class ConvolutionWithMoments(Step):
    """A convolution whose kernel also computes partial moments of its output, for the normalisation that follows.

    Args:
        convolution, norm: the layers. formula: that of the activation between them, or "".
    """

    def __init__(self, convolution: Convolution, norm: BatchNorm2d, formula: str):
        super().__init__(convolution)
        self._convolution, self._norm, self._formula = convolution, norm, formula

    def forward(self, state: State, saved: Saved) -> State:
        of_norm = saved.of(self._norm)
        if not self._norm.takes_statistics(of_norm):
            return super().forward(state, saved)
        out, of_norm.made = self._convolution.convolve(state, saved.of(self.layer), moments=self._formula)
        return out


class ActivatedNorm(Step):
    """A normalisation that also computes the previous activation. The sum of a block can fuse its last kernel call.

    Args:
        norm: the layer. activation: the layer before it, or None.
    """

    def __init__(self, norm: BatchNorm2d, activation: Activation | None):
        super().__init__(norm)
        self._norm, self._activation = norm, activation

    def begin(self, state: State, saved: Saved) -> Normalization:
        """`forward` without the last call."""
        own, formula = saved.of(self._norm), ""
        if self._activation is not None:
            if state.jcb is not None or state.var is None:  # kernels take no Jacobian, and need variances
                state = self._activation.forward(state, saved.of(self._activation))
            else:
                formula = self._activation.formula
        return self._norm.normalization(state, own, formula, vars(own).pop("made", None))

    def forward(self, state: State, saved: Saved) -> State:
        norm = self.begin(state, saved)
        self._norm.kernels.batch_norm.forward(norm)
        return norm.out.reshape(state.batch, self._norm.output_size)


def has_our_passes(layer: BaseLayer) -> bool:
    """Whether the passes of a layer are those of a class of this library, not of a class derived from it."""
    kind = type(layer)
    return layer.replayable and is_ours(kind.forward) and is_ours(kind.backward)


def joined(operations: Sequence[BaseLayer]) -> list[Step]:
    """The steps that replace `operations`, which are attached."""
    steps: list[Step] = []
    taken: Activation | None = None
    behind: Sequence[BaseLayer | None] = [*operations[1:], None, None]
    for operation, second, third in zip(operations, behind, behind[1:], strict=False):
        if isinstance(operation, Activation) and isinstance(second, BatchNorm2d) and _takes(second, operation):
            taken = operation
            continue
        norm, formula = second, ""
        if isinstance(second, Activation) and isinstance(third, BatchNorm2d) and _takes(third, second):
            norm, formula = third, second.formula
        if isinstance(operation, BatchNorm2d) and has_our_passes(operation):
            steps.append(ActivatedNorm(operation, taken))
        elif isinstance(operation, Convolution) and isinstance(norm, BatchNorm2d) and _takes_moments(norm, operation):
            steps.append(ConvolutionWithMoments(operation, norm, formula))
        else:
            steps.append(Step(operation))
        taken = None
    return steps


def _takes(norm: BatchNorm2d, activation: Activation) -> bool:
    """Whether kernels of `norm` can compute `activation`, which must be elementwise."""
    plain = type(activation)._run is Activation._run and not activation.formula_settings and has_our_passes(activation)
    return plain and has_our_passes(norm) and activation.formula in norm.kernels.batch_norm.activations


def _takes_moments(norm: BatchNorm2d, convolution: Convolution) -> bool:
    of_channels = norm.in_shape.channels_last and norm.in_shape.channels == norm.num_features
    return of_channels and convolution.gives_moments and has_our_passes(norm) and has_our_passes(convolution)


# -- the sum of a residual block ------------------------------------------------------------------------------------


def begin_branch(branch: Any, state: State, saved: Saved) -> State | Normalization:
    """The forward pass of a `LayerBlock` up to a normalisation at its end, see `Chain.begin`."""
    return branch.chain.begin(state, saved) if has_our_passes(branch) else branch._run_forward(state, saved)


def add_ends(kernels: Kernels, main: State | Normalization, short: State | Normalization, batch: int) -> State:
    """The sum of two branches, as one `State`, in the memory of one of them."""
    if isinstance(short, Normalization) and not isinstance(main, Normalization):
        main, short = short, main
    if not isinstance(main, Normalization):
        assert not isinstance(short, Normalization)
        kernels.elementwise.add_state(main, short)  # no backward pass reads the output of a branch
        return State(main.mu, main.var)
    added = short if isinstance(short, Normalization) else short.reshape(*main.x.mu.shape)
    kernels.batch_norm.forward(main, added)
    return main.out.reshape(batch, main.out.mu.size // batch)


def backward_onto(layer: Any, onto: Delta, delta: Delta, saved: Saved, accumulate: bool) -> Delta | None:
    """`backward` of a layer that adds the deltas of the input to `onto`, whose memory is released or returned."""
    if has_our_passes(layer):
        if isinstance(layer, Convolution) and layer.adds and onto.memory is not delta.memory:
            layer.convolve_back(delta, saved.ask(True, accumulate), onto, added=True)
            return onto
        if hasattr(layer, "chain"):  # a block: its first layer adds
            return layer.chain.backward(delta, saved.ask(True, accumulate), onto)
    into = layer._run_backward(delta, saved, True, accumulate)
    if into is not None:
        layer.kernels.elementwise.add_state(into, onto)
    saved.pool.give(onto)
    return into
