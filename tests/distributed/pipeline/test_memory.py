"""Memory of a pipeline: what a batch takes the first time, and nothing after that."""

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.distributed import DDPConfig, PipelineSequential, run_threads
from tests.nn import test_memory
from tests.nn.test_memory import large_allocations, peak_bytes

WIDTH, BATCH = 1000, 128
X, Y = np.ones((BATCH, 8), np.float32), np.zeros((BATCH, 2))
ACTIVATIONS = 3 * 2 * 4 * WIDTH * BATCH  # bytes: means and variances of three wide layers, whose ReLU works in place


def pipeline(**options) -> PipelineSequential:
    layers = [nn.Linear(8, WIDTH, bias=False), nn.ReLU()]
    for _ in range(2):
        layers += [nn.LayerNorm([WIDTH]), nn.ReLU()]
    return PipelineSequential(nn.Sequential(*layers, nn.Linear(WIDTH, 2)), n_microbatches=8, **options)


def learn(net: PipelineSequential) -> None:
    updater = nn.OutputUpdater("cpu")
    net.forward_backward(X, lambda states, rows, deltas: updater.update(states, Y[rows], 1.0, deltas))
    net.step()


def first_batch(**options) -> int:
    net = pipeline(config=DDPConfig(backend="serial"), **options)
    return peak_bytes(lambda: learn(net))


def test_activations_of_as_many_micro_batches_as_are_under_way():
    learn(pipeline(config=DDPConfig(backend="serial")))  # loads the kernels
    all_of_them, one, recomputed = (
        first_batch(schedule="GPipe"),
        first_batch(schedule="1F1B"),  # the last stage goes back at once
        first_batch(schedule="GPipe", recompute=True),
    )
    assert all_of_them > ACTIVATIONS
    assert one < ACTIVATIONS / 2
    assert recomputed < ACTIVATIONS / 2


@pytest.mark.parametrize("schedule", ["1F1B", "GPipe"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_steady_batch(schedule, recompute, monkeypatch):
    monkeypatch.setattr(test_memory, "SMALLEST", 4 * WIDTH * BATCH // 8)  # an array of a micro-batch; views are small

    def program() -> list[str]:
        net = pipeline(schedule=schedule, recompute=recompute)
        for _ in range(2):
            learn(net)
        net.barrier()
        found = large_allocations(lambda: learn(net)) if net.is_first else learn(net)
        net.barrier()
        return found or []

    assert run_threads(program, 2) == [[], []]
