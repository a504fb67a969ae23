"""pytagi, the Python package of cuTAGI."""

from __future__ import annotations

import numpy as np
import pytagi
from pytagi import nn

from benchmarks.workloads import find


def versions() -> dict[str, str]:
    return {"pytagi": pytagi.__version__.strip(), "numpy": np.__version__}


class Step:
    def __init__(self, name: str, threads: int):
        spec = find(name)
        self._net = spec.build(nn)
        self._net.set_threads(threads)
        self._net.input_state_update = spec.inside
        x, var, y = spec.data()
        self._x, self._y = x.reshape(-1), y.reshape(-1)
        self._var = None if var is None else var.reshape(-1)
        self._noise = np.ones_like(self._y)
        self._updater = nn.OutputUpdater(self._net.device)
        self.step = self._predict if spec.predict else self._train

    def _predict(self) -> None:
        self._net.eval()
        self._net(self._x, self._var)
        self._net.train()

    def _train(self) -> None:
        net = self._net
        net(self._x, self._var)
        self._updater.update(net.output_z_buffer, self._y, self._noise, net.input_delta_z_buffer)
        net.backward()
        net.step()

    @property
    def parameters(self) -> int:
        """Learned means; known after the first step, where the network is built. Absent biases have no variance."""
        return sum(len(mu_w) + len(mu_b) for mu_w, _, mu_b, _ in self._net.parameters())
