"""What the README says, works."""

import importlib.util
import json
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


def run(code: str, folder: Path = ROOT) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_the_blocks_are_found():
    assert (len(blocks("python")), len(blocks("sh"))) == (2, 2)


def predictions(printed: str) -> dict[float, tuple[float, ...]]:
    """(mean, standard deviation, truth) by place."""
    pattern = r"x = *(\S+): y = *(\S+) \+- (\S+) \(true *(\S+)\)"
    found = [re.fullmatch(pattern, line).groups() for line in printed.splitlines()]
    return {float(x): tuple(map(float, row)) for x, *row in found}


INSIDE = """
import json
std, wrong, inside = var[:, 0] ** 0.5, abs(mean[:, 0] - np.sin(places)), abs(places) < 3
print(json.dumps([float((wrong < 2 * std)[inside].mean()), float(std[inside].mean()), float(std[[0, -1]].min())]))
"""


def test_the_error_bars_are_right_where_the_data_are_and_wide_outside(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    covered, near, far = json.loads(run(blocks("python")[0] + INSIDE, tmp_path))
    assert covered > 0.8 and near < 0.06 and far > 10 * near  # 95 % within two would be right
    assert (tmp_path / "first.png").stat().st_size > 10_000


def test_what_is_quoted_is_what_is_printed():
    text = (ROOT / "docs/start.md").read_text()
    (quoted,) = map(predictions, blocks("text", text))
    lines = run("".join(blocks("python", text)[:-1])).splitlines()  # the last one draws
    for x, printed in predictions("\n".join(line for line in lines if line.startswith("x ="))).items():
        assert quoted[x] == pytest.approx(printed, rel=0.1, abs=0.02)  # other processors round otherwise


@pytest.mark.mpi
def test_the_program_runs_on_two_ranks(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    from tests.mpi.run import mpirun

    learns, wraps = blocks("python")
    before, fit, _ = learns.partition("net.fit(")
    options = learns[len(before) :].partition("\n")[0]
    program = tmp_path / "regression.py"
    program.write_text(f'{before}\n{wraps}\n{options}\nprint(f"<{{net.predict(1.0)[0][0, 0] - np.sin(1)}}>")')
    result = mpirun([str(program)], np=2, timeout=60)
    assert fit and (result.returncode, result.stderr) == (0, "")
    one, other = map(float, re.findall("<(.*?)>", result.stdout))  # two ranks may share a line
    assert one == other and abs(one) < 0.2


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

    text = (ROOT / "docs/guide/networks.md").read_text()
    table = text[text.index("| layers |") : text.index("| output updates |")]
    names = set(re.findall(r"`(\w+)[`(]", table)) - {"Utils", "HRCSoftmaxMetric"}
    assert len(names) > 20
    assert names <= set(nn.__all__)
