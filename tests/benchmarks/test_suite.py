"""`python -m benchmarks`: what it prints and what it writes, on networks that are small enough for a test."""

import json
import statistics
import sys

import pytest

from benchmarks import __main__ as suite
from benchmarks.peers import OWN, PEERS
from benchmarks.training import derive

pytestmark = pytest.mark.slow  # starts processes of its own

TEXT, NUMBER = str, (int, float)
MACHINE = {"cpu": TEXT, "vectors": list, "blas": dict, "cores": int, "memory": int, "load": list}
MACHINE |= {"system": TEXT, "python": TEXT}
BLAS = {"library": TEXT, "kernels": TEXT, "pin": (TEXT, type(None)), "unpinned": TEXT}
ROW = {
    "workload": TEXT,
    "library": TEXT,
    "rounds": list,
    "note": TEXT,
    "build": NUMBER,
    "first": NUMBER,
    "parameters": int,
    "floor_flops": NUMBER,
    "memory": int,
    "median": NUMBER,
    "low": NUMBER,
    "high": NUMBER,
    "rate": NUMBER,
    "of_floor": NUMBER,
    "ratio": NUMBER,
}


def check(value: dict, schema: dict) -> None:
    assert value.keys() == schema.keys()
    for key, kind in schema.items():
        assert isinstance(value[key], kind), key


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(what a run printed, its results, its folder)."""
    folder = tmp_path_factory.mktemp("benchmark")
    command = ["--quick", "--threads", "1", "--section", "training", "--workload", "mlp-16-b8", "--peer", "pytagi"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCHMARK_PYTHON_PYTAGI", str(folder / "no-python"))
        lines = []
        patch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
        suite.main([*command, "--output", str(folder)])
    return "\n".join(lines), json.loads((folder / "results.json").read_text()), folder


def test_schema(run):
    _, results, _ = run
    assert results.keys() == {"schema", "date", "machine", "options", "training", "peak"}
    assert results["schema"] == 1
    check(results["machine"], MACHINE)
    check(results["machine"]["blas"], BLAS)
    check(results["peak"], {"flops": NUMBER, "copy_bytes_per_second": NUMBER})
    (row,) = results["training"]["rows"]
    check(row, ROW)
    assert results["options"]["threads"] == 1
    assert {"pytagi_ddp", "numpy", "scipy", "numba"} == results["training"]["versions"][OWN].keys()


def test_numbers(run):
    _, results, _ = run
    (row,) = results["training"]["rows"]
    times = [step for steps in row["rounds"] for step in steps]
    assert row["low"] <= row["median"] == statistics.median(times) <= row["high"]
    assert row["parameters"] == 12 * 16 + 16 + 16 * 16 + 16 + 16 * 3 + 3
    assert row["floor_flops"] == 2 * 8 * (4 * 12 * 16 + 7 * 16 * 16 + 7 * 16 * 3)
    assert row["of_floor"] == pytest.approx(row["floor_flops"] / row["median"] / results["peak"]["flops"])
    assert row["ratio"] == 1
    assert 10e6 < row["memory"] < 2e9


def test_what_is_printed(run):
    text, results, folder = run
    assert f"Products: {results['machine']['blas']['library']} with kernels for " in text
    assert f"pytagi: not measured ({folder / 'no-python'} does not start" in text
    assert PEERS["pytagi"].install in text
    assert "| mlp-16-b8 | pytagi_ddp |" in text
    assert "sgemm peak" in text


def test_ratios_are_those_of_equal_rounds():
    own = {"library": OWN, "rounds": [[1.0, 1.0], [4.0], [2.0]], "floor_flops": 8.0}
    peer = {"library": "torch SGD", "rounds": [[3.0], [4.0], [4.0]]}
    late = {"library": "pytagi", "rounds": [], "at_least": 30.0}
    derive([own, peer, late], peak=8.0)
    assert peer["ratio"] == 2.0  # of 3, 1 and 2; the quotient of the medians is 4/1.5
    assert (own["median"], own["of_floor"]) == (1.5, pytest.approx(2 / 3))
    assert "rate" not in peer  # three products where TAGI has seven
    assert late["ratio_at_least"] == 20


@pytest.mark.parametrize("wrong", [["--peer-python", "numpy=python"], ["--peer-python", "torch="], ["--repeat", "0"]])
def test_wrong_arguments(wrong, capsys):
    with pytest.raises(SystemExit) as stop:
        suite.main(wrong)
    assert stop.value.code == 2
    assert "must be at least 1" in (error := capsys.readouterr().err) or "expected pytagi=PYTHON" in error


def test_a_peer_may_live_elsewhere(monkeypatch):
    monkeypatch.setenv("BENCHMARK_PYTHON_TORCH", "/there/python")
    options = suite.options_of(suite.parse(["--peer-python", "pytagi=/here/python"]))
    found = {name: options.python(name) for name in PEERS}
    assert found == {
        OWN: sys.executable,
        "pytagi_ddp mixed": sys.executable,
        "pytagi_ddp recomputed": sys.executable,
        "pytagi_ddp walked": sys.executable,
        "pytagi": "/here/python",
        "torch TAGI": "/there/python",
        "torch SGD": "/there/python",
    }
