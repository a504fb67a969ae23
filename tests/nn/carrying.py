"""A layer that carries state from pass to pass, as a recurrent one does, for tests."""

from pytagi_ddp import nn
from pytagi_ddp.nn.state import apply_jacobian
from pytagi_ddp.nn.tensors import TensorSpec


class Memory(nn.BaseLayer):
    """Adds what it carries from batch to batch: the mean of the last sample that it gave, moved by the deltas of it."""

    name = "Memory"
    replayable = True

    def state_tensors(self):
        return (TensorSpec("mean", self.in_shape.size, "carried", initial=1),)

    def forward(self, state):
        self._input = x = self._with_variance(state)
        out, mean = self._output(state.batch), self._carried("mean")
        self.kernels.array.copy(x.var, out.var)
        for row in range(state.batch):
            self.kernels.elementwise.add(x.mu[row], mean, out.mu[row])
        self._carry("mean", out.mu[-1])
        return out

    def backward(self, delta, pool, need_input, accumulate):
        self.kernels.elementwise.add(self.state["mean"], delta.mu[-1], self.state["mean"])
        apply_jacobian(self.kernels, delta, self._input)
        return delta
