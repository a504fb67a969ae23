"""Compiled modules and what their import brings along."""

import subprocess
import sys

import pytest

from pytagi_ddp.kernels.cpu.runtime.extension import load

pytestmark = pytest.mark.slow  # starts processes of its own


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_kernels_import_the_blas_and_no_more_of_scipy_linalg():
    code = (
        "import sys, pytagi_ddp.kernels.cpu; print(*(name for name in sys.modules if name.startswith('scipy.linalg')))"
    )
    assert run(code) == []


@pytest.mark.parametrize("first", ["import pytagi_ddp.kernels.cpu", "import scipy.linalg.cython_blas"])
def test_scipy_linalg_can_be_imported_before_and_after(first):
    code = f"""
{first}
import scipy.linalg.cython_blas
import pytagi_ddp.kernels.cpu
from pytagi_ddp.kernels.cpu.runtime.threads import set_threads
set_threads(1)
print(len(scipy.linalg.cython_blas.__pyx_capi__) > 100, scipy.linalg.det([[2, 0], [0, 3]]))
"""
    assert run(code) == ["True", "6.0"]


def test_a_module_that_is_not_built_is_named_with_the_remedy():
    with pytest.raises(ImportError, match=r"_no_such_kernel is not built: run `pip install -e \.`"):
        load("layers._no_such_kernel")
