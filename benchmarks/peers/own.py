"""This library."""

from __future__ import annotations

from importlib.metadata import version
from typing import ClassVar

import pytagi_ddp
from benchmarks.training_step import Workload
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads


def versions() -> dict[str, str]:
    return {"pytagi_ddp": pytagi_ddp.__version__} | {name: version(name) for name in ("numpy", "scipy", "numba")}


class Step:
    settings: ClassVar[dict] = {}  # attributes of the network that are not its default

    def __init__(self, name: str, threads: int):
        set_threads(threads)
        self._workload = Workload(name)
        for attribute, value in self.settings.items():
            setattr(self._workload.net, attribute, value)
        self.step = self._workload.step
        self.parameters = self._workload.net.num_parameters

    def details(self) -> dict:
        return {"floor_flops": self._workload.floor_flops}
