"""Launches and copies of a training step on a GPU, counted without one: `python -m benchmarks.gpu` starts this.

The networks run as in Numba's simulator, but the kernels do nothing; so the time of a step is that of this library's
Python, to which a GPU adds CuPy's and the driver's part of each launch. The simulator has its own tiles for products:
a GPU may cut a product into parts where this count does not, or the reverse, which is one launch more or less.
"""

import time

import numpy as np

from benchmarks.training_step import WORKLOADS
from pytagi_ddp import cuda
from pytagi_ddp.kernels.cuda.compile import Kernel
from pytagi_ddp.kernels.cuda.recorder import recording
from pytagi_ddp.nn import OutputUpdater, Sequential

CHOSEN = ("mlp-128-b32", "mlp-4096-b256", "mnist-cnn-b128", "resnet18-b16")
STEPS = 5


def no_kernel(self: Kernel, grid: tuple[int, ...], arguments: list) -> None:
    """Takes the place of `Kernel._simulate`."""


def training_step(net: Sequential, batch: int) -> None:
    x, y = np.ones((batch, net.in_shape.size), np.float32), np.ones(batch * net.out_shape.size, np.float32)
    net(x)
    OutputUpdater(net.device).update(net.output_z_buffer, y, y, net.input_delta_z_buffer)
    net.backward()
    net.step()


def main() -> None:
    if not cuda.is_simulated():
        raise SystemExit("this needs NUMBA_ENABLE_CUDASIM=1")
    Kernel._simulate = no_kernel
    print(f"{'network':16}{'launches':>10}{'copies':>8}{'Python':>11}")
    for name in CHOSEN:
        make, batch = WORKLOADS[name]
        net = make()
        net.to_device("cuda")
        training_step(net, batch)
        times = []
        for _ in range(STEPS):
            with recording() as work:
                start = time.perf_counter()
                training_step(net, batch)
                times.append(time.perf_counter() - start)
        launches = sum(function.__name__ == no_kernel.__name__ for function, _ in work)
        print(f"{name:16}{launches:10}{len(work) - launches:8}{min(times) * 1e3:8.2f} ms")


if __name__ == "__main__":
    main()
