"""Counts of outlines equal those of whole runs, launch by launch. `benchmarks.step_counts` uses outlines alone."""

from collections import Counter

import pytest

from benchmarks.roofline import counted
from benchmarks.step_counts import totals
from benchmarks.training_step import Workload
from pytagi_ddp import cuda
from pytagi_ddp.kernels.cuda.runtime.array import arrays
from tests.cuda.ptx.machine import Piece, Program, machine
from tests.cuda.ptx.outline import outline

ALIKE = ("instructions", "ffma", "mma", "shared")
NETWORKS = {
    "mlp": "mlp-16-b8",
    "narrow": "8-64-64-1-b16",
    "convolution": "conv4-b4",
    "transposed convolution": "deconv4-b4",
    "attention": "attention-b2",
    "lstm": "lstm-4-t3-b2",
    "images": "mnist-cnn-b2",
}


def touched(pieces: list, kind: int) -> int:
    """Bytes of the words that the last launch wrote (kind 0) or read (1), by the tags of runtime.h."""
    memories = {id(piece.memory): piece.memory for piece in pieces if isinstance(piece, Piece)}
    return sum(4 * int((m.tags[:, kind] >> 45 == machine.serial & 0x7FFFF).sum()) for m in memories.values())


@pytest.fixture
def ran(monkeypatch):
    """Counts every launch twice: (kernel, counts of the outline, of the whole run, whether numbers decide) of each."""
    found, launch = [], Program.launch

    def both(self, grid, block, arguments):
        made = outline("\n".join(self.kernel.lines))
        count, before = made.count(grid, block, arguments), self.work
        launch(self, grid, block, arguments)
        whole = Counter({name: self.work[name] - before[name] for name in (*ALIKE, "global")})
        whole.update(written=touched(arguments, 0), read=touched(arguments, 1))
        if not whole["mma"]:  # asynchronous copies of zeros are no loads: the outline knows, the other count does not
            count["global"] = count["load"] + count["store"]
        found.append((self.name, count, whole, bool(made.depends_on)))

    monkeypatch.setattr(Program, "launch", both)
    return found


def train(workload: str, steps: int = 1, ran: list | None = None) -> None:
    """Trains; of `ran` the last step is left."""
    job = Workload(workload, "cuda")
    for _ in range(steps):
        if ran:
            ran.clear()
        job.step()
        arrays(0).synchronize()


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_launch_of_a_step(name, tf32, ran, monkeypatch):
    monkeypatch.setattr(cuda, "allow_tf32", tf32)
    train(NETWORKS[name])
    assert len(ran) >= 5
    for kernel, count, whole, numbers_decide in ran:
        names = [name for name in whole if name != "global" or name in count]
        differ = {name: (count[name], whole[name]) for name in names if count[name] != whole[name]}
        if numbers_decide:  # which are those of the run in global memory, and not in shared memory
            assert set(differ) <= {"instructions"}, kernel
            assert count["instructions"] == pytest.approx(whole["instructions"], rel=0.01), kernel
        else:
            assert differ == {}, kernel


def test_the_counts_of_a_step(ran):
    """Which take all arrays as zero."""
    train(NETWORKS["images"], 2, ran)
    found = totals(counted(NETWORKS["images"]) | {"copies": []})
    assert found["launches"] == len(ran)
    for name in ("ffma", "shared", "read", "written"):
        assert found[name] == pytest.approx(sum(whole[name] for _, _, whole, _ in ran), rel=0.001), name
