"""What the README says, works."""

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts processes of its own

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@cache
def run(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_the_blocks_are_found():
    assert (len(blocks("python")), len(blocks("sh"))) == (3, 5)


@pytest.mark.parametrize("index", range(3))
def test_python_runs(index):
    run(blocks("python")[index])


def predictions(printed: str) -> dict[float, tuple[float, ...]]:
    """(mean, standard deviation, truth) by place."""
    pattern = r"x = *(\S+): y = *(\S+) \+- (\S+) \(true *(\S+)\)"
    found = [re.fullmatch(pattern, line).groups() for line in printed.splitlines()]
    return {float(x): tuple(map(float, row)) for x, *row in found}


def test_the_error_bars_are_as_said():
    rows = predictions(run(blocks("python")[1]))
    assert rows.keys() == {-5, -4, -2, 1, 4, 5}
    assert all(abs(mean - true) < 2 * std for mean, std, true in rows.values())
    far, near = ([rows[x][1] for x in places] for places in ((-4, 4), (-2, 1)))
    assert 30 * max(near) < min(far) and max(near) < 0.05
    assert rows[-5][1] > rows[-4][1] and rows[5][1] > rows[4][1]


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_what_is_quoted_is_what_is_printed(page):
    text = (ROOT / page).read_text()
    (quoted,) = map(predictions, blocks("text", text))
    code = blocks("python", text)
    lines = run(code[1] if page == "README.md" else "".join(code[:-1])).splitlines()  # the last one draws
    for x, printed in predictions("\n".join(line for line in lines if line.startswith("x ="))).items():
        assert quoted[x] == pytest.approx(printed, rel=0.1, abs=0.02)  # other processors round otherwise


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
