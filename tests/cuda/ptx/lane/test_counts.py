"""The counts of outlines against whole runs, launch by launch: `benchmarks.step_counts` rests on outlines alone."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.workloads import SMALL, SPECS
from pytagi_ddp import cuda, nn
from pytagi_ddp.kernels.cuda.array import arrays
from tests.cuda.ptx.machine import Piece, Program, machine
from tests.cuda.ptx.outline import outline

ALIKE = ("instructions", "ffma", "mma", "shared")
NETWORKS = {
    "mlp": SMALL["mlp-16-b8"],
    "narrow": SMALL["8-64-64-1-b16"],
    "convolution": SMALL["conv4-b4"],
    "transposed convolution": SMALL["deconv4-b4"],
    "attention": SMALL["attention-b2"],
    "lstm": SMALL["lstm-4-t3-b2"],
    "images": replace(SPECS["mnist-cnn-b128"], batch=2),
}


def touched(pieces: list, kind: int) -> int:
    """Bytes of the words that the last launch wrote (kind 0) or read (1), by the tags of runtime.h."""
    memories = {id(piece.memory): piece.memory for piece in pieces if isinstance(piece, Piece)}
    return sum(4 * int((m.tags[:, kind] >> 45 == machine.serial & 0x7FFFF).sum()) for m in memories.values())


@pytest.fixture
def compared(monkeypatch):
    """Counts every launch twice; a list of (kernel, where they differ)."""
    found, launch = [], Program.launch

    def both(self, grid, block, arguments):
        counted = outline("\n".join(self.kernel.lines)).count(grid, block, arguments)
        before = self.work
        launch(self, grid, block, arguments)
        ran = Counter({name: self.work[name] - before[name] for name in (*ALIKE, "global")})
        ran.update(written=touched(arguments, 0), read=touched(arguments, 1))
        differ = {
            name: (counted[name], ran[name]) for name in (*ALIKE, "read", "written") if counted[name] != ran[name]
        }
        issued = counted["load"] + counted["store"]
        if issued != ran["global"] and not ran["mma"]:  # asynchronous copies of zeros are none
            differ["global"] = issued, ran["global"]
        found.append((self.name, differ))

    monkeypatch.setattr(Program, "launch", both)
    return found


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_launch_of_a_step(name, tf32, compared, monkeypatch):
    monkeypatch.setattr(cuda, "allow_tf32", tf32)
    spec = NETWORKS[name]
    net = spec.build(nn)
    net.to_device("cuda")
    x, var_x, y = spec.data()
    net(x, var_x)
    nn.OutputUpdater(net.device).update(net.output_z_buffer, y, np.ones_like(y), net.input_delta_z_buffer)
    net.backward()
    net.step()
    arrays(0).synchronize()
    assert len(compared) >= 8
    assert [launch for launch in compared if launch[1]] == []
