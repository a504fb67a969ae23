"""Rank programs of `tests.mpi.test_nodes`."""

import hashlib
import os
import socket
import sys
import time

import numpy as np

from pytagi_ddp import manual_seed
from pytagi_ddp.distributed.communicator import Communicator, create_communicator
from pytagi_ddp.distributed.engine import across_nodes
from pytagi_ddp.distributed.engine.combine import tree_sum
from pytagi_ddp.nn import DDPConfig, DDPSequential
from tests.learning import backpropagate
from tests.mpi.ddp_networks import batch, with_batch_norm
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


def add_across() -> None:
    """Long sums of 3 + 1 + 1 ranks, and of groups: of 3 + 1, of one rank per node, and of one node; by both ways."""
    comm = create_communicator("mpi", timeout=20)
    across_nodes.PIECE_BYTES, across_nodes.IN_FLIGHT = 1 << 18, 2
    shape = [0, 0, 0, 1, 2]  # the node of each rank
    checks, chosen = {}, comm._group.across.way
    for members in (range(5), range(4), range(2, 5), range(3)):
        group = comm.split(0 if comm.rank in members else None) if len(members) < 5 else comm
        if group is None:
            continue
        across = group._group.across
        checks[f"{members} on several nodes"] = (across is None) == (members == range(3))
        for way in across_nodes.WAYS if across else [None]:
            if across:
                across.way = way
            for dtype, n in (("f4", 9 * 65_536 + 1), ("f8", 200_001), ("i8", 200_000)):
                checks |= {f"{members} {way} {dtype} {n}: {name}": ok for name, ok in sums(group, dtype, n).items()}
            parts = [np.random.default_rng(rank).standard_normal(300_000).astype("f4") for rank in members]
            of_nodes = [[x for x, rank in zip(parts, members, strict=True) if shape[rank] == k] for k in range(3)]
            in_order = tree_sum([tree_sum(of_node) for of_node in of_nodes if of_node])
            own = parts[group.rank]
            group.all_reduce(own)
            checks[f"{members} {way}: node by node"] = own.tobytes() == in_order.tobytes() or way != "nodes"
    say(comm.rank, chosen, len(checks), *(name.replace(" ", "_") for name, ok in checks.items() if not ok))


def sums(group: Communicator, dtype: str, n: int) -> dict[str, bool]:
    parts = [np.random.default_rng(rank).integers(-1000, 1000, n).astype(dtype) for rank in range(group.world_size)]
    whole, halves = parts[group.rank].copy(), [half.copy() for half in np.array_split(parts[group.rank], 2)]
    handles = [group.start_all_reduce(half) for half in halves]  # in flight together
    group.all_reduce(whole)
    for handle in handles:
        handle.wait()
    found = {"sum": np.array_equal(whole, sum(parts)), "halves": np.array_equal(np.concatenate(halves), whole)}
    if dtype != "i8":
        rounded = np.random.default_rng(group.rank).standard_normal(n).astype(dtype)
        rounded[n // 2] = [np.nan, np.inf, -np.inf][group.rank % 3]
        group.all_reduce(rounded, "mean")
        digest = hashlib.sha256(rounded.tobytes()).hexdigest()
        found["same bits"] = len(set(group.all_gather_object(digest))) == 1
        found["NaN"] = np.isnan(rounded[n // 2]) and np.isfinite(rounded).sum() == n - 1
    return found


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
