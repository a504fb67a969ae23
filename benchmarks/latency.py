"""Section "latency": steps of small networks on one thread, compared with pytagi and without replay."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import training
from benchmarks.options import Options
from benchmarks.peak import SgemmPeak

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
    return training.run(replace(options, threads=1, workloads=WORKLOADS, peers=PEERS), peak, together=True)
