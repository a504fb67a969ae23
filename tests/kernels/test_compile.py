"""Compiled loops are kept between processes, and never meet sources other than their own."""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
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


def run(tree: Path, program: str = PROGRAM, launcher: Sequence[str] = ()) -> float:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tree / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*launcher, sys.executable, "-c", program]
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
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


# Counts the loops that are compiled, not loaded, and prints their number instead.
COUNT = """
import numba.core.event as event
class Count(event.Listener):
    compiled = 0
    def on_start(self, started):
        self.compiled += 1
    def on_end(self, ended):
        pass
count = Count()
event.register("numba:compile", count)
"""


def test_a_filled_cache_that_can_only_be_read_is_used(tree):
    launcher = []
    if os.geteuid() == 0:  # who may write anywhere, unless this capability is taken away
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv, to test a read-only folder as root")
        launcher = ["setpriv", "--bounding-set=-dac_override"]
    assert run(tree) == pytest.approx(-0.8)
    filled = files(tree)
    folders = [tree / "cache", *(path for path in (tree / "cache").rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        counting = COUNT + PROGRAM.replace("print(net([-8.0])[0][0])", "net([-8.0])\nprint(count.compiled)")
        assert run(tree, counting, launcher) == 0
        # A loop that is missing there is compiled, and not kept.
        more = PROGRAM.replace("nn.LeakyReLU()", "nn.LeakyReLU(), nn.Tanh()").replace("layers[1]", "layers[2]")
        assert run(tree, more, launcher) == pytest.approx(math.tanh(-0.8))
        assert files(tree) == filled
    finally:
        for folder in folders:
            folder.chmod(0o755)


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
