"""Tests on modules that are built with a sanitizer: `python -m tests.sanitize undefined`, or `address`, or `thread`.

`undefined` (UBSan) finds sums and products of sizes that overflow, and shifts, casts and divisions that are out of
range; `address` (AddressSanitizer, with checks of indices) finds accesses beside memory. The tree is copied to a
temporary folder, so that modules do not mix, and built there with gcc. By default the tests of kernels, networks and
layers run. Less optimised code rounds differently: tests of last bits (`test_mixed.py`) may fail. With checks of
indices, loops use one thread and are not recorded: tests of that fail (`test_graphs.py`, `test_output_updater.py`,
`test_threads.py`).

`thread` (ThreadSanitizer) finds data races of C code, also between ranks that are threads of one process. It needs
clang, and of the same version libomp and its Archer, which tells ThreadSanitizer what OpenMP orders: on Debian `apt
install clang-19 libomp-19-dev`, and `CC=clang-19`. It does not see what code of Numba and of a BLAS reads and writes;
`test_threads.py` computes the share of each thread of a loop alone. Tests that fork a process with threads may fail.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clean_tree import copy_c_code, source_tree

TESTS = ("tests/kernels", "tests/nn", "tests/battery")
OF_THREADS = ("tests/kernels", "tests/nn/test_graphs.py", "tests/nn/test_parallel.py", "tests/distributed")
PYTEST = ("-v", "--capture=sys", "-p", "no:cacheprovider", "--timeout", "0")  # a sanitizer ends the process itself
OF_NUMBERS = "signed-integer-overflow,shift,integer-divide-by-zero,bounds,float-cast-overflow"
UNDEFINED = f"-O1 -g -fsanitize={OF_NUMBERS} -fno-sanitize-recover={OF_NUMBERS}"
RACES = "-g -fsanitize=thread -shared-libsan"
# Libraries whose own synchronisation ThreadSanitizer does not know.
UNKNOWN = (
    *("libomp.so", "libgomp", "omppool", "libscipy_openblas64_", "libscipy_openblas-"),
    *("_multiarray_umath", "libllvmlite", "libcrypto"),
)
BUILDS = {
    "address": {"PYTAGI_DDP_SANITIZE": "1"},
    "thread": {"CC": os.environ.get("CC", "clang"), "CFLAGS": RACES, "LDFLAGS": "-fsanitize=thread -shared-libsan"},
    "undefined": {"CFLAGS": UNDEFINED, "LDFLAGS": f"-fsanitize={OF_NUMBERS}"},
}


def runs(kind: str, place: Path) -> dict[str, str]:
    """The environment in which modules run that were built so; files may be put at a place."""
    if kind == "thread":
        suppressions, options = place / "suppressions", place / "options"
        suppressions.write_text("".join(f"called_from_lib:{name}\n" for name in UNKNOWN) + "mutex:libgcc_s.so\n")
        # The lock of the interpreter counts only if modules without a sanitizer do. Archer would print a line in each
        # process that it should not be so; it does not read this file.
        options.write_text(f"ignore_noninstrumented_modules=0 suppressions={suppressions} die_after_fork=0\n")
        clang = BUILDS[kind]["CC"]
        return {
            "LD_PRELOAD": _library("libclang_rt.tsan-x86_64.so", clang),
            "OMP_TOOL_LIBRARIES": _library("libarcher.so", clang),
            "OMP_NUM_THREADS": "3",
            "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1 include={options}",
        }
    if kind == "undefined":
        return {"UBSAN_OPTIONS": "print_stacktrace=1"}
    libraries = [_library(name) for name in ("libasan.so", "libstdc++.so.6")]  # exceptions of C++ need the second one
    return {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "NUMBA_BOUNDSCHECK": "1"}


def _library(name: str, compiler: str = "gcc") -> str:
    """Where a compiler has a library."""
    command = [compiler, f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(found):
        sys.exit(f"{compiler} has no {name}: see the docstring of tests/sanitize.py")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=[*BUILDS])
    options, given = parser.parse_known_args(arguments)  # the rest are arguments of pytest
    with tempfile.TemporaryDirectory(prefix="sanitized-") as place:
        run = runs(options.kind, Path(place))
        tree = source_tree(Path(place, "tree"))
        copy_c_code(tree)
        environment = os.environ | {"CC": "gcc", "PYTHONPATH": str(tree)}
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        subprocess.run(build, cwd=tree, env=environment | BUILDS[options.kind], check=True)
        tests = given or (OF_THREADS if options.kind == "thread" else TESTS)
        test = [sys.executable, "-m", "pytest", *PYTEST, *tests]
        return subprocess.run(test, cwd=tree, env=environment | run, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
