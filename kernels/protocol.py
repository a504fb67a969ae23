"""The kernel modules of every device, with their functions and arguments.

`cpu` and `cuda` have modules of these names, whose docstrings give formulas, shapes and errors. A device may add
keyword-only options. Arrays are float32 and C-contiguous. The caller allocates the arrays that a kernel writes. A
kernel raises ValueError if arrays have another type or order, or shapes do not fit together.
`tests/kernels/test_protocol.py` compares both devices with these declarations.
"""

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np

from pytagi_ddp.kernels.tensors import (
    Array,
    Delta,
    Heads,
    LSTMSaved,
    Normalization,
    PartialMoments,
    Record,
    State,
    Sums,
    Tensor,
)


class ArrayFunctions(Protocol):
    """Memory of the device.

    Attributes:
        asynchronous: whether kernels return before they are done; `synchronize` waits for them.
    """

    asynchronous: bool

    def empty(self, shape: Any, dtype: Any = np.float32) -> Array: ...
    def zeros(self, shape: Any, dtype: Any = np.float32) -> Array: ...
    def to_host(self, array: Array) -> np.ndarray: ...
    def copy(self, source: Array, out: Array) -> None: ...
    def clear(self, array: Array) -> None: ...
    def visible(self, array: Array) -> Array: ...
    def snapshot(self, array: Array) -> Array: ...
    def place(self, source: np.ndarray, into: Array | None = None) -> Array: ...
    def address(self, array: Array) -> int: ...
    def synchronize(self) -> None: ...
    def free_bytes(self) -> int | None: ...  # free memory for new arrays; None: not limited here


class Graphs(Protocol):
    """Runs the parts of a training step, or replays them.

    Attributes:
        express: a fast path of the public calls of a step, see `kernels.cpu.runtime._express`. It returns None or False
            if a call is not the common case.
        plan: the recording of the part that ran last, for `express`, or None.
    """

    express: Any
    plan: Any

    def __init__(self, array: ArrayFunctions): ...
    def run(self, name: str, key: Hashable, memory: tuple, function: Callable[[], Any]) -> Any: ...
    def clear(self) -> None: ...


class Graph(Protocol):
    """Recording of parts of a training step.

    Attributes:
        keeps_calls: whether a recording may contain Python calls, made by `call(function, *arguments)`.
    """

    Graphs: type[Graphs]
    keeps_calls: bool

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


class Linear(Protocol):
    def forward(self, x: State, weights: Tensor, bias: Tensor | None, out: State) -> None: ...
    def backward(
        self,
        x: State,
        delta: Delta,
        weights: Tensor,
        bias: Tensor | None,
        in_delta: Delta | None,
        accumulate: bool,
    ) -> None: ...


class Convolution(Protocol):
    """Convolutions or transposed convolutions.

    Attributes:
        adds: whether `backward` can add to the content of `in_delta`, by the option `added`.
        gives_moments: whether `forward` can return `PartialMoments`, by the option `moments`, the name of the
            activation after the convolution ("": none). `moments` and `statistics` of `BatchNorm` then have the option
            `made`.
    """

    adds: bool
    gives_moments: bool

    def forward(
        self, x: State, weights: Tensor, bias: Tensor | None, out: State, stride: int, pad: int
    ) -> PartialMoments | None: ...
    def backward(
        self,
        x: State,
        delta: Delta,
        weights: Tensor,
        bias: Tensor | None,
        in_delta: Delta | None,
        stride: int,
        pad: int,
        accumulate: bool,
    ) -> None: ...


class Attention(Protocol):
    def multiply(
        self, x: Heads, y: Heads, out: Heads, batch: int, heads: int, rows: int, depth: int, columns: int, causal: int
    ) -> None: ...
    def remax(self, scores: State, slopes: Delta, scale: float, causal: bool) -> None: ...
    def remax_backward(self, delta: Delta, shares: Array, slopes: Delta, scale: float, causal: bool) -> None: ...
    def rotate(self, units: Delta | State, table: Array, heads: int, inverse: bool) -> None: ...


class Embedding(Protocol):
    def forward(self, categories: Array, weights: Tensor, padding: int, out: State) -> None: ...
    def backward(self, categories: Array, delta: Delta, weights: Tensor, padding: int) -> None: ...


class Encoding(Protocol):
    def forward(self, x: State, first: Array, units: Array, out: State) -> None: ...
    def backward(self, delta: Delta, first: Array, into: Delta) -> None: ...


class BatchNorm(Protocol):
    """Batch normalisation.

    Attributes:
        activations: names of the activations that these kernels can apply to the input of a `Normalization`. If there
            are any, `moments` and `statistics` have the option `activation`.
    """

    activations: tuple[str, ...]

    def partial_shape(self, rows: int, features: int) -> tuple[int, int, int]: ...
    def moments(self, x: State, partial: Array, mean: Array, m2: Array) -> None: ...
    def statistics(
        self,
        x: State,
        partial: Array,
        mean: Array,
        m2: Array,
        r: Array,
        eps: float,
        running: State,
        sums: Sums,
        momentum: float | None,
    ) -> None: ...
    def rescale(self, square: Array, denominator: float, eps: float, r: Array) -> None: ...
    def pool_moments(self, mean: Array, m2: Array, rows: int, shift: Array, sums: Sums) -> None: ...
    def pooled_statistics(self, shift: Array, sums: Sums, mean: Array, var: Array) -> None: ...
    def update_running(self, running_mean: Array, running_var: Array, momentum: float, sums: Sums) -> None: ...
    def forward(self, norm: Normalization, added: State | Normalization | None = None) -> None: ...
    def backward(self, norm: Normalization, delta: Delta, into: Delta, partial: Array, accumulate: bool) -> None: ...
    def subtract_statistics(self, norm: Normalization, into: Delta, partial: Array, means: Array) -> None: ...


