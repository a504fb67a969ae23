"""Random faults in real jobs: ``python -m tests.mpi.random_faults --count 200 --seed 0``.

Each case is a data-parallel training on 2 to 4 ranks with options, a fault, a rank and a moment that follow from its
number: ``--seed 17 --count 1`` repeats case 17 by itself. A job has to end, soon after the fault, with an exit code
other than 0, leave no process, and say what happened as often as it should. What is not a fault (a rank forks, or
starts a program; there is another job, or another user who wants to read or to get in) must leave no trace: the job
trains to its end, all ranks to the same parameters. The exit code is the number of cases that went otherwise (up to
99).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from pytagi_ddp.distributed.engine import shared_memory
from tests import random_cases
from tests.mpi import other_user
from tests.mpi.run import Hang, MpiJob, Result, mpirun_command

AT_ONCE = 2
SOON = 5.0  # seconds from the fault to the end of the job
TIMEOUT = 1.0  # of the communicator, once training, where a fault is to end by it
LONG_TIMEOUT = 20.0  # elsewhere: a rank with an error lets lower ones speak first, for up to 1.5 s
START_TIMEOUT = 15.0
STARTING = 5.0  # more, for a fault in the start, which the other ranks have yet to come to
MPIRUN_STARTS = 0.3  # before it has started the ranks, some 20 ms, Hydra drops SIGINT and SIGTERM
LIMIT = 45.0  # seconds after which a case counts as a hang
LIMIT_TO_THE_END = 150.0  # the same where a job trains to its end

EARLY_POINTS = ("before MPI", "before construction")  # as `tests.mpi.faulty_training` names them
POINTS = ("before forward", "before backward", "before step", "after step")
GROUP_POINTS = ("before split", "before exchange")  # of programs that talk in groups, or by messages
OPTIONS = (
    {},
    {"average": False},
    {"sync_batch_norm": True},
    {"every": 3},
    {"every": 2, "merge": "mean"},
    {"buckets": 3},
    {"wire_dtype": "float16"},
    {"wire_dtype": "bfloat16"},
    {"no_sync": True},
    {"join": True},
    {"no_sync": True, "buckets": 2},
    {"join": True, "sync_batch_norm": True},
)
TALKING = (  # what else the ranks exchange in each step
    {"groups": True},
    {"messages": True},
    {"scattered": True},
    {"groups": True, "messages": True},
    {"groups": True, "messages": True, "scattered": True, "buckets": 2},
    {"groups": True, "sync_batch_norm": True},
)
SHARDED = (  # by an FSDPSequential, with this reshard_after_forward
    {"reshard_after_forward": True},
    {"reshard_after_forward": False},
    {"reshard_after_forward": True, "no_sync": True, "sync_batch_norm": True},
    {"reshard_after_forward": True, "join": True},
    {"reshard_after_forward": False, "join": True, "sync_batch_norm": True},
)
PIPED = (  # by a PipelineSequential, with these
    {"n_microbatches": 3},
    {"n_microbatches": 4, "recompute": True},
    {"n_microbatches": 2, "schedule": "GPipe"},
    {"n_microbatches": 4, "schedule": "GPipe", "recompute": True, "no_sync": True},
)
RAISED = ("exception", "exception in a thread")
LEFT = ("exit 0", "exit 3", "return")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSEGV")
TO_MPIRUN = ("SIGKILL to mpirun", "SIGTERM to mpirun", "SIGINT to mpirun")
STUCK = ("stall", "SIGSTOP", "another collective", "another group", "no message")
DIFFERENT = ("other network", "other options")
MISMATCHED = ("other message",)
FAULTS = (*RAISED, *LEFT, *SIGNALS, *TO_MPIRUN, *STUCK, *DIFFERENT, *MISMATCHED)
HARMLESS = {  # how they come about
    "fork": ("end", "fail", "be killed", "communicate"),
    "program": ("wait", "go on", "system"),
    "other job": ("trains", "is killed"),  # as in containers that share a network
    "other user": ("nobody",),
}
KINDS = (*FAULTS, *HARMLESS)
STEPS = 24  # of training where there is no fault; the ranks are equal after these, with all options

# Gives a job process ids and shared memory of its own, in the network of the machine.
CONTAINER = (
    "unshare",
    "--pid",
    "--fork",
    "--mount-proc",
    "sh",
    "-c",
    'mount -t tmpfs none /dev/shm && exec "$@"',
    "sh",
)


@dataclass
class Case:
    """A fault: of which kind, on which rank, and when.

    Attributes:
        seed: its number. ranks: in the job. options: of what trains, of `DDPConfig` and the loop.
        kind: one of `KINDS`. rank: where, or None for mpirun. point, step: the place in the program.
        delay: seconds from there to the fault, for signals and threads; from the start of mpirun for ``to mpirun``
            with the point "before MPI", else from the first step.
        timeout: of the communicator.
        how: one of those in `HARMLESS`. steps: of training.
    """

    seed: int
    ranks: int
    options: dict
    kind: str
    rank: int | None
    point: str
    step: int
    delay: float
    timeout: float
    how: str = ""
    steps: int = 10**9


def draw(seed: int) -> Case:
    """Returns case number ``seed``."""
    rng = random.Random(seed)
    ranks = rng.choices((2, 3, 4), (5, 3, 2))[0]
    kind = KINDS[seed % len(KINDS)]  # all of them alike often
    options = dict(rng.choice((*OPTIONS, *TALKING, *SHARDED, *PIPED)))
    if kind in ("another group", "no message", "other message"):
        options = {"groups": True} if kind == "another group" else {"messages": True}
    if kind == "other network":
        options.pop("sync_batch_norm", None)
    if kind == "return":
        options.pop("join", None)  # with which it is none: a rank without batches steps along
    if kind == "other options":
        options["average"] = True
    # Before the library is there, a thread that fails only leaves its traceback.
    amid = ("another collective", "another group", "no message", "exception in a thread", *DIFFERENT, *MISMATCHED)
    early = kind not in amid and rng.random() < 0.2
    talks = any(name in options for name in ("groups", "messages", "scattered"))
    point = rng.choice(EARLY_POINTS) if early else rng.choice((*POINTS, *(GROUP_POINTS if talks else ())))
    step = 0 if early or point == "before split" else rng.randrange(6)
    later = kind in (*SIGNALS, *TO_MPIRUN, "SIGSTOP", "exception in a thread")
    delay = round(rng.uniform(0, 1.0 if early else 0.3), 3) if later and rng.random() < 0.6 else 0.0
    if kind in TO_MPIRUN and point == "before MPI":
        delay += MPIRUN_STARTS
    rank = None if kind in TO_MPIRUN else rng.randrange(ranks)
    timeout = TIMEOUT if kind in STUCK else LONG_TIMEOUT
    how, steps = "", 10**9
    if kind in HARMLESS:
        how, steps, delay = rng.choice(HARMLESS[kind]), STEPS, round(rng.uniform(0, 0.5), 3)
        timeout = LIMIT_TO_THE_END
        if how == "system" and early:
            how = "wait"  # before its rank has started, such a program is the rank: the launcher's socket is open to it
    return Case(seed, ranks, options, kind, rank, point, step, delay, timeout, how, steps)


def run(case: Case) -> tuple[list[str], str]:
    """Runs a case; returns what was wrong, and everything that is known about it."""
    try:
        with _company(case) as company:
            wrong, story = _run(case)
        wrong += company
    except NotPossible as error:
        return [], f"{NOT_POSSIBLE}{error}"
    return wrong, story


def _run(case: Case) -> tuple[list[str], str]:
    with contextlib.closing(_start(case, apart=case.kind == "other job")) as job:
        if case.kind in HARMLESS:
            pass
        elif case.kind in TO_MPIRUN:
            if case.point != "before MPI":
                job.wait_ready(LIMIT)
            time.sleep(case.delay)
            (job.folder / "fault").write_text(str(time.monotonic()))
            os.kill(job.process.pid, getattr(signal, case.kind.split()[0]))
        else:
            _wait_for_fault(job)
        try:
            result = job.finish(LIMIT if case.kind in FAULTS else LIMIT_TO_THE_END)
        except Hang as error:
            # Python drops a Ctrl-C in a callback from C, as of Numba's compiler; the library ends what it catches.
            if case.kind == "SIGINT" and "Exception ignored" in str(error):
                return ["LOST BY PYTHON"], str(error)
            raise
    story = f"exit code {result.returncode}, {result.seconds:.1f} s\n{result.stdout}{result.stderr}"
    return judge(case, result), story


NOT_POSSIBLE = "not possible here: "


class NotPossible(Exception):
    """This machine, or this user, cannot make a case."""


def _start(case: Case, apart: bool) -> MpiJob:
    program = ["-m", "tests.mpi.faulty_training", json.dumps(asdict(case))]
    launcher = [*CONTAINER, *mpirun_command(), "-np", str(case.ranks), sys.executable] if apart else None
    return MpiJob(program, case.ranks, env={"PYTAGI_DDP_TIMEOUT": str(START_TIMEOUT)}, launcher=launcher)


@contextlib.contextmanager
def _company(case: Case) -> Iterator[list[str]]:
    """What is there besides the job; gives a list, to which it adds what was wrong with that."""
    wrong: list[str] = []
    if case.kind == "other job":
        if subprocess.run([*CONTAINER, "true"], capture_output=True).returncode:
            raise NotPossible("needs the right to make name spaces (unshare)")
        killed = case.how == "is killed"
        other = _start(replace(case, kind="SIGKILL", steps=10**9) if killed else case, apart=True)
        try:
            yield wrong
            wrong += _unless(bool(other.finish(LIMIT_TO_THE_END).returncode) == killed, "THE OTHER JOB")
        finally:
            other.close()
    elif case.kind == "other user":
        if os.getuid() != 0:
            raise NotPossible("needs root, to become another user")
        spy = subprocess.Popen([sys.executable, other_user.__file__], stdout=subprocess.PIPE, text=True)
        try:
            assert spy.stdout is not None and spy.stdout.readline() == "here\n"
            yield wrong
        finally:
            spy.kill()
            found = spy.communicate()[0]
        wrong += _unless(not found, f"FOUND {found!r}")
    else:
        yield wrong


def _unless(right: bool, word: str) -> list[str]:
    return [] if right else [word]


def _wait_for_fault(job: MpiJob) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        ended = job.process.poll() is not None
        if (job.folder / "fault").exists():
            return
        if ended:
            raise AssertionError(f"the job ended without a fault:\n{job.texts()}")
        time.sleep(0.01)
    raise Hang(f"the fault never came:\n{job.texts()}")


def judge(case: Case, result: Result) -> list[str]:
    """Compares how a job ended with how it should have."""
    wrong = []
    if case.kind in HARMLESS:
        ends = result.stdout.splitlines()
        wrong += _unless(result.returncode == 0, f"exit code {result.returncode}")
        wrong += _unless(len(ends) == case.ranks and len(set(ends)) == 1, "other parameters")
        return wrong + _unless(not result.stderr, "other messages")
    if result.returncode == 0:
        wrong.append("exit code 0")
    stuck = case.kind in STUCK
    starting = case.point in EARLY_POINTS or case.kind in DIFFERENT
    waiting = 0.0 if not stuck else START_TIMEOUT if starting else TIMEOUT
    if result.seconds > SOON + waiting + STARTING * starting:
        wrong.append("late")
    messages = result.stderr.count("[rank ")
    if case.kind in RAISED:
        expected = result.stderr.count("ValueError: the fault of this case") == 1
        expected &= starting or result.stderr.count(f"[rank {case.rank}/{case.ranks}] Traceback") == messages == 1
    elif case.kind in LEFT:
        said = ("RankLeftError: ", " has left the job after ", " was started, and nobody waited for it")
        expected = messages == 1 and any(words in result.stderr for words in said)
    elif case.kind in DIFFERENT:
        expected = messages == 1 and "have different " in result.stderr
    elif case.kind in MISMATCHED:
        expected = messages == 1 and "CollectiveMismatchError: rank " in result.stderr
    elif stuck:
        expected = messages >= 1 and "CollectiveTimeoutError" in result.stderr
        expected |= (
            starting and "Timeout (" in result.stderr
        )  # of a rank that waits inside MPI_Init, where Python cannot
    else:
        expected = messages <= 1
    if not expected:
        wrong.append("other messages")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    before = set(shared_memory.leftovers())

    def left(outcomes: Sequence[random_cases.Outcome]) -> str:
        files = sorted(file.name for file in set(shared_memory.leftovers()) - before)
        return f"; files left in /dev/shm: {', '.join(files) or 'none'}"

    name = "tests.mpi.random_faults"
    return random_cases.main(arguments, name, draw, run, KINDS, "kind", at_once=AT_ONCE, more=left)


if __name__ == "__main__":
    sys.exit(main())
