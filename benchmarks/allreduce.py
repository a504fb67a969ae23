"""Section "allreduce": the time of adding the buffers of two ranks, compared with a bare `MPI_Allreduce`."""

from __future__ import annotations

from benchmarks.options import Options
from benchmarks.peak import SgemmPeak
from benchmarks.ranks import launch
from benchmarks.report import duration, table

SIZES = (4, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 94_000_000)


def run(options: Options, peak: SgemmPeak) -> dict:
    found = launch(2, 1, options.repeat, sizes=SIZES)["reduce"]
    rows = [[f"{n:,}", "2 ranks", duration(ours), duration(bare), f"{ours / bare:.2f}"] for n, ours, bare in found]
    print(table(("bytes", "processes", "this library", "bare MPI", "ours / bare"), rows), flush=True)
    return {"rows": [{"bytes": n, "own": ours, "bare": bare} for n, ours, bare in found]}
