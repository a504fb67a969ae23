"""The prediction from counts, and what is counted; `tests/cuda/ptx` tests the counts themselves."""

import json
import subprocess
import sys

import pytest

from benchmarks import roofline
from benchmarks.roofline import CARDS, GAP, GAP_IN_GRAPH, HOST, SHORTEST, predict
from benchmarks.step_counts import COLUMNS
from benchmarks.workloads import find
from tests.conftest import weekly
from tests.cuda.ptx.emulator import missing

NOTHING = dict.fromkeys(COLUMNS, 0)


def launch(kernel: str, times: int = 1, blocks: int = 1000, **work: float) -> dict:
    return NOTHING | {"kernel": kernel, "threads": 128, "grid": [blocks, 1], "times": times} | work


def step(*launches: dict, tf32: bool = False, copies: tuple = ()) -> dict:
    return {"workload": "made", "tf32": tf32, "launches": list(launches), "copies": list(copies), "data_dependent": []}


@pytest.mark.parametrize(
    ("bound", "work", "seconds"),
    [
        ("ffma", {"ffma": 108 * 64 * 1.41e9}, 1.0),
        ("mma", {"mma": 156e12 / 64}, 1.0),  # 64 operations of each of 32 threads
        ("dram", {"read": 1.5 * 2.039e12, "written": 0.5 * 2.039e12}, 2.0),
        ("l2", {"block_load": 5120 * 1.41e9}, 1.0),
        ("shared", {"shared": 64 * 108 * 1.41e9, "load": 32 * 108 * 1.41e9, "store": 32 * 108 * 1.41e9}, 1.0),
        ("launch", {"read": 4}, SHORTEST),
    ],
)
def test_a_launch_takes_as_long_as_its_slowest_resource(bound, work, seconds):
    row = predict("a100", counts=step(launch("one", **work)))["kernels"]["one"]
    assert row["bound"] == bound
    assert row["seconds"] == pytest.approx(seconds)


def test_few_blocks_have_few_multiprocessors():
    many = predict("h100", counts=step(launch("one", blocks=1000, ffma=1e12)))["kernels"]["one"]["seconds"]
    few = predict("h100", counts=step(launch("one", blocks=33, ffma=1e12)))["kernels"]["one"]["seconds"]
    assert few == pytest.approx(4 * many)


def test_launches_and_copies_follow_each_other():
    copy = {"what": "copy", "times": 2, "read": 0.5e12, "written": 0.5e12}
    counts = step(launch("one", times=3, read=4.8e12), launch("two", read=4), copies=(copy,))
    predicted = predict("h200", counts=counts)
    long = 3 + 2 / 4.8 + SHORTEST
    assert (predicted["launches"], predicted["copies"]) == (4, 2)
    assert predicted["kernels"]["(copy on the device)"]["seconds"] == pytest.approx(2 / 4.8)
    assert predicted["step"]["seconds"] == pytest.approx(long + 6 * GAP)
    assert predicted["step"]["seconds_with_graphs"] == pytest.approx(long + 6 * GAP_IN_GRAPH)
    assert json.loads(json.dumps(predicted))["prediction"] is True


def test_many_short_launches_wait_for_the_host():
    predicted = predict("t4", counts=step(launch("one", times=100, read=4)))["step"]
    assert predicted["seconds"] == pytest.approx(100 * HOST)
    assert predicted["seconds_with_graphs"] == pytest.approx(100 * (SHORTEST + GAP_IN_GRAPH))


def test_what_cannot_be_predicted():
    with pytest.raises(ValueError, match="no figures of a card 'k80': h200, h100"):
        predict("k80")
    with pytest.raises(ValueError, match="T4 has no TF32"):
        predict("t4", counts=step(tf32=True))
    with pytest.raises(ValueError, match="no workload 'mlp-128-bx'"):
        find("mlp-128-bx")


@pytest.mark.parametrize(
    ("device", "card"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("Tesla T4", "t4"),
        ("NVIDIA T400 4GB", None),
    ],
)
def test_the_card_of_a_device(device, card):
    assert roofline.card_of(device) == card


@weekly
@pytest.mark.slow
def test_a_prediction_of_the_kernels_as_they_are(tmp_path):
    if reason := missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "benchmarks.gpu_launches", "--workload", "1-50-1-b16", "--predict"]
    output = tmp_path / "prediction.json"
    done = subprocess.run([*command, "t4", "--json", str(output)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PREDICTION, not a measurement: 1-50-1-b16, float32, on T4" in done.stdout
    predicted = json.loads(output.read_text())
    assert (predicted["launches"], predicted["copies"]) == (9, 0)
    assert {row["bound"] for row in predicted["kernels"].values()} == {"launch"}
    assert set(CARDS) >= {"h200", "h100", "a100", "4090", "t4"}
