"""Rank programs of `tests.mpi.test_nodes`."""

import hashlib
import os
import socket
import sys
import time

import numpy as np

from pytagi_ddp import manual_seed
from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.nn import DDPConfig, DDPSequential
from tests.mpi.ddp_networks import backpropagate, batch, with_batch_norm
from tests.mpi.rank import ready, say


def network(options: dict) -> DDPSequential:
    manual_seed(3)
    return DDPSequential(with_batch_norm(), DDPConfig(backend="mpi", timeout=20), average=False, **options)


def learn(ddp: DDPSequential, steps: int) -> None:
    rank, size = ddp.rank, ddp.world_size
    for step in range(steps):
        x, y = batch(ddp.model, 4 * size, step)
        backpropagate(ddp, x[4 * rank : 4 * rank + 4], y[4 * rank : 4 * rank + 4])
        ddp.step()


def train(options: dict) -> None:
    """Says where this rank is, and what it has learnt."""
    ddp = network(options)
    learn(ddp, 4)
    comm = ddp.communicator
    theta = hashlib.sha256(ddp.model.arena.theta.tobytes()).hexdigest()
    say(ddp.rank, ddp.world_size, comm.local_rank, comm.local_world_size, socket.gethostname(), theta)


def train_until_cut(folder: str) -> None:
    """Trains for ever, with its errors in a file of the rank: mpirun cannot bring what the far node says."""
    ddp = network({})
    os.dup2(os.open(f"{folder}/{ddp.rank}", os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
    learn(ddp, 1)
    ddp.communicator.timeout = 1.0
    ready(ddp.rank)
    learn(ddp, 10**6)


def time_a_megabyte() -> None:
    comm = create_communicator("mpi", timeout=20)
    megabyte = np.ones(250_000, np.float32)
    comm.all_reduce(megabyte)
    start = time.perf_counter()
    comm.all_reduce(megabyte)
    if comm.rank == 0:
        say(time.perf_counter() - start)


def leave() -> None:
    sys.exit(3)


def sleep() -> None:
    time.sleep(60)