class LayerNorm(Protocol):
    def moments(self, x: State, eps: float, mean: Array, r: Array) -> None: ...
    def mean_squares(self, x: State, eps: float, mean: Array, r: Array) -> None: ...
    def forward(self, x: State, mean: Array, r: Array, weights: Tensor, bias: Tensor, out: State) -> None: ...
    def backward(
        self,
        x: State,
        delta: Delta,
        mean: Array,
        r: Array,
        weights: Tensor,
        bias: Tensor,
        partial: Array,
        accumulate: bool,
    ) -> None: ...


class Activation(Protocol):
    def elementwise(self, name: str, x: State, out: State, *parameters: float) -> None: ...
    def even_exp(self, x: State, out: State) -> None: ...


class Softmax(Protocol):
    def softmax(self, x: State, out: State) -> None: ...
    def remax(self, x: State, out: State) -> None: ...
    def closed_form_softmax(self, x: State, out: State) -> None: ...


class Pooling(Protocol):
    def average_forward(self, x: State, out: State, kernel_size: int, stride: int, pad: int) -> None: ...
    def average_backward(self, delta: Delta, in_delta: Delta, kernel_size: int, stride: int, pad: int) -> None: ...
    def max_forward(self, x: State, out: State, winner: Array, kernel_size: int, stride: int, pad: int) -> None: ...
    def max_backward(
        self, delta: Delta, winner: Array, in_delta: Delta, kernel_size: int, stride: int, pad: int
    ) -> None: ...


class Recurrent(Protocol):
    def scratch_size(self, batch: int, inputs: int, outputs: int) -> int: ...
    def forward(
        self,
        x: State,
        weights: Tensor,
        bias: Tensor | None,
        start: State,
        end: State,
        kept: LSTMSaved,
        scratch: Array,
        out: State,
    ) -> None: ...
    def backward(
        self,
        jcb: Array | None,
        delta: Delta,
        weights: Tensor,
        bias: Tensor | None,
        kept: LSTMSaved,
        scratch: Array,
        gates: Delta,
        in_delta: Delta | None,
        cell_path: bool,
        accumulate: bool,
    ) -> None: ...
    def update_memory(self, memory: State, delta: Delta, kept: LSTMSaved) -> None: ...
    def record(self, kept: LSTMSaved, weights: Tensor, var_before: Array, cov_c: Array, cov_h: Array) -> None: ...
    def smooth(self, record: Record) -> None: ...


class Elementwise(Protocol):
    def add(self, a: Array, b: Array, out: Array) -> None: ...
    def add_state(self, out: State | Delta, added: State | Delta) -> None: ...
    def multiply(self, out: Array, factor: Array) -> None: ...
    def apply_jacobian(self, delta: Delta, jcb: Array) -> None: ...
    def transpose(self, source: Array, out: Array) -> None: ...
    def copy_columns(self, source: Array, first: int, out: Array, start: int, columns: int) -> None: ...


class OutputUpdate(Protocol):
    # The fast path of `OutputUpdater.update` for the common case; returns whether it has made the update.
    def express_update(self, states: Any, mu_obs: Any, var_obs: Any, deltas: Any, weight: float = 1.0) -> bool: ...
    def update(self, output: State, observed: State, delta: Delta) -> None: ...
    def update_using_indices(self, output: State, observed: State, index: Array, delta: Delta) -> None: ...
    def update_heteros(self, output: State, observed: State, delta: Delta) -> None: ...


class Likelihood(Protocol):
    # The fast path of `Categorical.update` for the common case; returns whether it has made the update.
    def express_categorical(self, states: Any, labels: Any, weight: Any, deltas: Any, classes: int) -> bool: ...
    def observe(
        self, kind: str, output: State, observed: Array, a: Array, b: Array, weight: Array, first: int, delta: Delta
    ) -> None: ...
    def categorical(
        self, output: State, index: Array, weight: Array, first: int, classes: int, delta: Delta
    ) -> None: ...


class Step(Protocol):
    def look(self, parameters: Tensor, factors: Array, starts: Array, stops: Array, non_finite: Array) -> None: ...
    def step(
        self,
        parameters: Tensor,
        factors: Array,
        starts: Array,
        stops: Array,
        steps: Array,
        prior_mu: Array,
        prior_var: Array,
        negative: Array,
        non_finite: Array,
    ) -> None: ...
    def settle(self, state: Array, kept: Array, non_finite: Array) -> None: ...
    def pooled_factors(self, header: Array, factors: Array, average: bool, rate: float) -> None: ...
    def forget(self, var: Array, starts: Array, stops: Array, priors: Array, factor: float) -> None: ...


class Merge(Protocol):
    def contribute(self, posterior: Tensor, prior: Tensor, change: Delta, rule: int) -> None: ...
    def merge_sums(self, posterior: Tensor, prior: Tensor, change: Delta, counters: Array, rule: int) -> None: ...
    def rebase(self, posterior: Tensor, old: Tensor, new: Tensor) -> None: ...
    def mix(self, posterior: Tensor, into: Tensor, weight: float) -> None: ...


class Kernels(Protocol):
    """The kernel modules of a device, as `get_kernels` returns them."""

    activation: Activation
    array: ArrayFunctions
    attention: Attention
    batch_norm: BatchNorm
    conv2d: Convolution
    convtranspose2d: Convolution
    elementwise: Elementwise
    embedding: Embedding
    encoding: Encoding
    graph: Graph
    layer_norm: LayerNorm
    likelihood: Likelihood
    linear: Linear
    merge: Merge
    output_update: OutputUpdate
    pooling: Pooling
    recurrent: Recurrent
    softmax: Softmax
    step: Step
