"""What the ranks of `tests.mpi.random_faults` run: training, without end where a fault is to end it, and the fault.

``python -m tests.mpi.faulty_training CASE``, with a `Case` in JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path

FOLDER = Path(os.environ["TEST_JOB_FOLDER"])


LATER = """
import os, sys, time
delay, pid, number = sys.argv[1:]
time.sleep(float(delay))
with open(os.path.join(os.environ["TEST_JOB_FOLDER"], "fault"), "w") as file:
    file.write(str(time.monotonic()))
os.kill(int(pid), int(number))
"""


# What a program beside a rank does: it trains by itself.
BESIDE = """
import numpy as np
from pytagi_ddp import nn
ddp = nn.DDPSequential(nn.Sequential(nn.Linear(8, 4)))
assert (ddp.communicator.backend, ddp.world_size) == ("serial", 1)
ddp(np.ones((3, 8), np.float32))
"""


class Trouble:
    """Makes the fault of a case when its rank comes to its point of the program."""

    def __init__(self, case: dict):
        self._case = case
        self._started: list = []  # processes that work beside this rank
        self.ddp = None  # once it is there
        self.mine = int(os.environ["PMI_RANK"]) == case["rank"]

    def at(self, point: str, step: int = 0) -> bool:
        """Returns whether the caller shall return early; most faults do not come back."""
        case = self._case
        if not self.mine or (point, step) != (case["point"], case["step"]):
            return False
        kind, delay = case["kind"], case["delay"]
        if kind.startswith("SIG"):
            signal_number = int(getattr(signal, kind))
            # From outside: inside MPI_Init no thread of this process would come to it.
            subprocess.Popen([sys.executable, "-S", "-c", LATER, str(delay), str(os.getpid()), str(signal_number)])
            if not delay:
                time.sleep(60)
        elif kind == "fork":
            self._fork()
        elif kind == "program":
            self._start_program()
        elif kind == "exception in a thread":
            threading.Timer(delay, self._fail).start()
        elif kind == "exception":
            self._fail()
        else:
            stamp()
            if kind.startswith("exit"):
                sys.exit(int(kind.split()[1]))
            elif kind == "stall":
                time.sleep(60)
            return kind == "return"
        return False

    def is_other(self, kind: str) -> bool:
        """Returns whether this rank is the one that differs from the others in this way."""
        return self.mine and self._case["kind"] == kind

    def _fork(self) -> None:
        """Forks a process that ends in some way, after a delay; the rank does not wait for it here."""
        case = self._case
        with warnings.catch_warnings():  # from Python 3.12 on, a fork beside other threads gives one
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        self._started.append(lambda: os.waitpid(pid, 0))
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its traceback is none of the job's
            time.sleep(case["delay"])
            if case["how"] == "communicate" and self.ddp is not None:
                for call in (self.ddp.step, self.ddp.barrier):
                    with contextlib.suppress(Exception):
                        call()
            elif case["how"] == "fail":
                raise ValueError("in the child")
            elif case["how"] == "be killed":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(3)

    def _start_program(self) -> None:
        """Starts a program that uses the library, in one of several ways."""
        if self._case["how"] == "system":
            assert os.system(f"{sys.executable} -W ignore -c '{BESIDE}'") == 0
        else:
            other = subprocess.Popen([sys.executable, "-W", "ignore", "-c", BESIDE])
            self._started.append(other.wait)
            if self._case["how"] == "wait":
                assert other.wait() == 0

    def wait_for_started(self) -> None:
        """Returns when what this rank has started is at its end."""
        for wait in self._started:
            wait()

    def _fail(self) -> None:
        stamp()
        raise ValueError("the fault of this case")


class Exchange:
    """What ranks tell each other besides deltas: in groups, by messages around a ring, in blocks.

    Args:
        comm: of all ranks. ways: some of "groups", "messages", "scattered". step: that of the fault.
    """

    def __init__(self, comm, ways: list, trouble: Trouble, step: int):
        self._comm, self._ways, self._trouble, self._step = comm, ways, trouble, step
        self._groups = [comm.split(comm.rank % 2), comm.split(0, -comm.rank)] if "groups" in ways else []

    def __call__(self, step: int) -> None:
        import numpy as np

        comm, trouble, handles, checks = self._comm, self._trouble, [], []
        rank, size, n = comm.rank, comm.world_size, (5, 40_000)[step % 2]
        faulty = step == self._step
        for group in self._groups:
            group.timeout = comm.timeout
            total, members = (
                np.full(n, 1.0 + rank),
                [r for r in range(size) if group is self._groups[1] or r % 2 == rank % 2],
            )
            handles.append(group.start_all_reduce(total))
            checks.append((total, sum(members) + len(members)))
        if self._groups and faulty and trouble.is_other("another group"):
            stamp()
            self._groups[1].barrier()
        if "messages" in self._ways:
            came = np.empty(n)
            if faulty and trouble.is_other("no message"):
                stamp()
            else:
                length = n + (1 if step % 2 else -1) * (faulty and trouble.is_other("other message"))
                stamp() if length != n else None
                handles.append(comm.start_send(np.full(length, 1.0 * rank + step), (rank + 1) % size))
            handles.append(comm.start_receive(came, (rank - 1) % size))
            checks.append((came, (rank - 1) % size + step))
        if "scattered" in self._ways:
            blocks = np.full((size, n), rank + 1, np.float32)
            handles.append(comm.start_reduce_scatter(blocks, blocks[rank]))
            handles.append(comm.start_all_gather(blocks[rank], blocks))
            checks.append((blocks, size * (size + 1) / 2))
        for handle in handles[:: 1 if rank else -1]:
            handle.wait()
        assert all((array == value).all() for array, value in checks)


def stamp() -> None:
    """Notes the time of the fault."""
    note("fault", time.monotonic())


def note(name: str, value: float) -> None:
    """Writes a number to a file of the job, which appears with the number in it."""
    own = FOLDER / f"{name}.{threading.get_ident()}.tmp"  # another thread may note the same
    own.write_text(str(value))
    own.rename(FOLDER / name)


def main(case: dict) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits "ignored"
    trouble = Trouble(case)
    if trouble.at("before MPI"):
        return
    import numpy as np

    from pytagi_ddp import manual_seed, nn
    from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, PipelineSequential
    from tests.mpi.ddp_networks import batch, with_batch_norm

    manual_seed(1)
    options = dict(case["options"])
    config = {name: options.pop(name) for name in ("wire_dtype", "buckets") if name in options}
    talk = [name for name in ("groups", "messages", "scattered") if options.pop(name, False)]
    use_join, use_no_sync = options.pop("join", False), options.pop("no_sync", False)
    width = 64
    if trouble.is_other("other network"):
        width = 63
        stamp()
    if trouble.is_other("other options"):
        options["average"] = False
        stamp()
    if options.get("sync_batch_norm"):
        net = with_batch_norm()
    else:
        net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 4))
    if trouble.at("before construction"):
        return
    sharded, piped = "reshard_after_forward" in options, "n_microbatches" in options
    alternating = piped and "schedule" not in options
    way = partial(FSDPSequential, min_num_params=100) if sharded else PipelineSequential if piped else DDPSequential
    ddp = way(net, DDPConfig(backend="mpi", **config), **options)
    ddp.communicator.timeout = case["timeout"]
    trouble.ddp = ddp
    note(str(ddp.rank), os.getpid())  # as ready() of tests.mpi.run
    updater = nn.OutputUpdater("cpu")
    if talk and trouble.at("before split"):
        return
    exchange = Exchange(ddp.communicator, talk, trouble, case["step"])

    def learn(x, y, step: int) -> bool:
        if trouble.at("before forward", step):
            return False
        if alternating:
            ddp.forward_backward(x, lambda states, rows, deltas: updater.update(states, y[rows], 1.0, deltas))
            return not trouble.at("before backward", step)
        ddp(x)
        updater.update(ddp.output_z_buffer, y, np.ones(y.size, np.float32), ddp.input_delta_z_buffer)
        if trouble.at("before backward", step):
            return False
        ddp.backward()
        return True

    def train() -> bool:
        """Returns whether it came to its end."""
        x, y = batch(net, 4, ddp.rank)
        for step in range(case["steps"]):
            if use_no_sync:
                with ddp.no_sync():
                    if not learn(x, y, step):
                        return False
            if not learn(x, y, step) or trouble.at("before step", step):
                return False
            if trouble.is_other("another collective") and step == case["step"]:
                stamp()
                ddp.communicator.barrier()  # that of an FSDPSequential would tell the ranks apart at once
            ddp.step()
            if trouble.at("after step", step):
                return False
            if talk and trouble.at("before exchange", step):
                return False
            exchange(step)
        return True

    with ddp.join() if use_join else contextlib.nullcontext():
        finished = train()
    trouble.wait_for_started()
    if not finished:
        return
    with ddp.unshard() if sharded else contextlib.nullcontext():
        parameters = ddp.state_dict().values() if piped else net.parameters()
        theta = hashlib.sha256(b"".join(a.tobytes() for layer in parameters for a in layer)).hexdigest()
    os.write(1, f"trained {case['steps']} steps to {theta}\n".encode())  # in one piece


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
