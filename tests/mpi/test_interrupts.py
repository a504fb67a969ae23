"""Ctrl-C on one of several ranks, amid what they do together: it is answered at the end, and the ranks are in step."""

import signal
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.distributed import DDPConfig, DDPSequential, FSDPSequential, PipelineSequential
from pytagi_ddp.distributed.engine import operations
from tests.mpi.rank import job_folder
from tests.mpi.shared import on_ranks


def interrupted(comm, kind, call):
    config = DDPConfig(backend=comm.backend)
    make = {"ddp": DDPSequential, "fsdp": FSDPSequential, "pipeline": PipelineSequential}[kind]
    net = make(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm2d(5), nn.Tanh(), nn.Linear(5, 2)), config)
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    calls = {
        "predict": lambda: net.predict(x),
        "update_bn": lambda: net.update_bn([x]),
        "save": lambda: net.save(job_folder() / "net"),
        "checkpoint": lambda: CheckpointManager(job_folder() / kind).save(net, TrainingPosition(step=1)),
    }
    answered = False
    before = net.communicator._prepare

    def prepare(*args, **details):
        if comm.rank == 0:
            net.communicator._prepare = before
            signal.raise_signal(signal.SIGINT)
        before(*args, **details)

    net.communicator._prepare = prepare
    with patch.object(operations, "SPIN_SECONDS", 60), patch.object(operations, "SPIN_SECONDS_UNDERWAY", 60):
        try:  # who sleeps while it waits for others answers at once, and ends the job
            calls[call]()
        except KeyboardInterrupt:
            answered = True
    calls[call]()
    return [answered, comm.all_gather_object(comm.rank)]


@on_ranks(interrupted, 2, threads=False)
@pytest.mark.parametrize(
    ("kind", "call"),
    [("ddp", "update_bn")]
    + [(kind, call) for kind in ("fsdp", "pipeline") for call in ("predict", "update_bn", "save", "checkpoint")],
)
def test_ranks_are_in_step_after_an_interrupt(results, kind, call):
    assert results == [[True, [0, 1]], [False, [0, 1]]]
