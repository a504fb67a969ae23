"""Sections of `benchmarks.gpu`, as far as the stand-in goes."""

import json

from benchmarks import gpu


def test_machine(tmp_path):
    file = tmp_path / "machine"
    assert gpu.run_section(gpu.report_machine, file) == 0
    found = json.loads(file.read_text())
    assert found["data"]["cuda:0"].startswith("PTX on the CPU, compute capability 8.0, 8.0 GiB")
    assert found["data"]["CUDA"] == "driver for 13000, runtime 13000" and found["data"]["NCCL"]
    assert "numba-cuda" in found["data"]
    assert len(found["lines"]) == len(found["data"])
