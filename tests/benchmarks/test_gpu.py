"""The report on a GPU: sections that fail, crash or take too long, and what is written of them."""

import json
import sys
import time

import pytest

from benchmarks import gpu

SCRIPTS = {
    "good": "from benchmarks import gpu; import pathlib, sys\n"
    "sys.exit(gpu.run_section(lambda say: say('a line') or {'n': 3}, pathlib.Path(sys.argv[1])))",
    "bad": "from benchmarks import gpu; import pathlib, sys\n"
    "sys.exit(gpu.run_section(lambda say: say('begun') or 1 / 0, pathlib.Path(sys.argv[1])))",
    "crash": "import os; os.abort()",
    "slow": "import pathlib, sys, time\n"
    """pathlib.Path(sys.argv[1]).write_text('{"lines": ["half of it"], "data": null}'); time.sleep(60)""",
    "never": "",
}


def command(name: str, file) -> list[str]:
    return [sys.executable, "-c", SCRIPTS[name], str(file)]


def test_a_part_that_fails_does_not_keep_the_others_away(tmp_path):
    limits = {"good": 60.0, "bad": 60.0, "crash": 60.0}
    whole = gpu.run_all(limits, command, tmp_path / "report", 200)
    found = {name: (section["result"], section["data"]) for name, section in whole["sections"].items()}
    assert found["good"] == ("ok", {"n": 3})
    assert found["bad"] == ("failed, exit code 1", None)
    assert found["crash"][0] == "failed, exit code -6"
    assert whole["sections"]["bad"]["lines"][0] == "begun"
    assert "ZeroDivisionError" in whole["sections"]["bad"]["lines"][1]
    assert json.loads((tmp_path / "report.json").read_text()) == whole
    text = (tmp_path / "report.md").read_text()
    assert "| bad     | failed, exit code 1  |" in text and "a line" in text and "ZeroDivisionError" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]


@pytest.mark.slow
def test_what_takes_too_long_is_cut_and_what_did_not_fit_is_said(tmp_path):
    start = time.monotonic()
    whole = gpu.run_all({"slow": 2.0, "never": 30.0}, command, tmp_path / "report", 2.5)
    assert time.monotonic() - start < 30
    slow, never = whole["sections"]["slow"], whole["sections"]["never"]
    assert slow["result"] == "out of time after 2 s" and slow["lines"] == ["half of it"]
    assert never["result"] == "left out: no time was left"


def test_the_slowest_kernel_comes_first():
    measured = {"copy": {"launches": 2, "seconds": 1e-5}, "product": {"launches": 9, "seconds": 2.99e-3}}
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in gpu.kernel_table(measured).splitlines()]
    assert cells[2:] == [["product", "9", "2.990"], ["copy", "2", "0.010"], ["all", "11", "3.000"]]


def test_each_line_is_on_disk_at_once(tmp_path):
    def report(say):
        say("half of it")
        assert json.loads((tmp_path / "part").read_text())["lines"] == ["half of it"]

    assert gpu.run_section(report, tmp_path / "part") == 0


def test_the_budgets_fit_and_every_section_is_described():
    assert sum(gpu.BUDGETS.values()) <= 60 * gpu.MINUTES
    assert {*gpu.BUDGETS, *gpu.EXTRA} == gpu.REPORTS.keys()
    assert all(f"| {name} |" in gpu.__doc__ for name in gpu.REPORTS)
