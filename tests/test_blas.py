"""Which kernels the BLAS takes, and what is said where they are pinned to those of another processor."""

import os
import subprocess
import sys

import pytest
from threadpoolctl import threadpool_info

from pytagi_ddp import blas
from pytagi_ddp.blas import Blas, blas_in_use

pytestmark = pytest.mark.slow  # starts processes of its own


def test_kernels_are_those_that_the_library_names(monkeypatch):
    monkeypatch.delenv(blas.VARIABLE, raising=False)
    found = blas_in_use()
    pools = {(f"{p['internal_api']} {p['version']}", p.get("architecture")) for p in threadpool_info()}
    assert (found.library, found.kernels) in pools
    assert (found.pin, found.unpinned, found.advice) == (None, found.kernels, "")
    assert str(found) == f"{found.library} with kernels for {found.kernels}"


def in_a_process(variables: dict[str, str]) -> list[str]:
    """What a process of its own says: OpenBLAS reads the variable when it is loaded."""
    code = "from pytagi_ddp.blas import blas_in_use as b; print(*b(), str(b()), b().advice, sep='\\n')"
    env = {name: value for name, value in os.environ.items() if name != blas.VARIABLE} | variables
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_pin_is_named_with_what_to_do():
    library, kernels, *_ = in_a_process({})
    other = "Nehalem"  # kernels that every x86-64 processor can run, and that none of today's would choose
    if not library.startswith("openblas") or kernels == other:
        pytest.skip(f"{library} with kernels for {kernels} cannot be pinned to {other}")
    lines = in_a_process({blas.VARIABLE: other})
    if lines[1] == kernels:
        pytest.skip(f"{library} has no kernels for {other} beside those for {kernels}")
    assert lines[:4] == [library, other, other, kernels]
    assert lines[4] == (
        f"{library} with kernels for {other}, pinned by {blas.VARIABLE}={other} (without it: {kernels})"
    )
    assert lines[5].startswith(f"unset {blas.VARIABLE}: ")


@pytest.mark.parametrize("unpinned", ["SkylakeX", blas.UNKNOWN])
def test_a_pin_to_the_kernels_of_this_cpu_needs_no_advice(unpinned):
    pinned = Blas("openblas 1", "SkylakeX", "SkylakeX", unpinned)
    assert pinned.advice == ""
    assert f"pinned by {blas.VARIABLE}=SkylakeX" in str(pinned)
    assert Blas("openblas 1", "Haswell", "Haswell", "SkylakeX").advice != ""
