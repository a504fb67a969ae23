"""Reads damaged files, format by format: `python -m tests.fuzz --seconds 600`, or `--cases 100000` for each format.

Each format has a process of its own, so that a reader that crashes or hangs is found as well. A file that breaks
something is written to the folder --keep.
"""

import argparse
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.cases import SECONDS, Reader, limited_memory
from tests.fuzz.formats import FORMATS


def main() -> int:
    """Prints a line for each format; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("formats", nargs="*", default=[], help=f"some of: {', '.join(FORMATS)} (default: all)")
    parser.add_argument("--cases", type=int, help="damaged files for each format")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all formats together, without --cases")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same files")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for what broke something")
    parser.add_argument("--here", action="store_true", help="all formats in this process")
    args = parser.parse_args()
    names = args.formats or list(FORMATS)
    if unknown := set(names) - FORMATS.keys():
        parser.error(f"no such format: {', '.join(unknown)}")
    if args.here:
        return max(read_cases(name, args) for name in names)
    args.seconds /= len(names)
    return max(in_a_process(name, args) for name in names)


def in_a_process(name: str, args: argparse.Namespace) -> int:
    """Runs `read_cases` elsewhere; returns its exit code, or 1 for a crash."""
    options = ["--seconds", str(args.seconds), "--seed", str(args.seed), "--keep", str(args.keep)]
    options += ["--cases", str(args.cases)] if args.cases is not None else []
    # On one thread, as each further one reserves address space, which is limited.
    environment = os.environ | {"PYTAGI_DDP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "tests.fuzz", name, "--here", *options], env=environment, check=False)
    if done.returncode < 0:
        number = signal.Signals(-done.returncode).name
        print(f"{name}: ended by {number} (SIGPROF: more than {SECONDS} s); the file is in {args.keep}", flush=True)
    return min(1, abs(done.returncode))


def read_cases(name: str, args: argparse.Namespace) -> int:
    """Reads damaged files of a format, until there were enough or one breaks something; returns the exit code."""
    args.keep.mkdir(parents=True, exist_ok=True)
    rng, begin = random.Random(f"{name} {args.seed}"), time.monotonic()
    kept = args.keep / name.replace(" ", "-")
    with TemporaryDirectory(prefix="fuzz-") as folder:
        reader = Reader(name, Path(folder))
        with limited_memory(reader.memory_limit()):
            for number in itertools.count() if args.cases is None else range(args.cases):
                if args.cases is None and time.monotonic() - begin > args.seconds:
                    break
                file, data, checksum_is_right = reader.random_case(rng)
                kept.write_bytes(data)
                signal.setitimer(signal.ITIMER_PROF, 2 * SECONDS)  # ends the process, wherever it is
                try:
                    reader.check(file, data, checksum_is_right)
                except Exception:
                    traceback.print_exc()
                    print(f"{name}: case {number} of seed {args.seed}, {file} is in {kept}", flush=True)
                    return 1
        signal.setitimer(signal.ITIMER_PROF, 0)
        kept.unlink(missing_ok=True)
    if not any(args.keep.iterdir()):
        args.keep.rmdir()
    refused, accepted, seconds = reader.refused, reader.accepted, time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{name}: {refused + accepted} files, {refused} refused, {peak} MB at most, {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
