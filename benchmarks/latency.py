"""Section "latency": steps of small networks on one thread, compared with pytagi and without replay."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.options import Options
from benchmarks.peak import SgemmPeak
from benchmarks.report import table
from benchmarks.training import HEADER, cells, derive, installed, measure

WORKLOADS = (
    "1-50-1-b1",
    "1-50-1-b16",
    "8-64-64-1-b1",
    "8-64-64-1-b16",
    "mlp-128-b32",
    "lstm-40-t1-b1",
    "lstm-40-t24-b16",
    "1-50-1-predict",
)
PEERS = ("pytagi_ddp walked", "pytagi")


def run(options: Options, peak: SgemmPeak) -> dict:
    """Times of whole steps, in turns; a ratio is the other's time over ours, of the same round."""
    small = replace(options, threads=1, workloads=WORKLOADS, peers=PEERS)
    versions, missing = installed(small)
    for name, note in missing.items():
        print(f"{name}: {note}")
    rows = []
    for workload in WORKLOADS:
        found = measure(workload, list(versions), small, peak)
        derive(found, peak.flops)
        rows += found
    print(table(HEADER, [cells(row) for row in rows]), flush=True)
    return {"versions": versions, "missing": missing, "rows": rows}
