"""How threads wait for each other: `python -m benchmarks.waiting`.

At the end of each parallel loop, threads of GNU OpenMP spin for a while before they sleep (`GOMP_SPINCOUNT`). On a
quiet machine that saves waking them; beside other work, it takes the core from the thread that is waited for. Steps of
a network with one and two threads for several lengths of the wait, alone and beside busy processes, in turns. Several
networks in processes of their own train at once as ranks do between exchanges. Times are medians over rounds, of the
slowest process; a ratio is to one thread of the same row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product

from benchmarks.peers import OWN
from benchmarks.report import duration, table
from benchmarks.worker import Worker

WORKLOADS = ("mlp-128-b32", "mnist-cnn-b128", "resnet18-b16")
SPINS = ("0", "100", "1000", "10000", "100000")
LIBRARY = {"GOMP_SPINCOUNT": "", "OMP_WAIT_POLICY": ""}  # an empty variable is one that the user has not set
BUSY = "import os; os.nice({nice}); [0 for _ in iter(int, 1)]"


@contextmanager
def busy(count: int, nice: int) -> Iterator[None]:
    """So many processes that do nothing but take a core."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY.format(nice=nice)]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(
    workload: str, settings: dict[str, tuple[int, dict]], processes: int, repeat: int, seconds: float
) -> dict[str, float]:
    """Median seconds of a step by setting."""
    with ExitStack() as stack:
        workers: dict[str, list[Worker]] = {}
        rounds: dict[str, list[float]] = {name: [] for name in settings}
        for name, (threads, environment) in settings.items():
            workers[name] = [stack.enter_context(Worker(OWN, threads, env=environment)) for _ in range(processes)]
            for worker in workers[name]:
                worker.ask("versions")
                worker.ask("build", workload=workload)
                worker.ask("start")
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        for _ in range(repeat):
            for name, group in workers.items():
                answers = pool.map(lambda worker: worker.ask("round", seconds=seconds), group)
                rounds[name].append(max(statistics.median(answer["times"]) for answer in answers))
    return {name: statistics.median(times) for name, times in rounds.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the options and measures."""
    parser = argparse.ArgumentParser("benchmarks.waiting", description=__doc__.partition(":")[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="beside one (all cores)")
    parser.add_argument("--spins", nargs="+", default=SPINS, metavar="COUNT", help="values of GOMP_SPINCOUNT")
    parser.add_argument("--workload", nargs="+", default=WORKLOADS)
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="busy processes (0 1 2)")
    parser.add_argument("--processes", nargs="+", type=int, default=[1], metavar="N", help="that train at once (1)")
    parser.add_argument("--nice", type=int, default=19, help="of the busy processes (19)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round (1)")
    args = parser.parse_args(argv)
    settings = {"one thread": (1, LIBRARY), "as it is": (args.threads, LIBRARY)}
    settings |= {f"spin {count}": (args.threads, LIBRARY | {"GOMP_SPINCOUNT": count}) for count in args.spins}
    rows = []
    for workload, processes, count in product(args.workload, args.processes, args.busy):
        with busy(count, args.nice):
            times = measure(workload, settings, processes, args.repeat, args.seconds)
        one = times["one thread"]
        cells = [f"{duration(time)} ({time / one:.2f})" for time in times.values()]
        rows.append([workload, str(processes), str(count), *cells])
        print("  ".join(rows[-1]), flush=True)
    print("\n" + table(("workload", "processes", "busy", *settings), rows))


if __name__ == "__main__":
    main()
