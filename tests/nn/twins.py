"""Two equal networks side by side: one records and replays its passes, and the other one walks through its layers."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np

from pytagi_ddp import nn
from pytagi_ddp.kernels.cpu.runtime import graph
from tests.nn.networks import random_inputs


@contextmanager
def walked_parts() -> Iterator[list[str]]:
    """The parts that are walked through meanwhile, of all networks."""
    names: list[str] = []
    run = graph.Graphs.run

    def watched(self, name, key, memory, function):
        return run(self, name, key, memory, lambda: (names.append(name), function())[1])

    with mock.patch.object(graph.Graphs, "run", watched):
        yield names


class Both:
    """A network that replays and its twin that walks, in the same hands."""

    def __init__(self, net: nn.Sequential):
        self.nets = (net, copy.deepcopy(net))
        self.rng = np.random.default_rng(0)
        self.updater = nn.OutputUpdater("cpu")

    def do(self, function) -> None:
        """`function(net)` for both; what it returns, and all that the networks hold, has to be the same."""
        results = []
        for net, on in zip(self.nets, (True, False), strict=True):
            graph.use_graphs = on
            try:
                result = function(net)
                results.append(None if result is net else result)  # `train` and `eval` return the network
            finally:
                graph.use_graphs = True
        arrays = [result if isinstance(result, tuple | list) else () for result in results]  # not the network itself
        for a, b in zip(*arrays, strict=True):
            assert np.array_equal(a, b), "results differ"
        a, b = (net.arena for net in self.nets)
        for name in ("theta", "buffer", "statistics", "carried"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), f"{name} differs"

    def forward(self, batch: int, with_var: bool = False) -> None:
        x = random_inputs(self.nets[0], batch, self.rng)
        var = self.rng.uniform(0.1, 1, x.shape) if with_var else None
        self.do(lambda net: net(x, var))

    def backward(self) -> None:
        z = self.nets[0].output_z_buffer
        y = self.rng.normal(size=z.size)

        def learn(net):
            self.updater.update(net.output_z_buffer, y, np.full(y.shape, 0.3), net.input_delta_z_buffer)
            net.backward()
            return net.get_input_states() if net.input_state_update else ()

        self.do(learn)

    def train(self, batch: int, steps: int = 4, **options) -> None:
        for _ in range(steps):
            self.forward(batch, **options)
            self.backward()
            self.do(nn.Sequential.step)
