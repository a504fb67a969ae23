"""Time of whole training steps, from forward to the parameter step: `python -m benchmarks.training_step`.

The floor of a step is its matrix products at the sgemm peak of the same run: 3 forward and 4 backward for a layer, 2
and 2 for the first one, whose input is deterministic and needs no deltas. Rounds of all workloads are interleaved.
"""

import argparse
import itertools
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.peak import SgemmPeak
from pytagi_ddp.kernels.cpu.threads import get_threads, set_threads
from pytagi_ddp.models import resnet18_cifar10
from pytagi_ddp.nn import (
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Linear,
    MixtureReLU,
    OutputUpdater,
    ReLU,
    Sequential,
)


def mlp(*sizes: int) -> Sequential:
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [Linear(inputs, outputs), ReLU()]
    return Sequential(*layers[:-1])


def mnist_cnn() -> Sequential:
    return Sequential(
        Conv2d(1, 16, 4, bias=False, padding=1, in_width=28, in_height=28),
        MixtureReLU(),
        BatchNorm2d(16),
        AvgPool2d(3, 2),
        Conv2d(16, 32, 5, bias=False),
        MixtureReLU(),
        BatchNorm2d(32),
        AvgPool2d(3, 2),
        Linear(32 * 4 * 4, 100),
        MixtureReLU(),
        Linear(100, 11),
    )


def conv_64() -> Sequential:
    return Sequential(Conv2d(64, 64, 3, bias=False, padding=1, in_width=32, in_height=32))


WORKLOADS: dict[str, tuple[Callable[[], Sequential], int]] = {  # name: network, batch
    "mlp-128-b32": (lambda: mlp(784, 128, 128, 11), 32),
    "mlp-128-b512": (lambda: mlp(784, 128, 128, 11), 512),
    "mlp-4096-b256": (lambda: mlp(784, 4096, 4096, 10), 256),
    "mnist-cnn-b128": (mnist_cnn, 128),
    "conv64-b32": (conv_64, 32),
    "resnet18-b16": (lambda: resnet18_cifar10(0.1, 0.1), 16),
    "resnet18-b128": (lambda: resnet18_cifar10(0.1, 0.1), 128),
}


class Workload:
    """A network, a batch of random numbers, and the times of its steps."""

    def __init__(self, name: str):
        make, batch = WORKLOADS[name]
        self.name, self.net, self.batch = name, make(), batch
        rng = np.random.default_rng(0)
        inputs, outputs = self.net.in_shape.size, self.net.out_shape.size
        self._x = rng.standard_normal((batch, inputs), np.float32)
        if name.startswith("conv"):  # the layer inside a network: variances come in, deltas go out
            self._var = np.full_like(self._x, 0.1)
            self.net.input_state_update = True
        else:
            self._var = None
        self._y = rng.standard_normal(batch * outputs, np.float32)
        self._noise = np.ones_like(self._y)
        self._updater = OutputUpdater(self.net.device)
        self.times: list[float] = []

    def step(self) -> None:
        net = self.net
        net(self._x, self._var)
        self._updater.update(net.output_z_buffer, self._y, self._noise, net.input_delta_z_buffer)
        net.backward()
        net.step()

    def measure(self) -> None:
        """Steps for at least 0.2 s; one time each."""
        end = time.perf_counter() + 0.2
        while True:
            start = time.perf_counter()
            self.step()
            self.times.append(time.perf_counter() - start)
            if time.perf_counter() > end:
                return

    @property
    def floor_flops(self) -> float:
        """Operations of the matrix products of one step."""
        total, first = 0, self._var is None
        for _, leaf in self.net.named_leaves():
            if isinstance(leaf, Linear | Conv2d):
                positions = leaf.out_height * leaf.out_width if isinstance(leaf, Conv2d) else 1
                total += (4 if first else 7) * 2 * self.batch * positions * leaf.num_weights
                first = False
        return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="may be repeated; default: all")
    parser.add_argument("--threads", type=int, help="default: usable cores / ranks on this node")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    args = parser.parse_args()
    if args.threads:
        set_threads(args.threads)
    peak = SgemmPeak(get_threads())
    workloads = [Workload(name) for name in args.workload or WORKLOADS]
    for workload in workloads:
        workload.step()
        workload.step()
    for _ in range(args.repeat):
        peak.measure()
        for workload in workloads:
            workload.measure()
    print(f"sgemm peak on {get_threads()} threads: {peak.flops / 1e9:.0f} GFLOP/s")
    print(f"{'':16}{'median':>12}{'best':>12}{'floor':>12}{'GFLOP/s':>9}{'of peak':>9}   (GFLOP/s, of peak: median)")
    for workload in workloads:
        median, best = statistics.median(workload.times), min(workload.times)
        floor = workload.floor_flops / peak.flops
        rate = workload.floor_flops / median
        print(
            f"{workload.name:16}{median * 1e3:9.2f} ms{best * 1e3:9.2f} ms{floor * 1e3:9.2f} ms"
            f"{rate / 1e9:9.0f}{rate / peak.flops:9.0%}"
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
