"""The programs of `tests.mpi.random_signals`: one trains in a way until a signal ends it, one goes on after each."""

import signal
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed import DataParallel, run_threads
from pytagi_ddp.estimators import TAGIRegressor
from pytagi_ddp.interrupts import answer
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, PipelineSequential
from tests.mpi.rank import ready

WAYS = {
    "ddp": DDPSequential,
    "buckets": partial(DDPSequential, config=DDPConfig(buckets=2)),
    "merges": partial(DDPSequential, every=3),
    "synchronised": partial(DDPSequential, sync_batch_norm=True),
    "shards": FSDPSequential,
    "whole": partial(FSDPSequential, reshard_after_forward=False),
    "pipeline": partial(PipelineSequential, n_microbatches=2),
}


def network() -> nn.Sequential:
    manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 64), nn.BatchNorm2d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )


ALONE = ("Sequential", "serial buckets", "serial shards", "DataParallel", "run_threads", "estimator")


def train(way: str, steps: int = 10**9, for_ever: bool = True) -> None:
    net = WAYS[way](network())
    rng, update = np.random.default_rng(net.rank), nn.OutputUpdater("cpu").update
    x, y = rng.normal(size=(16, 8)).astype(np.float32), rng.normal(size=(16, 4)).astype(np.float32)
    var_y = np.ones(y.shape, np.float32)
    if for_ever:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has set to be ignored
        ready(net.rank)
    for _ in range(steps):
        if way == "pipeline":
            net.forward_backward(x, lambda states, rows, deltas: update(states, y[rows], 1.0, deltas))
        else:
            net(x)
            update(net.output_z_buffer, y, var_y, net.input_delta_z_buffer)
            net.backward()
        net.step()


class Alone:
    """One process that trains in a way, and goes on after each Ctrl-C, until SIGUSR1: then it checks what it has."""

    def __init__(self, way: str):
        self.way, self.seen, self.done = way, 0, False
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(16, 8)).astype(np.float32)
        self.y = rng.normal(size=(16, 4)).astype(np.float32)
        self.net: Any = None
        self.threads = get_threads()

    def make(self) -> Any:
        if self.way == "DataParallel":
            return DataParallel(network(), ["cpu"] * 2)
        return {"Sequential": lambda net: net, "serial buckets": WAYS["buckets"], "serial shards": WAYS["shards"]}[
            self.way
        ](network())

    def learn(self) -> None:
        if self.way == "estimator":
            self.net = TAGIRegressor(8, epochs=2, n_folds=2, n_seeds=1).fit(self.x, self.y[:, 0])
        elif self.way == "run_threads":
            run_threads(train, 2, "merges", 20, False)
        else:
            self.net = self.net or self.make()
            self.net(self.x)
            var_y = np.ones(self.y.shape, np.float32)
            nn.OutputUpdater("cpu").update(self.net.output_z_buffer, self.y, var_y, self.net.input_delta_z_buffer)
            self.net.backward()
            self.net.step()

    def step(self) -> None:
        """`learn`; after an interrupt that has ended the threads of replicas, with new ones."""
        try:
            self.learn()
        except RuntimeError as error:
            if "ranks of this process have ended" not in str(error):
                raise
            self.net = None
            self.learn()

    def go_on(self) -> None:
        while not self.done:
            self.step()

    def check(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        answer()
        for _ in range(3):
            self.step()
        if self.net is not None:
            mu = np.asarray(self.net.predict(self.x)[0] if self.way != "estimator" else self.net.predict(self.x))
            assert np.isfinite(mu).all()
            if hasattr(self.net, "close"):
                self.net.close()
        assert get_threads() == self.threads, (get_threads(), self.threads)
        print("sound", self.seen, flush=True)


def alone(way: str) -> None:
    program = Alone(way)
    signal.signal(signal.SIGUSR1, lambda *_: setattr(program, "done", True))
    while program.net is None and way not in ("run_threads",):
        program.learn()
    ready(0)
    while not program.done:
        with suppress(KeyboardInterrupt):
            program.seen += 1
            with suppress(KeyboardInterrupt):
                program.go_on()
    program.check()
