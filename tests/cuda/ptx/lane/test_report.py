"""Sections of `benchmarks.gpu`, as far as the stand-in goes."""

import json

from benchmarks import gpu, roofline


def test_machine(tmp_path):
    file = tmp_path / "machine"
    assert gpu.run_section(gpu.report_machine, file) == 0
    found = json.loads(file.read_text())
    assert found["data"]["cuda:0"].startswith("PTX on the CPU, compute capability 8.0, 8.0 GiB")
    assert found["data"]["CUDA"] == "driver for 13000, runtime 13000" and found["data"]["NCCL"]
    assert "numba-cuda" in found["data"]
    assert len(found["lines"]) == len(found["data"])


def test_prediction(monkeypatch):
    lines: list[str] = []
    assert gpu.report_prediction(lines.append) == {}
    assert lines == ["nothing is predicted: no figures of PTX on the CPU"]

    def run(say, what, *module) -> int:
        with open(module[module.index("--json") + 1], "w") as file:
            json.dump({"options": module[1:5], "tf32": "--tf32" in module}, file)
        return 0

    monkeypatch.setattr(gpu, "run", run)
    monkeypatch.setattr(roofline, "card_of", lambda device: "h100")
    options = ["--predict", "h100", "--workload", gpu.WORKLOAD]
    expected = {"fp32": {"options": options, "tf32": False}, "TF32": {"options": options, "tf32": True}}
    assert gpu.report_prediction(lines.append) == expected
