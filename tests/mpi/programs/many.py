"""Rank programs of `tests.many`."""

import hashlib
import re
import time
from pathlib import Path

from pytagi_ddp import manual_seed
from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.nn import DDPConfig, DDPSequential
from tests.mpi.ddp_networks import with_batch_norm
from tests.mpi.programs.nodes import learn
from tests.mpi.rank import fault, ready, say


def start(began: float) -> None:
    """Says when this rank had imported the library, joined the job, and trained, its memory, and its parameters."""
    imported = time.time()
    comm = create_communicator("mpi", timeout=300)
    joined = time.time()
    manual_seed(comm.rank)
    ddp = DDPSequential(with_batch_norm(), DDPConfig(backend="mpi"), average=False)
    learn(ddp, 3)
    trained = time.time()
    comm.barrier()
    memory = Path("/proc/self/smaps_rollup").read_text()
    kilobytes = [re.search(rf"^{name}: *(\d+) kB", memory, re.MULTILINE)[1] for name in ("Rss", "Pss")]
    comm.barrier()  # nobody leaves while others count what they share
    theta = hashlib.sha256(ddp.model.arena.theta.tobytes()).hexdigest()
    say(*(f"{moment - began:.3f}" for moment in (imported, joined, trained)), *kilobytes, theta)


def train_until(fault_on: int, kind: str) -> None:
    """Trains for ever; on one rank, an exception or an early end after three steps, or neither (a signal comes)."""
    ddp = DDPSequential(with_batch_norm(), DDPConfig(backend="mpi"), average=False)
    learn(ddp, 2)
    ready(ddp.rank)
    learn(ddp, 3 if ddp.rank == fault_on and kind != "SIGKILL" else 10**9)
    fault()
    if kind == "exception":
        raise ValueError("the fault of this rank")
