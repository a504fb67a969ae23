"""Rank programs of `tests.mpi.test_faults`: each ends its job, or seems to be about to, in a launch of its own."""

import ctypes
import functools
import os
import signal
import sys
import threading
import time

import numpy as np

from pytagi_ddp import nn
from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.nn import DDPConfig, DDPSequential
from tests.learning import learn
from tests.mpi.ddp_networks import batch, dense, with_batch_norm
from tests.mpi.rank import fault, job_folder, ready, say


class Started:
    """A job that has run the start of MPI, its first collective, and three more."""

    def __init__(self):
        self.comm = create_communicator()
        self.rank, self.size = self.comm.rank, self.comm.world_size
        self.last = self.rank == self.size - 1
        self.buffer = np.ones(300_000, np.float32)
        self.all_reduce(3)
        self.comm.timeout = float(os.environ.get("TIMEOUT_ONCE_STARTED", 300))  # starting may be slow

    def all_reduce(self, times: int = 1) -> None:
        for _ in range(times):
            self.comm.all_reduce(self.buffer)

    def go_on(self) -> None:
        """What the ranks would do without the fault."""
        self.all_reduce(3)
        say("reached the end")


def with_fault(program):
    """Makes ``program(job, ...)``, which begins with its fault, a rank program of the other arguments."""

    @functools.wraps(program)
    def run(**arguments):
        job = Started()
        fault()
        program(job, **arguments)

    return run


WAYS = {
    "ddp": DDPSequential,
    "buckets": functools.partial(DDPSequential, config=DDPConfig(buckets=2)),
    "merges": functools.partial(DDPSequential, every=2),
    "synchronised": functools.partial(DDPSequential, sync_batch_norm=True),
    "shards": nn.FSDPSequential,
    "whole": functools.partial(nn.FSDPSequential, reshard_after_forward=False),
    "pipeline": nn.PipelineSequential,
}


def without_steps(done):
    """Every way of training; none comes to its step, as at a time limit. done: calls of the loop that come first."""
    made = {name: way(with_batch_norm() if name == "synchronised" else dense(nn.Tanh())) for name, way in WAYS.items()}
    for net in made.values():
        x, y = batch(net.model if hasattr(net, "model") else dense(nn.Tanh()), 4, net.rank)
        if isinstance(net, nn.PipelineSequential):
            update = nn.OutputUpdater("cpu").update
            net.forward_backward(x, lambda states, rows, deltas: update(states, y[rows], 1.0, deltas))  # noqa: B023
            continue
        net(x)
        if done > 1:
            nn.OutputUpdater("cpu").update(net.output_z_buffer, y, np.ones(y.size), net.input_delta_z_buffer)
        if done > 2:
            net.backward()
    return made


def stopped_between_calls():
    """Between the first two calls, the second and the third one, and the third one and the step."""
    kept.extend(without_steps(done) for done in (1, 2, 3))  # alive until the end
    say("ends")


kept: list = []


@with_fault
def slow_receivers(job):
    for seconds in (0.5, 0.0):
        if job.rank > 0:
            time.sleep(seconds * job.rank)
        job.comm.broadcast(job.buffer, 0)


@with_fault
def work_of_its_own(job):
    if job.rank == 0:
        time.sleep(1)
        say("plotted")


@with_fault
def stalled_at_the_end(job):
    if job.last:
        time.sleep(60)


def fail(kind: str) -> None:
    """Fails in one of three ways."""

    def no_batch():
        raise ValueError("no batch 17")

    if kind == "exit":
        sys.exit(0)
    if kind == "exception":
        no_batch()
    thread = threading.Thread(target=no_batch)
    thread.start()
    thread.join()


@with_fault
def beside_a_collective(job, kind, moment, more):
    """The last rank fails beside a collective; a signal's handler runs in the middle of the one that it waits in."""
    if moment == "before":
        if job.last:
            fail(kind)
    elif moment == "during":
        if job.last:
            signal.signal(signal.SIGALRM, lambda *_: fail(kind))
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            job.all_reduce()
        time.sleep(60)
    elif moment == "in flight":
        handle = job.comm.start_all_reduce(job.buffer)
        if job.last:
            fail(kind)
        handle.wait()
    elif moment == "after":
        job.all_reduce()
        if job.last:
            fail(kind)
    if more:
        job.go_on()


@with_fault
def error_of_all_ranks(job):
    raise FileNotFoundError("no data")


@with_fault
def leave_early(job):
    if job.last:
        sys.exit(3)
    job.go_on()


@with_fault
def fewer_batches(job):
    ddp = DDPSequential(dense(nn.ReLU()))
    x, y = batch(ddp.model, 4, job.rank)
    for _ in range(3 - job.last):
        learn(ddp, x, y)


@with_fault
def differ(job):
    DDPSequential(dense(nn.Sigmoid() if job.last else nn.ReLU()))


@with_fault
def miss_a_broadcast(job):
    if job.rank == 0:
        job.comm.broadcast(job.buffer[:1])


@with_fault
def exit_in_order(job):
    sys.exit(3 if job.last else 0)


@with_fault
def stall(job):
    if job.last:
        time.sleep(60)
    job.go_on()


@with_fault
def different_collectives(job):
    if job.last:
        job.comm.barrier()
    else:
        job.all_reduce()
    job.go_on()


@with_fault
def swallow_the_error(job):
    try:
        if job.rank == 0:
            job.all_reduce()
        else:
            time.sleep(3)
    except TimeoutError:
        say("caught")
        try:
            job.comm.barrier()
        except RuntimeError as error:
            say(error)
        sys.exit(0)


@with_fault
def chain_hooks(job):
    def hook(kind, error, trace):
        with (job_folder() / "results").open("a") as file:  # mpirun may lose what is printed just before the end
            file.write(f"hook: {error}\n")

    job.comm.close()
    assert sys.excepthook is sys.__excepthook__ and threading.excepthook is threading.__excepthook__
    sys.excepthook = hook
    again = create_communicator()
    assert sys.excepthook not in (hook, sys.__excepthook__)
    again.barrier()
    if job.rank == 1:
        raise ValueError("seen by both")
    again.barrier()


@with_fault
def reduce_for_ever(job):
    ready(job.rank)
    while True:
        job.all_reduce()


@with_fault
def idle(job):
    ready(job.rank)
    if job.rank:
        job.comm.barrier()
    else:
        time.sleep(60)


@with_fault
def interrupt_in_a_callback(job, again=None):
    callback = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
    if job.last:
        if again is not None:
            threading.Timer(again, os.kill, (os.getpid(), signal.SIGINT)).start()
        callback()
    while True:
        job.all_reduce()


@with_fault
def asked_to_stop(job):
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1) or say("asked to stop"))
    ready(job.rank)
    if job.rank == 0:
        while not asked:
            time.sleep(0.01)
    job.go_on()
