"""What kernels are given: arrays that belong together, so that none can be taken for another.

The fields are arrays of the device that the kernel runs on: float32, C-contiguous.
"""

import math
from typing import Any, NamedTuple

Array = Any  # a NumPy array on the CPU, the array of another device elsewhere


class State(NamedTuple):
    """Means, variances and diagonal Jacobian of one batch, all of one shape: (batch, units), or that of its images.

    Attributes:
        mu: means.
        var: variances; None where the units are known to be deterministic (an input without variance).
        jcb: Jacobian of the activations applied since the last layer with a backward pass; None where it is 1.
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
    """Innovation deltas of one batch, of one shape: a posterior is (m + s * mu, s + s^2 * var).

    Attributes:
        mu, var: of means and variances.
        memory: the blocks of a pool that they live in, if they do.
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
            where a call has nothing to do with them.
    """

    mu: Array
    var: Array
    delta_mu_sum: Array = None
    delta_var_sum: Array = None


class Sums(NamedTuple):
    """Of the values of each feature about a shift: their number (1,), their sum and their sum of squares (features,).

    The variances of the values are part of the squares. Sums of several ranks about one shift may be added.
    """

    count: Array
    total: Array
    square: Array


class PartialMoments(NamedTuple):
    """What a product leaves to the batch normalisation behind it: means, and sums of squares about them, of its tiles.

    Attributes:
        values: (2, tiles, features) in flat memory, which the next product may use again.
        rows: of a tile; the last may have fewer.
    """

    values: Array
    rows: int


class Normalization(NamedTuple):
    """A batch normalisation that is to be computed: out = r (a - mean) w + b, with a the activation of x.

    Attributes:
        x: what comes in, as (rows, features); with the Jacobian of earlier activations, if it has one.
        mean, r: of each feature: what is subtracted, and the reciprocal standard deviation.
        weights, bias: w and b.
        out: memory for the result, as x.
        activation: one of `BatchNorm.activations` (see `kernels.protocol`), or "": a is x.
    """

    x: State
    mean: Array
    r: Array
    weights: Tensor
    bias: Tensor
    out: State
    activation: str = ""


ALL, CAUSAL_FACTOR, CAUSAL_RESULT = range(3)  # which matrix of a product has nothing above its diagonal: x, or out


class Heads(NamedTuple):
    """A matrix for each head of each sample, within larger arrays.

    Attributes:
        units: means and variances (None: certain) of the arrays.
        first, batch, head, row: where element (i, j) of head h of sample b lies, in their flat memory: at
            first + b batch + (h // share) head + i row + j.
        share: heads that have one matrix together.
        transposed: its transpose is meant.
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
    """Arrays of these shapes, one behind the other in flat memory."""
    arrays, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        arrays.append(memory[start:stop].reshape(shape))
        start = stop
    return arrays


class Passage(NamedTuple):
    """What an LSTM remembers of a pass forward for the pass back, time step by time step: arrays (steps, batch, ...).

    Attributes:
        mu, var: of the inputs of the gates: those of the layer, then the hidden state of the step before.
        f, i, c: slopes of the cell state C to the forget gate, input gate and candidate, before their activation.
        o, h: slope of the hidden state to the output gate before its activation, and to C.
        kept: slope of C to that of the step before.
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
    def cut(cls, memory: Array, steps: int, batch: int, inputs: int, outputs: int) -> "Passage":
        """Out of flat memory."""
        joined, units = (steps, batch, inputs + outputs), (steps, batch, outputs)
        return cls(*cut(memory, joined, joined, *[units] * 6))


class Record(NamedTuple):
    """What a smoother needs of the memory of an LSTM, time step by time step: arrays (steps, outputs).

    Attributes:
        prior, posterior: (mu_h, var_h, mu_c, var_c), moments of the hidden and the cell state before and after the
            observation of the time step.
        cov_c: covariance of the cell state of the step before and the prior of this one, unit by unit.
        cov_h: likewise of the hidden states, all with all: (steps, outputs before, outputs).
    """

    prior: tuple[Array, Array, Array, Array]
    posterior: tuple[Array, Array, Array, Array]
    cov_c: Array
    cov_h: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        return *self.prior, *self.posterior, self.cov_c, self.cov_h


NO_STATE = State(None, None)  # what stands for a state that has not been computed
NO_TENSOR = Tensor(None, None)  # for a bias that is not there
NO_DELTA = Delta(None, None)  # and for deltas that nobody needs
