"""Compiled modules and what their import brings along."""

import subprocess
import sys
import zipfile
from glob import glob
from pathlib import Path

import pytest

import pytagi_ddp
from pytagi_ddp.kernels.cpu.runtime import extension
from pytagi_ddp.kernels.cpu.runtime.extension import load

SITE = Path(pytagi_ddp.__file__).parents[1]

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


@pytest.mark.parametrize("missing", ["pytagi_ddp.kernels.cpu.layers._gone", "scipy.linalg.cython_blas", "scipy.linalg"])
def test_a_frozen_application_names_the_options_that_include_it(missing, monkeypatch):
    def import_module(name):
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr(extension, "FROZEN", True)
    monkeypatch.setattr(extension, "import_module", import_module)
    options = "--collect-submodules pytagi_ddp --hidden-import scipy.linalg.cython_blas"
    with pytest.raises(ImportError, match=rf"{missing} is missing in this application: .* PyInstaller by `{options}`"):
        load("layers._gone")


def test_a_zip_file_is_to_be_unpacked(tmp_path):
    archive = tmp_path / "app.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in glob("pytagi_ddp/**/*.py", root_dir=SITE, recursive=True):
            file.write(SITE / name, name)
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); import pytagi_ddp.kernels.cpu"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: pytagi_ddp.kernels.cpu.runtime._replay is a compiled module, which Python cannot load from a zip "
        f"file: unpack {archive}"
    )
