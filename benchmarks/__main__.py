"""The benchmark suite: `python -m benchmarks`. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

from benchmarks import machine
from benchmarks.options import Options
from benchmarks.peak import CopyBandwidth, SgemmPeak
from benchmarks.peers import OWN, PEERS
from benchmarks.workloads import KNOWN, SPECS
from pytagi_ddp.blas import Blas
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads

SECTIONS = {
    "training": "steps of every workload, compared with peers",
    "latency": "steps of small networks on one thread, compared with pytagi",
    "scaling": "1 and 2 ranks of one thread, and 1 rank of 2 threads",
    "parallel": "2 ranks of one thread by every way of sharing a training",
    "allreduce": "the all-reduce of 2 ranks, compared with a bare MPI_Allreduce",
    "startup": "import, and the first step of a process with and without cached kernels",
    "loading": "images per second of the data loader alone",
}
QUICK = {"repeat": 1, "seconds": 0.05, "limit": 10.0, "slow": 2.0}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.partition(":")[0])
    sections = "; ".join(f"{name}: {what}" for name, what in SECTIONS.items())
    parser.add_argument("--section", action="append", choices=list(SECTIONS), help=f"may be repeated ({sections})")
    known = list(KNOWN)
    parser.add_argument("--workload", action="append", choices=known, help="may be repeated; default: the large ones")
    parser.add_argument("--threads", type=int, help="of every library; default: usable cores")
    parser.add_argument("--repeat", type=int, help="rounds (5)")
    parser.add_argument("--quick", action="store_true", help="one short round, without the slowest workload")
    parser.add_argument("--limit", type=float, help="seconds that a peer's first step may take (60)")
    others = [name for name in PEERS if name != OWN]
    parser.add_argument(
        "--peer", action="append", choices=[*others, "none"], help="may be repeated; default: other libraries"
    )
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="PACKAGE=PYTHON",
        help="interpreter of the environment with pytagi or torch; also $BENCHMARK_PYTHON_PYTAGI, ..._TORCH",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="where results.json goes")
    args = parser.parse_args(argv)
    for pair in args.peer_python:
        if pair.partition("=")[0] not in {PEERS[name].package for name in others} or not pair.partition("=")[2]:
            parser.error(f"--peer-python {pair}: expected pytagi=PYTHON or torch=PYTHON")
    if any(value is not None and value < 1 for value in (args.threads, args.repeat)):
        parser.error("--threads and --repeat must be at least 1")
    return args


def options_of(args: argparse.Namespace) -> Options:
    if args.threads:
        set_threads(args.threads)
    given = {"repeat": args.repeat, "limit": args.limit, "workloads": args.workload and tuple(args.workload)}
    if args.peer:
        given["peers"] = tuple(name for name in args.peer if name != "none")
    if args.quick and not args.workload:
        given["workloads"] = tuple(name for name in SPECS if name not in ("mlp-4096-b256", "resnet18-b128"))
    settings = (QUICK if args.quick else {}) | {name: value for name, value in given.items() if value is not None}
    pythons = dict(pair.split("=", 1) for pair in args.peer_python)
    return Options(threads=get_threads(), pythons=pythons, **settings)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    options = options_of(args)
    peak, copies = SgemmPeak(options.threads), CopyBandwidth(options.threads)
    for yardstick in (peak, copies):
        yardstick.measure()
    here = machine.describe()
    print(f"{here['cpu']}, {here['cores']} cores; load {here['load'][0]:.1f} at the start; {options.threads} threads")
    blas = Blas(**here["blas"])
    print(f"Products: {blas}{blas.advice and f'; {blas.advice}'}")
    results = {"schema": 1, "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "machine": here}
    results["options"] = {name: value for name, value in vars(options).items() if name != "pythons"}
    for name in args.section or SECTIONS:
        print(f"\n## {name}: {SECTIONS[name]}\n", flush=True)
        try:
            results[name] = import_module(f"benchmarks.{name}").run(options, peak)
        except RuntimeError as error:  # the other sections have their turn
            print(f"failed: {error}", file=sys.stderr)
            results[name] = {"error": str(error)}
    results["peak"] = {"flops": peak.flops, "copy_bytes_per_second": copies.bytes_per_second}
    print(f"\nsgemm peak {peak.flops / 1e9:.0f} GFLOP/s, copies {copies.bytes_per_second / 1e9:.1f} GB/s")
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "results.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
