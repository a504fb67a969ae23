"""Checkpoints of networks in shards, over jobs: other numbers of ranks, other ways of training, and kills."""

import os
import random
import time
from functools import partial

import numpy as np
import pytest

from pytagi_ddp.checkpoint import CheckpointManager
from pytagi_ddp.nn import Linear, ReLU, Sequential
from tests.mpi.programs import sharded_checkpoints
from tests.mpi.programs.sharded_checkpoints import STEPS
from tests.mpi.run import mpirun

pytestmark = pytest.mark.mpi

KILLS = int(os.environ.get("TEST_KILLS", 3))


def ends_of(np, *trainings):
    """(ranks that had written what it began from, steps, bits) of trainings, one after the other in one job."""
    result = mpirun(partial(sharded_checkpoints.train_in_turn, trainings=trainings), np, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    return [(int(ranks), int(steps), bits) for ranks, steps, bits in lines]


def end_of(folder, np, **arguments):
    return ends_of(np, {"folder": str(folder), **arguments})[0]


def test_stopped_and_resumed_it_ends_with_the_same_bits(tmp_path):
    """By new networks in one job; below, other jobs go on."""
    a, b = ({"folder": str(tmp_path / name)} for name in "ab")
    straight, _, resumed = ends_of(3, a, b | {"stop_after": 3}, b)
    assert resumed == (3, STEPS, straight[2])


@pytest.mark.parametrize(("wrote", "read"), [(2, 3)])
def test_other_ranks_and_other_ways_read_it(wrote, read, tmp_path):
    _, _, bits = end_of(tmp_path, wrote)
    ways = ("fsdp", "pipeline", "whole", "ddp")  # each writes what the next one reads
    found = ends_of(read, *({"folder": str(tmp_path), "way": way} for way in ways))
    assert found == [((wrote if way == "fsdp" else read), STEPS, bits) for way in ways]


def test_one_file_for_nodes_that_share_no_folder(tmp_path):
    _, _, bits = end_of(tmp_path, 2, gather=True)
    assert [path.suffix for path in tmp_path.glob("step-*")] == [".safetensors"]
    assert end_of(tmp_path, 1)[2] == bits


def test_a_folder_that_not_all_ranks_see(tmp_path):
    program = partial(sharded_checkpoints.save_where_others_are_blind, folder=str(tmp_path))
    result = mpirun(program, 3)
    assert result.returncode != 0
    assert result.seconds < 10
    assert "is not visible on rank 1: a sharded checkpoint needs a folder that all nodes share" in result.stderr
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_kill_at_any_moment_of_saving_loses_nothing(mpi_job, tmp_path):
    rng, before = random.Random(1), 0
    for _ in range(KILLS):
        job = mpi_job(partial(sharded_checkpoints.save_for_ever, folder=str(tmp_path)), 2)
        ranks = job.wait_ready()
        time.sleep(rng.uniform(0, 0.1))
        os.kill(rng.choice(ranks), 9)
        assert job.finish(20).returncode != 0
        net = Sequential(Linear(300, 200), ReLU(), Linear(200, 100))
        with pytest.warns(UserWarning, match="number of ranks"):
            step = CheckpointManager(tmp_path).load(net).position.step
        assert step >= 2
        assert np.all(net.arena.theta == step)
        before = max(before, step)
    assert before > 2, "it never came further than to the beginning"
