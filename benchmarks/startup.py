"""Section "startup": import, and the first training step of a process, with an empty and with a warm kernel cache."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

from benchmarks.options import Options
from benchmarks.peak import SgemmPeak
from benchmarks.ranks import lines_of
from benchmarks.report import duration, table
from benchmarks.worker import ROOT, times_of

WORKLOADS = ("mnist-cnn-b128", "resnet18-b16")
# What an installation has, and a source tree after its first run: modules that Python has compiled to bytecode.
BYTECODE_KEPT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
FIRST_STEP = """
import json, sys, time
start = time.perf_counter()
import pytagi_ddp
imported = time.perf_counter()
from benchmarks.training_step import Workload
job = Workload(sys.argv[1])
net = job.net
built = time.perf_counter()
if int(sys.argv[2]) > 1:
    from pytagi_ddp.nn import DDPConfig, DDPSequential
    net = DDPSequential(net, DDPConfig(), average=False)
joined = time.perf_counter()
def step():
    job.pass_through(net)
    net.step()
step()
first, processor, ended = time.perf_counter(), time.process_time(), time.time()
step()
second = time.perf_counter() - first
parts = {"import": imported - start, "build": built - imported, "join": joined - built, "first step": first - joined}
parts |= {"second step": second, "processor": processor, "total": ended - float(sys.argv[3])}
sys.stdout.write(json.dumps(parts) + "\\n")  # at once, so that lines of ranks stay whole
"""
PARTS = ("import", "build", "join", "first step", "second step", "processor", "total")


def run(options: Options, peak: SgemmPeak) -> dict:
    """Times of processes started for it; totals go from the start of the process to the end of the first step.

    Two processes are ranks that train together. Each value is that of the slowest rank; processor time is of one rank,
    to the end of the first step.
    """
    imports = {name: _import(name, 3 * options.repeat) for name in ("numpy", "pytagi_ddp")}
    print(table(("import", "", "process"), [[f"import {name}", "", duration(s)] for name, s in imports.items()]))
    found, rows = [], []
    chosen = [name for name in options.workloads if name in WORKLOADS] or list(options.workloads[:1])
    for workload in chosen:
        for ranks in (1, 2):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("empty", "warm"):
                    row = _first_step(workload, ranks, options.threads if ranks == 1 else 1, cache)
                    found.append({"workload": workload, "ranks": ranks, "cache": state} | row)
                    times = [duration(row[name]) for name in PARTS]
                    rows.append([workload, f"{ranks} process{'es' * (ranks > 1)}, {state}", *times])
    header = ("workload", "processes, kernel cache", *PARTS)
    print("\n" + table(header, rows), flush=True)
    return {"import": imports, "rows": found}


def _import(name: str, repeat: int) -> float:
    """Median seconds of a process that imports it, less those of one that imports nothing."""
    medians = []
    for code in ("pass", f"import {name}"):
        start = partial(subprocess.run, [sys.executable, "-c", code], check=True, cwd=ROOT, env=BYTECODE_KEPT)
        medians.append(statistics.median(times_of(start, 0.0, repeat)))
    return medians[1] - medians[0]


def _first_step(workload: str, ranks: int, threads: int, cache: str) -> dict:
    """Seconds by part, each of the slowest rank."""
    environment = BYTECODE_KEPT | {"NUMBA_CACHE_DIR": cache, "PYTAGI_DDP_NUM_THREADS": str(threads)}
    arguments = ["-c", FIRST_STEP, workload, str(ranks), str(time.time())]
    parts = [json.loads(line) for line in lines_of(ranks, arguments, environment)]
    return {name: max(part[name] for part in parts) for name in parts[0]}
