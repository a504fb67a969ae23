"""What an image costs in a micro-batch: ResNet18 in two stages, forward and back, in micro-batches of 2 to 32 images.

    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python -m benchmarks.micro_batches

A pipeline pays for its overlap with small products. Each stage runs by itself here, with the states and deltas that it
would be sent; sizes take turns, round by round, and times are medians over rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

import pytagi_ddp
from pytagi_ddp.distributed.pipeline.balance import balance_by_products
from pytagi_ddp.models import resnet8_cifar10, resnet18_cifar10
from pytagi_ddp.nn import BaseHiddenStates, Sequential

MODELS = {"resnet18": resnet18_cifar10, "resnet8": resnet8_cifar10}
SIZES = (2, 4, 8, 16, 32)


def main(argv: Sequence[str] | None = None) -> dict[tuple[int, int], float]:
    """Prints a table, and returns the milliseconds per image by stage and micro-batch."""
    parser = argparse.ArgumentParser("micro_batches", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = parser.parse_args(argv)
    stages = cut(args.model, args.stages)
    times: dict[tuple[int, int], list[float]] = {}
    for round_ in range(args.rounds + 1):
        for k, stage in enumerate(stages):
            for size in args.sizes:
                seconds = passes(stage, size, first=k == 0)
                if round_:  # the first one compiles, and touches all memory
                    times.setdefault((k, size), []).append(1e3 * seconds / size)
    result = {key: median(values) for key, values in times.items()}
    print(f"{args.model}, {args.stages} stages, ms per image, forward and back (and over {args.sizes[-1]} images):")
    for k, stage in enumerate(stages):
        last = result[k, args.sizes[-1]]
        cells = [f"{size:>4}: {result[k, size]:7.2f} ({result[k, size] / last:.2f})" for size in args.sizes]
        print(f"stage {k}, {stage.num_parameters:>10,} parameters {''.join(cells)}")
    return result


def cut(model: str, stages: int) -> list[Sequential]:
    """The network in stages of about as many products."""
    parts, start = [], 0
    for count in balance_by_products(MODELS[model](0.1, 0.1), stages):
        pytagi_ddp.manual_seed(0)
        part = MODELS[model](0.1, 0.1)
        part.keep_layers(start, start + count)
        parts.append(part)
        start += count
    return parts


def passes(stage: Sequential, size: int, first: bool) -> float:
    """Seconds of a micro-batch in one stage, both ways; all but the first stage give the deltas of their input."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(size, stage.in_shape.size)).astype(np.float32)
    states = BaseHiddenStates()
    states.set_input_x(x, np.full(x.size, 0.1), size)
    deltas = generator.normal(size=(2, size * stage.out_shape.size)).astype(np.float32) * 1e-3
    stage.input_state_update = not first
    start = time.perf_counter()
    stage(x if first else states)
    stage.set_delta_z(deltas[0], -abs(deltas[1]))
    stage.backward()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
