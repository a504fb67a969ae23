"""Tests on modules that are built with a sanitizer: `python -m tests.sanitize undefined`, or `address`.

`undefined` (UBSan) finds sums and products of sizes that overflow, and shifts, casts and divisions that are out of
range; `address` (AddressSanitizer, with checks of indices) finds accesses beside memory. The tree is copied to a
temporary folder, so that modules do not mix, and built there with gcc. By default the tests of kernels, networks and
layers run. Less optimised code rounds differently: tests of last bits (`test_mixed.py`) may fail. With checks of
indices, loops use one thread and are not recorded: tests of that fail (`test_graphs.py`, `test_output_updater.py`,
`test_threads.py`).
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
PYTEST = ("-v", "--capture=sys", "-p", "no:cacheprovider", "--timeout", "0")  # a sanitizer ends the process itself
OF_NUMBERS = "signed-integer-overflow,shift,integer-divide-by-zero,bounds,float-cast-overflow"
UNDEFINED = f"-O1 -g -fsanitize={OF_NUMBERS} -fno-sanitize-recover={OF_NUMBERS}"
BUILDS = {
    "address": {"PYTAGI_DDP_SANITIZE": "1"},
    "undefined": {"CFLAGS": UNDEFINED, "LDFLAGS": f"-fsanitize={OF_NUMBERS}"},
}


def runs(kind: str) -> dict[str, str]:
    """The environment in which modules run that were built so."""
    if kind == "undefined":
        return {"UBSAN_OPTIONS": "print_stacktrace=1"}
    libraries = [_library(name) for name in ("libasan.so", "libstdc++.so.6")]  # exceptions of C++ need the second one
    return {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "NUMBA_BOUNDSCHECK": "1"}


def _library(name: str) -> str:
    """Where gcc has a library."""
    command = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=[*BUILDS])
    options, given = parser.parse_known_args(arguments)  # the rest are arguments of pytest
    with tempfile.TemporaryDirectory(prefix="sanitized-") as place:
        tree = source_tree(Path(place, "tree"))
        copy_c_code(tree)
        environment = os.environ | {"CC": "gcc", "PYTHONPATH": str(tree)}
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        subprocess.run(build, cwd=tree, env=environment | BUILDS[options.kind], check=True)
        test = [sys.executable, "-m", "pytest", *PYTEST, *(given or TESTS)]
        return subprocess.run(test, cwd=tree, env=environment | runs(options.kind), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
