"""Speed of the moment products against the sgemm peak of the same run: `python -m benchmarks.products`.

A layer's forward pass is 3 products (2 if its input is deterministic), its backward pass 4 (2 without deltas of the
input). Rounds of all workloads are interleaved and the best time of each counts, so that a busy machine disturbs the
ratios little. Multiply-adds are counted as in the plain sums: more than 100 % is possible, by BLAS kernels for small
matrices (kernels/cpu/_blas.pyx) and by far in the Winograd form of a convolution (kernels/cpu/_winograd.pyx).
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.peak import SgemmPeak, seconds
from pytagi_ddp.kernels.cpu import conv2d, linear
from pytagi_ddp.kernels.cpu.extension import load
from pytagi_ddp.kernels.cpu.threads import get_threads, set_threads
from pytagi_ddp.kernels.tensors import Delta, State, Tensor

LINEAR = [  # batch, inputs, outputs, first layer
    (256, 4096, 4096, False),
    (32, 784, 128, True),
    (32, 128, 128, False),
    (512, 784, 128, True),
]
CONV2D = [  # batch, height and width, channels, outputs, kernel, stride, zeros before and after, first layer
    (32, 32, 64, 64, 3, 1, 1, 1, False),
    (32, 16, 128, 128, 3, 1, 1, 1, False),
    (128, 8, 256, 256, 3, 1, 1, 1, False),
    (128, 4, 512, 512, 3, 1, 1, 1, False),
    (16, 4, 512, 512, 3, 1, 1, 1, False),
    (32, 16, 128, 256, 3, 2, 0, 1, False),
    (32, 16, 128, 256, 2, 2, 0, 0, False),
    (32, 32, 3, 64, 3, 1, 1, 1, True),
    (128, 28, 1, 16, 4, 1, 1, 1, True),
    (128, 13, 16, 32, 5, 1, 0, 0, False),
    (32, 16, 32, 32, 5, 1, 2, 2, False),
    (32, 16, 64, 64, 5, 1, 2, 2, False),
    (32, 32, 64, 64, 4, 2, 1, 1, False),
    (16, 7, 512, 512, 3, 1, 1, 1, False),
]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def calls(
    module: Any,
    shape_in: tuple[int, ...],
    shape_out: tuple[int, ...],
    shape_w: tuple[int, ...],
    geometry: tuple[int, ...],
    first: bool,
) -> tuple[Callable[[], None], Callable[[], None], int]:
    """The forward and the backward call of one layer, and the multiply-adds of one of its products."""
    mu, w, b, delta_mu = (normal(*shape) for shape in (shape_in, shape_w, shape_w[:1], shape_out))
    x, delta = State(mu, None if first else mu**2, mu), Delta(delta_mu, -(delta_mu**2))
    weights = Tensor(w, w**2, *np.empty((2, *w.shape), np.float32))
    bias = Tensor(b, b, *np.empty((2, *b.shape), np.float32))
    out = State(*np.empty((2, *shape_out), np.float32))
    in_delta = None if first else Delta(*np.empty((2, *shape_in), np.float32))

    def forward() -> None:
        module.forward(x, weights, bias, out, *geometry)

    def backward() -> None:
        module.backward(x, delta, weights, bias, in_delta, *geometry, False)

    return forward, backward, delta_mu.size // shape_w[0] * w.size


def workloads() -> Iterator[tuple[str, bool, tuple[Callable[[], None], Callable[[], None], int]]]:
    for batch, inputs, outputs, first in LINEAR:
        name = f"Linear {inputs} to {outputs}, batch {batch}" + first * ", first"
        yield name, first, calls(linear, (batch, inputs), (batch, outputs), (outputs, inputs), (), first)
    for batch, size, channels, outputs, kernel, stride, before, after, first in CONV2D:
        name = f"Conv {channels} to {outputs}, k{kernel} s{stride}, {size}x{size}, batch {batch}" + first * ", first"
        out = (size + before + after - kernel) // stride + 1
        shapes = (batch, size, size, channels), (batch, out, out, outputs), (outputs, channels, kernel, kernel)
        yield name, first, calls(conv2d, *shapes, (stride, before), first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="default: usable cores / ranks on this node")
    parser.add_argument("--repeat", type=int, default=10, help="rounds; the best time counts")
    parser.add_argument("--only", default="", help="only workloads whose name contains this")
    parser.add_argument("--tile", type=int, default=4, help="largest edge of tiles in Winograd forms; 0: plain sums")
    args = parser.parse_args()
    load("_winograd").set_largest(args.tile)
    if args.threads:
        set_threads(args.threads)
    threads = get_threads()
    chosen = [workload for workload in workloads() if args.only in workload[0]]
    peak, best = SgemmPeak(threads), np.full((len(chosen), 2), np.inf)
    for _ in range(args.repeat):
        peak.measure()
        for i, (_, _, (*directions, macs)) in enumerate(chosen):
            for j, call in enumerate(directions):
                best[i, j] = min(best[i, j], seconds(call, 1 + 10**8 // macs // threads))
    rate = peak.flops / 1e9
    print(f"sgemm peak on {threads} threads: {rate:.0f} GFLOP/s")
    print(f"{'':42}{'forward':>22}{'backward':>22}{'both':>22}")
    for (name, first, (_, _, macs)), times in zip(chosen, best, strict=True):
        products = (2, 2) if first else (3, 4)
        columns = [(times[0], products[0]), (times[1], products[1]), (times.sum(), sum(products))]
        print(f"{name:42}", end="")
        for spent, count in columns:
            speed = 2 * count * macs / spent / 1e9
            print(f"{spent * 1e3:8.3f} ms{speed:5.0f}{speed / rate:5.0%} ", end="")
        print()


if __name__ == "__main__":
    main()
