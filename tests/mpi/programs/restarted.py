"""The program of `tests.mpi.random_restarts`: it trains from its newest checkpoint, and starts die as told.

Nothing of the library is imported before the first moment at which it may die.
"""

import hashlib
import os
import signal
import threading
import time
from pathlib import Path

from tests.mpi.rank import ready, say

EPOCHS, EVERY = 3, 3  # 8 steps an epoch, and a checkpoint after every third
POINTS = ("start", "step", "exchange", "save", "end")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def die(victim: str, delay: float) -> None:
    """Kills this rank, Hydra's proxy or mpirun after so many seconds.

    The kernel kills the rank, also where it does not run Python: without a handler, SIGALRM ends a process at once.
    """
    delay = max(delay, 1e-6)
    if victim == "rank":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, delay)
        return
    pid = os.getppid() if victim == "proxy" else parent_of(os.getppid())
    threading.Timer(delay, os.kill, (pid, signal.SIGKILL)).start()


def train(
    folder: str,
    way: str,
    deaths: list,
    fail_at: int = 0,
    on_signal: bool = False,
    keep: int = 2,
    average_last: float = 0.0,
) -> None:
    """Trains, and says the steps that it resumes from and saves at, and the parameters at the end.

    Args:
        deaths: for each start until one has none: the rank that brings death, the victim, the point, the step, a delay.
        fail_at: the step in which rank 1 raises an error; 0: none.
        on_signal: whether SIGUSR1 stops it; steps take 0.1 s then.
        keep: checkpoints. average_last: of the trainer.
    """
    restart = int(os.environ.get("PYTAGI_DDP_RESTART", "0"))
    rank, victim, point, step, delay = deaths[restart] if restart < len(deaths) else (-1, "", "", 0, 0.0)
    own = int(os.environ.get("PMI_RANK", "-1"))

    def come_to(place: str, at: int = 0) -> None:
        nonlocal point
        if own == rank and (place, at) == (point, step):
            point = ""  # once: the next parent of this rank may be the launcher
            die(victim, delay)

    come_to("start")
    from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, PipelineSequential
    from pytagi_ddp.training import Callback, Checkpoints, Trainer
    from tests.training.data import LABELS, TEST, X, network, state_of

    ways = {
        "ddp": lambda net: DDPSequential(net, average=False),
        "buckets": lambda net: DDPSequential(net, DDPConfig(buckets=2)),
        "merges": lambda net: DDPSequential(net, every=2),
        "synchronised": lambda net: DDPSequential(net, sync_batch_norm=True),
        "shards": lambda net: FSDPSequential(net, average=False),
        "whole": lambda net: FSDPSequential(net, reshard_after_forward=False),
        "pipeline": lambda net: PipelineSequential(net, n_microbatches=2),
    }
    every = None if way == "merges" else EVERY  # between merges, there is nothing to save
    net = ways[way](network(norm=way == "synchronised"))

    class Before(Callback):
        """Comes to the moment of a checkpoint, on all ranks."""

        on_all_ranks = True

        def batch_end(self, trainer) -> None:
            come_to("save", trainer.step)
            time.sleep(0.1 * on_signal)
            if trainer.step == fail_at and own == 1:
                raise ValueError("the fault of this program")

        def epoch_end(self, trainer) -> None:
            come_to("save", trainer.step)

    class After(Callback):
        """Says which checkpoint was written, at the next moment: they are written after all other callbacks."""

        on_all_ranks = True
        written = 0

        def say_saved(self) -> None:
            if own == 0 and self.written:
                say("saved", self.written)
            self.written = 0

        def fit_begin(self, trainer) -> None:
            if own == 0:
                say("from", trainer.step)

        def batch_end(self, trainer) -> None:
            self.say_saved()
            if every and trainer.step % every == 0 and trainer.batch != trainer.batches_per_epoch:
                self.written = trainer.step
            come_to("step", trainer.step)

        def epoch_end(self, trainer) -> None:
            self.say_saved()
            self.written = trainer.step

        def fit_end(self, trainer) -> None:
            self.say_saved()

    step_of = net.step

    def exchange(*arguments, **options):
        come_to("exchange", trainer.step + 1)
        return step_of(*arguments, **options)

    net.step = exchange
    checkpoints = Checkpoints(folder, every=every, keep=keep, on_signal=on_signal, resume=True)
    shared = 1 if way == "pipeline" else net.world_size
    size = -(-len(X) // 8 // shared)
    callbacks = [Before(), checkpoints, After()]
    trainer = Trainer(net, epochs=EPOCHS, batch_size=size, average_last=average_last, callbacks=callbacks)
    trainer.fit((X, LABELS), TEST)
    come_to("end")
    if trainer.stopped:
        return
    say("rank", own, hashlib.sha256(state_of(net)).hexdigest())


def wait() -> None:
    """Waits for a signal: SIGUSR1 ends it well, others end it as they do."""
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    ready(int(os.environ["PMI_RANK"]))
    while True:
        signal.pause()


def lose_a_node(down: str) -> None:
    """At the first start, the second node goes down; later starts say how many ranks there are."""
    if os.environ["PYTAGI_DDP_RESTART"] == "0":
        Path(down).touch()
        signal.pause() if os.environ["PMI_RANK"] == "0" else os.kill(os.getpid(), signal.SIGKILL)
    say("ranks", os.environ["PMI_SIZE"])
