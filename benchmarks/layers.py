"""Section "layers": time and memory of a step by layer, from `Sequential.profile`."""

from __future__ import annotations

from benchmarks.options import Options
from benchmarks.peak import SgemmPeak
from benchmarks.peers import OWN
from benchmarks.worker import Worker


def run(options: Options, peak: SgemmPeak) -> dict:
    """The workloads that are networks; in a process of its own each."""
    found = {}
    for workload in options.workloads:
        with Worker(OWN, options.threads) as worker:
            worker.ask("versions")
            worker.ask("build", workload=workload)
            answer = worker.ask("profile", repeat=options.repeat)
        print(f"{workload}\n{answer['text']}\n", flush=True)
        found[workload] = answer["rows"]
    return found
