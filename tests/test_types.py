"""Programs that use the package are checked by its types."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import numpy as np
from pytagi_ddp.distributed import all_reduce, rank_zero_only, world_size
from pytagi_ddp.nn import DDPConfig, DDPSequential, Linear, OutputUpdater, ReLU, Sequential

net = DDPSequential(Sequential(Linear(1, 50), ReLU(), Linear(50, 1)), DDPConfig(timeout=60))
layer = Linear(1, 1)
layer.mu_w = [0.5]
updater = OutputUpdater(net.model.device)
updater.update(net.model.output_z_buffer, [1.0], np.ones(1), net.model.input_delta_z_buffer)
reveal_type(net.predict([0.0])[0].shape)
reveal_type(layer.delta_var_b.size)
reveal_type(layer.in_channels)
reveal_type(world_size())
reveal_type(all_reduce("auto", np.ones(1)).size)
reveal_type(rank_zero_only(world_size)())
"""
TYPES = ["tuple[Any, ...]", "int", "int", "int", "int", "int | None"]
MISTAKES = ["layer.mu_x", "layer.in_channels = 2", 'Linear("1", 1)', "net.forward()", "world_size(3)"]


def check(program: str, folder: Path) -> list[str]:
    """What mypy says about a program, a line each, without file names."""
    (folder / "program.py").write_text(program)
    command = (sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(folder / "program.py"))
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not result.stderr, result.stderr
    return [line.split(":", 1)[1] for line in result.stdout.splitlines()[:-1]]


def test_the_public_calls_have_types(tmp_path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("needs the package mypy")
    revealed = check(PROGRAM, tmp_path)
    assert len(revealed) == len(TYPES), revealed
    for line, expected in zip(revealed, TYPES, strict=True):
        assert f'note: Revealed type is "{expected}"' in line
    first = PROGRAM.count("\n") + 1
    found = [line for line in check(PROGRAM + "\n".join(MISTAKES), tmp_path) if " error: " in line]
    assert [int(line.split(":")[0]) for line in found] == [first + k for k in range(len(MISTAKES))], found


def test_the_package_says_that_it_has_types():
    assert '"pytagi_ddp" = ["py.typed"]' in (ROOT / "pyproject.toml").read_text()
    assert (ROOT / "pytagi_ddp/py.typed").exists()
