"""Arguments of kernels: related arrays in named fields.

The fields are C-contiguous float32 arrays on the device of the kernel.
"""

import math
from typing import Any, NamedTuple

Array = Any  # a NumPy array on the CPU, the array of another device elsewhere


class State(NamedTuple):
    """Means, variances and diagonal Jacobian of one batch, all of shape (batch, units) or (batch, H, W, C).

    Attributes:
        mu: means.
        var: variances; None if the units are deterministic (an input without variance).
        jcb: Jacobian of the activations since the last layer with a backward pass; None if it is 1.
    """

    mu: Array
    var: Array | None
    jcb: Array | None = None

    @property
    def batch(self) -> int:
        return self.mu.shape[0]

    def reshape(self, *shape: int) -> "State":
        """The same memory in another shape."""
        return State(*(None if array is None else array.reshape(*shape) for array in self))


class Delta(NamedTuple):
    """Innovation deltas of one batch. The posterior of a unit N(m, s) has mean m + s * mu and variance s + s^2 * var.

    Attributes:
        mu, var: deltas of means and of variances, in arrays of the same shape.
        memory: their blocks of a pool, or None.
    """

    mu: Array
    var: Array
    memory: Any = None

    def reshape(self, *shape: int) -> "Delta":
        """The same memory in another shape."""
        return Delta(self.mu.reshape(*shape), self.var.reshape(*shape), self.memory)


class Tensor(NamedTuple):
    """One weight or bias tensor.

    Attributes:
        mu, var: means and variances.
        delta_mu_sum, delta_var_sum: the batch sums g = sum A dm and h = sum A^2 ds; the deltas are s g and s^2 h. None
            in calls that do not use them.
    """

    mu: Array
    var: Array
    delta_mu_sum: Array = None
    delta_var_sum: Array = None


class Sums(NamedTuple):
    """Sums over the values of each feature, minus a shift.

    Sums of several ranks may be added if they have the same shift.

    Attributes:
        count: number of values, (1,).
        total: sum of the values, (features,).
        square: sum of their squares and of their variances, (features,).
    """

    count: Array
    total: Array
    square: Array


class PartialMoments(NamedTuple):
    """Moments of the tiles of a product, computed by the product for the next batch normalisation.

    Attributes:
        values: means, and sums of squares about them, (2, tiles, features), in flat memory. The next product may
            overwrite them.
        rows: number of rows of a tile; the last tile may have fewer.
    """

    values: Array
    rows: int


class Normalization(NamedTuple):
    """A batch normalisation to be computed: out = r (a - mean) w + b, where a is the activation of x.

    Attributes:
        x: input, (rows, features), with the Jacobian of earlier activations, if it has one.
        mean, r: mean and reciprocal standard deviation of each feature.
        weights, bias: w and b.
        out: memory for the result, of the shape of x.
        activation: one of `BatchNorm.activations` (see `kernels.protocol`), or "" if a = x.
    """

    x: State
    mean: Array
    r: Array
    weights: Tensor
    bias: Tensor
    out: State
    activation: str = ""


# The matrix of a product that is zero above its diagonal: none, the factor x, or the result.
ALL, CAUSAL_FACTOR, CAUSAL_RESULT = range(3)


class Heads(NamedTuple):
    """A matrix for each head of each sample, within larger arrays.

    Attributes:
        units: means and variances (None: zero) of the larger arrays.
        first, batch, head, row: element (i, j) of head h of sample b lies in their flat memory at
            first + b * batch + (h // share) * head + i * row + j.
        share: number of heads that share one matrix.
        transposed: whether each matrix is the transpose of its memory.
    """

    units: State | Delta
    first: int
    batch: int
    head: int
    row: int
    share: int = 1
    transposed: bool = False

    @property
    def place(self) -> tuple[int, ...]:
        return self[1:]


def cut(memory: Array, *shapes: tuple[int, ...]) -> list[Array]:
    """Arrays of these shapes, one after the other in flat memory."""
    arrays, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        arrays.append(memory[start:stop].reshape(shape))
        start = stop
    return arrays


class LSTMSaved(NamedTuple):
    """Values that the forward pass of an LSTM saves for the backward pass, in arrays (steps, batch, ...).

    Attributes:
        mu, var: moments of the inputs of the gates: the layer's inputs, then the hidden state of the previous step.
        f, i, c: derivatives of the cell state C by the forget gate, input gate and candidate before their activation.
        o, h: derivatives of the hidden state by the output gate before its activation, and by C.
        kept: derivative of C by the cell state of the previous step.
    """

    mu: Array
    var: Array
    f: Array
    i: Array
    c: Array
    o: Array
    h: Array
    kept: Array

    @staticmethod
    def size(inputs: int, outputs: int) -> int:
        """Numbers per time step and sample."""
        return 2 * (inputs + outputs) + 6 * outputs

    @classmethod
    def cut(cls, memory: Array, steps: int, batch: int, inputs: int, outputs: int) -> "LSTMSaved":
        """The arrays, in flat memory."""
        joined, units = (steps, batch, inputs + outputs), (steps, batch, outputs)
        return cls(*cut(memory, joined, joined, *[units] * 6))


class Record(NamedTuple):
    """States of an LSTM at each time step, for a smoother, in arrays (steps, outputs).

    Attributes:
        prior, posterior: (mu_h, var_h, mu_c, var_c), moments of the hidden and the cell state before and after the
            observation of the time step.
        cov_c: covariance of each unit's cell state at the previous step and its prior at this step.
        cov_h: covariances of all hidden states at the previous step and those at this step, (steps, outputs, outputs).
    """

    prior: tuple[Array, Array, Array, Array]
    posterior: tuple[Array, Array, Array, Array]
    cov_c: Array
    cov_h: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        return *self.prior, *self.posterior, self.cov_c, self.cov_h


NO_STATE = State(None, None)  # for a state that has not been computed
NO_TENSOR = Tensor(None, None)  # for the bias of layers without one
NO_DELTA = Delta(None, None)  # for deltas that are not needed
