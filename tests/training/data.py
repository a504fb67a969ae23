"""Small data and networks that trainings of the tests share."""

import warnings

import numpy as np

import pytagi_ddp
from pytagi_ddp import nn
from pytagi_ddp.distributed import DataParallel, run_threads
from pytagi_ddp.nn import DDPSequential, FSDPSequential, PipelineSequential
from pytagi_ddp.training import Callback, Trainer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(61, 2)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
Y = np.sin(X[:, 0]) + RNG.normal(0, 0.1, len(X))
WEIGHT = np.round(RNG.uniform(0, 3, len(X)), 1)
TEST = X[:19] + np.float32(0.1), LABELS[:19]
OF_TIME = {"samples_per_second", "train_seconds", "communication_share", "bn_seconds"}
WAYS = {
    "ddp": lambda model: DDPSequential(model, average=False),
    "fsdp": lambda model: FSDPSequential(model, average=False),
    "pipeline": lambda model: PipelineSequential(model, n_microbatches=3),
}


class StopAt(Callback):
    """Asks for a stop behind a step, on all ranks or on one; ranks hear of it in their next exchange."""

    on_all_ranks = True

    def __init__(self, step: int | None, rank: int | None = None):
        self._step, self._rank = step, rank

    def fit_begin(self, trainer):
        trainer._watches = True  # as after `stop_on_signal`, which threads cannot call

    def batch_end(self, trainer):
        if trainer.step == self._step and self._rank in (None, trainer.ranks.rank):
            trainer.request_stop()


def network(outputs: int = 3, norm: bool = False) -> nn.Sequential:
    pytagi_ddp.manual_seed(0)
    if norm:  # two pixels in, two channels behind a convolution
        first = [nn.Conv2d(1, 4, 1, in_width=2, in_height=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Linear(8, outputs)]
        return nn.Sequential(first)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, outputs))


def on_ranks(way: str, ranks: int, train, outputs: int = 3) -> list:
    """What `train(net)` returns on each of so many ranks, threads; "one" is one process, "parallel" so many devices."""
    if way == "one":
        return [train(network(outputs))]
    if way == "parallel":
        net = DataParallel(network(outputs), ["cpu"] * ranks, average=False)
        try:
            return [train(net)]
        finally:
            net.close()
    return run_threads(lambda: train(WAYS[way](network(outputs))), ranks)


def shares(net) -> int:
    """How many ranks share a batch of the trainer."""
    return 1 if isinstance(net, nn.Sequential | DataParallel | PipelineSequential) else net.world_size


def without_times(history: list[dict]) -> list[dict]:
    return [{name: value for name, value in results.items() if name not in OF_TIME} for results in history]


def state_of(net) -> bytes:
    """All parameters and running statistics, or this rank's part of them."""
    if isinstance(net, FSDPSequential):
        return b"".join(net.to_host(part.array).tobytes() for part in net.slices())
    arena = (net if isinstance(net, nn.Sequential) else net.model).arena
    return arena.theta.tobytes() + arena.statistics.tobytes()


def trained(**options) -> nn.Sequential:
    """A network after a training on one process."""
    net = network()
    Trainer(net, **options).fit((X, LABELS))
    return net


def advice(net, x, y, likelihood, **options) -> list[str]:
    """The warnings of a training."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        net.fit(x, y, likelihood, epochs=1, **options)
    return [str(warning.message) for warning in found]
