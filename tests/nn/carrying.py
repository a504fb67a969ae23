"""A layer that carries state from pass to pass, as a recurrent one does, for tests."""

from pytagi_ddp import nn
from pytagi_ddp.nn.core.state import apply_jacobian
from pytagi_ddp.nn.core.tensors import TensorSpec


class Memory(nn.BaseLayer):
    """Adds what it carries from batch to batch: the mean of the last sample that it gave, moved by the deltas of it."""

    name = "Memory"
    replayable = True

    def state_tensors(self):
        return (TensorSpec("mean", self.in_shape.size, "carried", initial=1),)

    def forward(self, state, saved):
        saved.input = x = saved.with_variance(state)
        out, mean = saved.output(state.batch), self.mean(saved)
        self.kernels.array.copy(x.var, out.var)
        for row in range(state.batch):
            self.kernels.elementwise.add(x.mu[row], mean, out.mu[row])
        self.carry(out.mu[-1], saved)
        return out

    def mean(self, saved):
        return saved.carried("mean")

    def carry(self, values, saved):
        saved.carry("mean", values)

    def backward(self, delta, saved):
        self.kernels.elementwise.add(self.state["mean"], delta.mu[-1], self.state["mean"])
        apply_jacobian(self.kernels, delta, saved.input)
        return delta
