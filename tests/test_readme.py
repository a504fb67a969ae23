"""What the README says, works."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts processes of its own

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(code: str, tmp_path) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_the_blocks_are_found():
    assert (len(blocks("python")), len(blocks("sh"))) == (3, 5)


@pytest.mark.parametrize("index", range(3))
def test_python_runs(index, tmp_path):
    run(blocks("python")[index], tmp_path)


def test_the_error_bars_are_as_said(tmp_path):
    lines = run(blocks("python")[1], tmp_path).splitlines()
    found = [re.fullmatch(r"x = *(\S+): y = *(\S+) \+- (\S+) \(true *(\S+)\)", line).groups() for line in lines]
    rows = {float(x): tuple(map(float, row)) for x, *row in found}
    assert rows.keys() == {-3, -1, 0, 0.5, 1, 3}
    for x in (-1, 0, 0.5, 1):
        mean, std, true = rows[x]
        assert abs(mean - true) < 0.1
        assert abs(mean - true) < 3 * std
        assert 25 * std < min(rows[-3][1], rows[3][1])


@pytest.mark.mpi
def test_the_program_runs_unchanged_on_two_ranks(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    from tests.mpi.run import mpirun

    program = tmp_path / "regression.py"
    program.write_text(blocks("python")[1])
    result = mpirun([str(program)], np=2, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 6


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(file):
    named = set(re.findall(r"^make (\w+)", "\n".join(blocks("sh", (ROOT / file).read_text())), re.MULTILINE))
    assert "test" in named
    assert named <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_modules_exist():
    for module in set(re.findall(r"python -m ([\w.]+)", TEXT)):
        assert importlib.util.find_spec(module), module


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", TEXT)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_layers_are_there():
    from pytagi_ddp import nn

    table = TEXT[TEXT.index("| Layers |") : TEXT.index("| output updates |")]
    names = set(re.findall(r"`(\w+)[`(]", table)) - {"Utils", "HRCSoftmaxMetric"}
    assert len(names) > 20
    assert names <= set(nn.__all__)
