"""Programs that use the package are checked by its types."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import numpy as np
from pytagi_ddp import nn
from pytagi_ddp.checkpoint import CheckpointManager
from pytagi_ddp.data import ImageDataset
from pytagi_ddp.distributed import all_reduce, rank_zero_only, synchronize, world_size
from pytagi_ddp.estimators import TAGIRegressor
from pytagi_ddp.metric import rmse
from pytagi_ddp.nn import DDPConfig, DDPSequential, Linear, OutputUpdater, ReLU, Sequential

net = DDPSequential(Sequential(Linear(1, 50), ReLU(), Linear(50, 1)), DDPConfig(timeout=60))
layer = Linear(1, 1)
layer.mu_w = [0.5]
updater = OutputUpdater(net.model.device)
updater.update(net.model.output_z_buffer, [1.0], np.ones(1), net.model.input_delta_z_buffer)
nn.LSTM(1, 8, True, 12), nn.LSTM(1, 8, 12, True), nn.MultiheadAttention(8, 2, None, 12)  # pytagi has both orders
ImageDataset(np.zeros((1, 1, 2, 2), np.uint8), [0], ["one class"], "lists")
manager, regressor = CheckpointManager("runs"), TAGIRegressor([50, 50])
rmse([1.0], 2.0)
reveal_type(manager.load(net, "runs").position.step)
reveal_type(regressor.predict([[1.0]]).shape)
reveal_type(regressor.predict([[1.0]], return_std=True)[1].shape)
reveal_type(synchronize("auto", net))
reveal_type(net.predict([0.0])[0].shape)
reveal_type(layer.delta_var_b.size)
reveal_type(layer.in_channels)
reveal_type(world_size())
reveal_type(all_reduce("auto", np.ones(1)).size)
reveal_type(rank_zero_only(world_size)())
"""
NET = "pytagi_ddp.distributed.ddp.DDPSequential"
SHAPE = "tuple[Any, ...]"
TYPES = ["int", SHAPE, SHAPE, NET, SHAPE, "int", "int", "int", "int", "int | None"]
MISTAKES = [
    "layer.mu_x",
    "net.fit([1.0], [1.0], 0.1)",
    "net.fit([1.0], [1.0], lr=0.1)",
    "layer.in_channels = 2",
    'Linear("1", 1)',
    'nn.LSTM("1", 1)',
    "nn.Lineer(1, 1)",
    "net.forward()",
    "world_size(3)",
    "manager.load(net).position",  # None in an empty folder
]


def check(program: str, folder: Path) -> list[str]:
    """What mypy says about a program, a line each, without file names."""
    (folder / "program.py").write_text(program)
    command = (sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(folder / "program.py"))
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not result.stderr, result.stderr
    return [line.split(":", 1)[1] for line in result.stdout.splitlines()[:-1]]


@pytest.mark.slow
def test_the_public_calls_have_types(tmp_path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("needs the package mypy")
    if np.lib.NumpyVersion(np.__version__) < "2.3.0":
        pytest.skip("NumPy 2.2 and earlier do not say the types of shapes")
    lines = check(PROGRAM + "\n".join(MISTAKES), tmp_path)
    found = [line for line in lines if " error: " in line]
    revealed = [line for line in lines if "note: Revealed type" in line]
    for line, expected in zip(revealed, TYPES, strict=True):
        assert f'note: Revealed type is "{expected}"' in line
    first = PROGRAM.count("\n") + 1
    assert [int(line.split(":")[0]) for line in found] == [first + k for k in range(len(MISTAKES))], found
