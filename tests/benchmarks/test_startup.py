"""Importing the package is quick because it loads little, and the section that measures a start."""

import subprocess
import sys

import pytest

from benchmarks import startup


def test_import_waits_for_neither_numba_nor_scipy():
    code = "import sys, pytagi_ddp; print(sorted({'numba', 'scipy', 'matplotlib', 'tqdm'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.mpi)])
def test_a_start_is_measured_in_parts(ranks, tmp_path):
    if ranks > 1:
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    empty, warm = (startup._first_step("mlp-16-b8", ranks, 1, str(tmp_path)) for _ in range(2))
    for parts in (empty, warm):
        assert tuple(parts) == startup.PARTS
        assert min(parts.values()) > 0
        until_then = [parts[name] for name in ("import", "build", "join", "first step")]
        # Of two ranks, one may import for longer and the other wait for it: only of one do the parts add up.
        assert (sum(until_then) if ranks == 1 else max(until_then)) < parts["total"]
    assert warm["first step"] < empty["first step"]
