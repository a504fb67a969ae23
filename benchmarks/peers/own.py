"""This library."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytagi_ddp
from benchmarks.training_step import Workload
from pytagi_ddp.kernels.cpu.runtime import graph
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads


def versions() -> dict[str, str]:
    return {"pytagi_ddp": pytagi_ddp.__version__} | {name: version(name) for name in ("numpy", "scipy", "numba")}


class Step:
    """replayed: else each step visits the layers in Python. attributes: of the network, that are not its default."""

    def __init__(self, name: str, threads: int, replayed: bool = True, **attributes: Any):
        set_threads(threads)
        graph.use_graphs = replayed
        workload = Workload(name)
        for attribute, value in attributes.items():
            setattr(workload.net, attribute, value)
        self.step = workload.step
        self.parameters, self.floor_flops = workload.net.num_parameters, workload.floor_flops
