"""Trainings whose ranks end together: by an exception of a callback, or by a signal."""

from pathlib import Path

from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.nn import DDPSequential
from pytagi_ddp.training import Callback, Checkpoints, Trainer
from tests.mpi.rank import ready
from tests.training.data import LABELS, X, network


class Fails(Callback):
    """Raises on rank 0 in the second epoch."""

    def __init__(self, moment: str):
        self._moment = moment

    def _fail(self, trainer) -> None:
        if trainer.epoch >= 1:
            raise OSError("the disk is full")

    def epoch_end(self, trainer) -> None:
        if self._moment == "epoch_end":
            self._fail(trainer)

    def batch_end(self, trainer) -> None:
        if self._moment == "batch_end":
            self._fail(trainer)


def fails(moment: str) -> None:
    net = DDPSequential(network(), average=False)
    Trainer(net, Categorical(3), epochs=3, callbacks=[Fails(moment)]).fit((X, LABELS))


class Ready(Callback):
    """Says to the test that steps are being made."""

    on_all_ranks = True

    def batch_end(self, trainer) -> None:
        if trainer.step == 3:
            ready(trainer.ranks.rank)


def until_a_signal(folder: str) -> None:
    net = DDPSequential(network(), average=False)
    checkpoints = Checkpoints(folder, on_signal=True)
    trainer = Trainer(net, Categorical(3), epochs=100_000, batch_size=4, callbacks=[Ready(), checkpoints])
    trainer.fit((X, LABELS))
    if net.rank == 0:
        Path(folder, "position").write_text(f"{trainer.stopped} {trainer.epoch} {trainer.batch} {trainer.step}")
