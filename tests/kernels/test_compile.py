"""Compiled loops are kept between processes, and never meet sources other than their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts processes of its own

ROOT = Path(__file__).parents[2]
# One number through LeakyReLU, whose kernel is made from a formula of one line.
PROGRAM = """
from pytagi_ddp import nn
net = nn.Sequential(nn.LeakyReLU(), nn.Linear(1, 1, bias=False))
net.layers[1].mu_w = [1]
net.eval()
print(net([-8.0])[0][0])
"""


@pytest.fixture
def tree(tmp_path) -> Path:
    """A copy of the package, with its own cache beside it."""
    hidden = shutil.ignore_patterns("__pycache__", "cuda")
    for folder in ("kernels", "pytagi_ddp"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=hidden)
    if not (tmp_path / "pytagi_ddp" / "kernels").exists():
        pytest.skip("the package is installed, not a source tree: there is nothing to edit")
    return tmp_path


def run(tree: Path, cache: str = "cache") -> float:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tree / cache), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tree, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return float(result.stdout)


def files(tree: Path) -> dict[Path, int]:
    """Compiled code and its indices, with the time of their last change."""
    return {path: path.stat().st_mtime_ns for path in (tree / "cache").rglob("*.nb*")}


@pytest.mark.slow
def test_an_edited_formula_never_meets_a_stale_cache(tree):
    formula = tree / "kernels" / "formulas" / "activation.py"
    original = formula.read_text()

    assert run(tree) == pytest.approx(-0.8)
    compiled = files(tree)
    assert compiled, "nothing was kept"
    assert run(tree) == pytest.approx(-0.8)
    assert files(tree) == compiled, "the second run compiled again"

    slope = "else negative_slope"
    assert original.count(slope) == 1
    formula.write_text(original.replace(slope, f"{slope} + HALF"))
    assert run(tree) == pytest.approx(-4.8)
    assert compiled.items() < files(tree).items()

    formula.write_text(original)
    both = files(tree)
    assert run(tree) == pytest.approx(-0.8)
    assert files(tree) == both, "the first cache was not found again"


WARNING = "there is no place to keep compiled loops"


def test_without_a_place_for_a_cache_it_computes_all_the_same(tree):
    (tree / "cache").write_text("a file where the folder should be")
    assert run(tree) == pytest.approx(-0.8)


# As root with the user's number only in name: other users may not be able to read this Python.
WITHOUT_HOME = """
import os, pwd
os.environ.pop("HOME", None)
if os.getuid() == 0:
    os.setreuid(12345, 0)
else:
    pwd.getpwuid = {}.__getitem__
"""


def test_a_user_without_a_home_directory_gets_one_warning(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    program = WITHOUT_HOME + PROGRAM
    command = [sys.executable, "-c", program]
    environment["PYTHONPATH"] = str(ROOT)
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) == pytest.approx(-0.8)
    assert result.stderr.count(WARNING) == 1 and "set NUMBA_CACHE_DIR" in result.stderr
    line = program[: program.index("net = ")].count("\n") + 1  # which draws a prior by a loop
    assert f"<string>:{line}: RuntimeWarning: {WARNING}" in result.stderr
    assert not list(tmp_path.iterdir())


def test_loops_run_uncompiled_where_numba_is_told_not_to_compile(tree, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert run(tree) == pytest.approx(-0.8)
    assert not files(tree)
