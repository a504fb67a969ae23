"""Section "training": whole steps of every workload, this library and its peers in turns, round by round."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.options import Options
from benchmarks.peak import SgemmPeak
from benchmarks.peers import OWN, PEERS
from benchmarks.report import Spread, duration, spread, table
from benchmarks.worker import TooSlow, Worker, WorkerError

HEADER = (
    "workload",
    "library",
    "step: median (quartiles)",
    "first",
    "GFLOP/s",
    "of floor",
    "time / ours",
    "peak memory",
)
SETTLE = 0.05  # seconds until the threads of the last worker sleep


def installed(options: Options) -> tuple[dict[str, dict], dict[str, str]]:
    """(versions by library, notes on the libraries that are not there)."""
    versions, missing = {}, {}
    for name in (OWN, *options.peers):
        try:
            with Worker(name, 1, options.python(name)) as worker:
                versions[name] = worker.ask("versions", timeout=120)
        except WorkerError as error:
            if name == OWN:
                raise
            missing[name] = f"not measured ({str(error).splitlines()[0]}); install it by: {PEERS[name].install}"
    return versions, missing


def measure(workload: str, libraries: list[str], options: Options, peak: SgemmPeak) -> list[dict]:
    """One row per library: times by round in seconds, and what follows from them."""
    rows: list[dict[str, Any]] = []
    workers: dict[str, Worker] = {}
    with ExitStack() as stack:
        for name in libraries:
            worker = stack.enter_context(Worker(name, options.threads, options.python(name)))
            row: dict[str, Any] = {"workload": workload, "library": name, "rounds": [], "note": ""}
            rows.append(row)
            try:
                worker.ask("versions")
                row |= worker.ask("build", workload=workload)
                row |= worker.ask("start", None if _is_own(name) else options.limit, slow=options.slow)
                workers[name] = worker
                if not _is_own(name) and row["first"] > options.slow:  # ours compiles in its first step
                    row["rounds"].append([row["first"]])
            except TooSlow:
                row |= {"note": f"first step not done within {options.limit:g} s", "at_least": options.limit}
            except WorkerError as error:
                row["note"] = str(error)
        counts = {row["parameters"] for row in rows if "parameters" in row}
        if len(counts) > 1:
            raise RuntimeError(f"{workload} is not the same network everywhere: {sorted(counts)} parameters")
        for _ in range(options.repeat):
            peak.measure()
            for row in rows:
                name = row["library"]
                if name in workers and (_is_own(name) or row["first"] <= options.slow):
                    time.sleep(SETTLE)
                    row["rounds"].append(workers[name].ask("round", seconds=options.seconds)["times"])
        for row in rows:
            if row["library"] in workers:
                row["memory"] = workers[row["library"]].ask("memory")["peak"]
    return rows


def _is_own(name: str) -> bool:
    return PEERS[name].package == OWN


def derive(rows: list[dict], peak: float) -> None:
    """Adds median, quartiles, rate, share of the floor and ratios to the rows of one workload."""
    own = next((row for row in rows if row["library"] == OWN and row["rounds"]), None)
    flops = own["floor_flops"] if own else None
    for row in rows:
        times = [step for steps in row["rounds"] for step in steps]
        if times:
            row["median"], row["low"], row["high"] = Spread.of(times)
            if flops and PEERS[row["library"]].tagi:
                row["rate"] = flops / row["median"]
                row["of_floor"] = row["rate"] / peak
        if own and times:
            ratios = [
                statistics.median(theirs) / statistics.median(ours)
                for theirs, ours in zip(row["rounds"], own["rounds"], strict=False)
            ]
            row["ratio"] = statistics.median(ratios)
        elif own and "at_least" in row:
            row["ratio_at_least"] = row["at_least"] / own["median"]


def cells(row: dict) -> list[str]:
    name = [row["workload"], row["library"]]
    if not row["rounds"]:
        ratio = f"> {row['ratio_at_least']:.0f}" if "ratio_at_least" in row else "-"
        return [*name, row["note"], "-", "-", "-", ratio, "-"]
    return [
        *name,
        spread(Spread(row["median"], row["low"], row["high"])),
        duration(row["first"]),
        f"{row['rate'] / 1e9:.0f}" if "rate" in row else "-",
        f"{row['of_floor']:.0%}" if "of_floor" in row else "-",
        f"{row['ratio']:.2f}" if "ratio" in row else "-",
        f"{row['memory'] / 1e6:.0f} MB",
    ]


def run(options: Options, peak: SgemmPeak, together: bool = False) -> dict:
    """Measures; prints a table of each workload as soon as it is done, or one of all."""
    versions, missing = installed(options)
    for name, note in missing.items():
        print(f"{name}: {note}")
    rows = []
    for workload in options.workloads:
        found = measure(workload, list(versions), options, peak)
        derive(found, peak.flops)
        rows += found
        if not together:
            print(f"\n{table(HEADER, [cells(row) for row in found])}", flush=True)
    if together:
        print(table(HEADER, [cells(row) for row in rows]), flush=True)
    return {"versions": versions, "missing": missing, "rows": rows}
