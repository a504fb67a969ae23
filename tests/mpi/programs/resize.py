"""Rank program of `tests.mpi.test_checkpoint`: a training that goes on with other ranks, and in other ways."""

import json

import numpy as np

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import DDPSequential, FSDPSequential, PipelineSequential, Sequential
from pytagi_ddp.training import Callback, Checkpoints, Trainer
from tests.mpi.rank import say

SAMPLES, EPOCHS = 61, 2
WAYS = {
    "ddp": lambda model: DDPSequential(model, average=False),
    "fsdp": lambda model: FSDPSequential(model, average=False, min_num_params=60),
    "pipeline": lambda model: PipelineSequential(model, average=False, n_microbatches=2),
    "one": lambda model: model,
}


class StopAfter(Callback):
    """Asks for a stop before the last of so many steps: ranks hear of it in their next exchange."""

    on_all_ranks = True

    def __init__(self, step: int, at_once: bool):
        self._step = step if at_once else step - 1

    def batch_end(self, trainer: Trainer) -> None:
        if trainer.step == self._step:
            trainer.request_stop()


def train(folder: str | None, way: str, batch_size: int, stop_after: int = 0) -> tuple[list[int], np.ndarray]:
    """Goes on from the newest checkpoint in a folder to a step, or to the end: (samples that it saw, parameters).

    Samples are numbered from epoch to epoch.
    """
    manual_seed(3)
    net = WAYS[way](Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    x = np.random.default_rng(0).normal(size=(SAMPLES, 2)).astype(np.float32)
    seen: list[np.ndarray] = []

    def note(prediction: object, y: np.ndarray) -> np.ndarray:
        seen.append(np.abs(y.ravel()) + SAMPLES * trainer.epoch)
        return np.zeros(len(y))

    checkpoints = Checkpoints(folder, on_signal=folder is not None, resume=folder is not None, allow_changes=True)
    callbacks = [StopAfter(stop_after, way == "one"), checkpoints]
    options = {"epochs": EPOCHS, "batch_size": batch_size, "metrics": {"note": note}, "callbacks": callbacks}
    y = np.arange(SAMPLES, dtype=np.float32)[:, None] * np.sign(x[:, :1])
    trainer = Trainer(net, Gaussian(20.0), **options)
    trainer.fit((x, y))
    trainer.running()  # nobody has asked for the metrics of an epoch that was stopped
    values = [array.ravel() for arrays in net.state_dict().values() for array in arrays]
    return np.concatenate([[], *seen]).astype(int).tolist(), np.concatenate([[], *values])  # in shards: on rank 0


def go_on(folder: str, parts: list[tuple[str, int, int]]) -> None:
    """Trains in each of these ways, with this batch size and up to this step, one after the other in one job.

    Says (samples, parameters) for each rank.
    """
    job = create_communicator("auto")
    for way, batch_size, stop_after in parts:
        job.barrier()  # what one process writes, all read
        if way != "one" or job.rank == 0:
            seen, parameters = train(folder, way, batch_size, stop_after)
            say(json.dumps([seen, parameters.tolist()]))
