"""The doctor's check of a GPU notices what is wrong with it (that it finds nothing else: `tests/cuda/test_gpu.py`)."""

import json
import re

import pytest

from pytagi_ddp import cuda, doctor
from pytagi_ddp.selfcheck import examples, gpu
from tests.cuda.ptx.machine import Program, machine


@pytest.fixture
def only(monkeypatch):
    """only(name, ...): of the examples, these."""
    every = examples.examples

    def choose(*names: str) -> None:
        monkeypatch.setattr(gpu, "examples", lambda: [example for example in every() if example.name in names])
        monkeypatch.setattr(gpu, "WAYS", {})

    return choose


def results(rows: list[gpu.Row]) -> dict[str, bool]:
    return {row.what: row.failed for row in rows}


def test_a_spoilt_kernel_is_noticed(only, monkeypatch, tmp_path, capsys):
    only("activation MixtureReLU", "activation ReLU")
    before = len(machine.problems)
    code, rows = gpu.report("cuda", lambda line: None)
    assert not results(rows)["activation MixtureReLU"] and code == 1
    (program,) = machine.programs["activation_mixture_relu"]
    spoilt = Program(re.sub(r"sub\.f32", "add.f32", "\n".join(program.kernel.lines), count=1))
    monkeypatch.setattr(program, "_run", spoilt._run)
    assert doctor.main(["--gpu", "--json", str(tmp_path / "rows")]) == 1
    del machine.problems[before:]
    assert results(gpu.check_gpu("cuda")) == {
        "kernels compile for 8.0": False,
        "activation MixtureReLU": True,
        "activation ReLU": False,
        "every kernel ran": True,
        "NCCL, two ranks": False,
    }
    printed = capsys.readouterr().out
    assert re.search(r"activation MixtureReLU +FAILED +\d\.\de[-+]\d\d +\d+\.\d\d s", printed)
    assert "differs by" in printed and "This GPU does not work as it should." in printed
    kept = json.loads((tmp_path / "rows").read_text())
    assert kept["exit code"] == 1 and kept["rows"][1]["what"] == "activation MixtureReLU"


def test_a_kernel_that_no_example_runs_is_named(only):
    only("activation ReLU")
    row = next(row for row in gpu.check_gpu("cuda") if row.what == "every kernel ran")
    assert row.failed and "softmax__remax" in row.result and "activation_relu" not in row.result


def test_the_option_for_tf32_is_left_as_it_was(only, monkeypatch):
    """It was False afterwards; results of the first checks do not depend on it."""
    monkeypatch.setattr(cuda, "allow_tf32", True)
    only("evidence forgotten", "dense, tiles of 128x64")
    rows = results(gpu.check_gpu("cuda"))
    assert cuda.allow_tf32 and not rows["evidence forgotten"] and not rows["dense, tiles of 128x64"]


def test_a_way_with_other_bits_is_noticed(only, monkeypatch):
    only()
    monkeypatch.setattr(gpu, "WAYS", examples.WAYS)
    steps = examples.steps_in_a_way

    def other_bits(device, way):
        found = steps(device, way)
        return {name: value + (way == "as CUDA graphs") for name, value in found.items()}

    monkeypatch.setattr(gpu, "steps_in_a_way", other_bits)
    failed = {what for what, wrong in results(gpu.check_gpu("cuda")).items() if wrong}
    assert failed == {"every kernel ran", "training steps as CUDA graphs"}


def test_a_gpu_that_is_not_there(capsys):
    assert doctor.main(["--gpu", "cuda:7"]) == 2
    assert doctor.main(["--gpu", "gpu"]) == 2
    printed = capsys.readouterr().out
    assert "no GPU 7" in printed and "unknown device 'gpu'" in printed
