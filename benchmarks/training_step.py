"""A whole training step of this library, from forward to the parameter step, on random numbers."""

from __future__ import annotations

from benchmarks.workloads import find
from pytagi_ddp import nn


class Workload:
    """A network, and a batch for it; name: as `find` takes it."""

    def __init__(self, name: str, device: str = "cpu"):
        spec = find(name)
        self.name, self.net, self.batch = name, spec.build(nn), spec.batch
        self.x, self.var_x, y = spec.data()
        self.net.input_state_update = spec.inside
        self.net.to_device(device)
        self.y, self._noise = y.reshape(-1), y.reshape(-1) * 0 + 1
        self._updater = nn.OutputUpdater(self.net.device)
        self.step = self._predict if spec.predict else self._train

    def _train(self) -> None:
        self.pass_through(self.net)
        self.net.step()

    def _predict(self) -> None:
        self.net.predict(self.x)

    def pass_through(self, net: nn.Sequential | nn.DDPSequential) -> None:
        """Forward, output update and backward of `net`: the network, or what wraps it."""
        net(self.x, self.var_x)
        self._updater.update(net.output_z_buffer, self.y, self._noise, net.input_delta_z_buffer)
        net.backward()

    @property
    def floor_flops(self) -> float:
        """Operations of the matrix products of one step.

        3 forward and 4 backward for a layer, 2 and 2 for the first one, whose input is deterministic and needs no
        deltas. Of attention heads there are 6 forward and 8 backward, each half as large if it is causal.
        """
        total, first = 0, self.var_x is None
        for _, leaf in self.net.named_leaves():
            if isinstance(leaf, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | nn.MultiheadAttention | nn.LSTM):
                total += (4 if first else 7) * 2 * self.batch * positions(leaf) * leaf.num_weights
                first = False
            if isinstance(leaf, nn.MultiheadAttention):
                total += 14 * 2 * self.batch * leaf.in_shape.steps**2 * leaf.embed_dim / (2 if leaf.causal else 1)
        return total


def positions(leaf: nn.BaseLayer) -> int:
    """How often a sample meets the weights of a layer."""
    if isinstance(leaf, nn.Conv2d):
        return leaf.out_height * leaf.out_width
    if isinstance(leaf, nn.ConvTranspose2d):
        return leaf.in_height * leaf.in_width
    return leaf.in_shape.steps
