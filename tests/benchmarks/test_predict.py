"""The model of steps on many ranks: by hand, beside measured steps, and machine files that are wrong."""

import json

import numpy as np
import pytest

from benchmarks import predict
from benchmarks.predict import Job, Link, Machine
from benchmarks.quality.done import read
from pytagi_ddp import nn
from pytagi_ddp.distributed import initialize, run_threads

MACHINE = Machine("m", 4, 1e9, 0.0, 1.0, 0.0, 1e9, Link(0.0, 1e9), Link(0.0, 1e8))
JOB = Job(16, 1e8, 10**6, 8 * 10**6, 8 * 10**6, 3, 4, 0.4, 1000)


def test_times_by_hand():
    """8 ranks on 2 nodes: 3/4 of the bytes within a node, 1/2 between nodes, there and back."""
    between = 8e6 * (3 / 4 / 1e9 + 1 / 2 / 1e8)
    found = {way: predict.step(MACHINE, JOB, way, 8) for way in predict.WAYS}
    assert found["DDP"].seconds == pytest.approx(0.1 + 2 * between)
    assert found["DDP"].nbytes == pytest.approx(2 * 8e6 * 7 / 8)
    assert found["DDP, bfloat16"].seconds == pytest.approx(0.1 + between + 8e6 / 1e9)
    assert found["FSDP"].seconds == pytest.approx(0.1 + 2.5 * between)
    assert found["FSDP"].nbytes == pytest.approx(20e6 * 7 / 8)
    boundary = 8 * 1000 * 16 * 4
    replicas = 2 * 0.4 * 8e6 * (1 / 2 / 1e9)
    assert found["pipeline"].seconds == pytest.approx((0.1 + 2 * boundary / 1e8) * 19 / 16 + replicas)
    merged = predict.step(MACHINE, JOB, "DDP", 8, every=10)
    assert merged.seconds == pytest.approx(0.1 + 0.2 * between) and merged.nbytes == pytest.approx(1.4e6)
    waits = predict.step(MACHINE._replace(wait=0.01), JOB, "FSDP", 8)
    assert waits.seconds - found["FSDP"].seconds == pytest.approx(9 * 0.01 * 0.1)


def test_bytes_are_those_that_ranks_send():
    """The bytes of the model, from the memory of a network, beside the counters of a communicator."""
    make = lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm2d(16), nn.Linear(16, 4))  # noqa: E731
    net = make()
    arena = net.arena
    job = Job(4, 1.0, net.num_parameters, arena.theta.nbytes, arena.buffer.nbytes, 1, 2, 1.0, 1)

    def program():
        ddp = nn.DDPSequential(make(), average=False)
        before = ddp.communicator.reduce_bytes
        ddp(np.ones((4, 8), np.float32))
        ddp.model.input_delta_z_buffer.reset_zeros()
        ddp.backward()
        ddp.step()
        return initialize().world_size, ddp.communicator.reduce_bytes - before

    for ranks, reduced in run_threads(program, 2):
        assert predict.step(MACHINE, job, "DDP", ranks).nbytes == 2 * reduced * (ranks - 1) / ranks


def test_measured_steps_are_predicted():
    table, worst = predict.check(read(predict.FOLDER / "results" / "steps.jsonl"))
    assert worst < 0.2 and table.count("Gbit/s") == 20


@pytest.mark.parametrize("change", ["missing", "unknown", "text", "negative", "share", "deep", "list", "broken"])
def test_a_bad_machine_file_is_named_with_its_key(change, tmp_path):
    path = tmp_path / "machine.json"
    values = json.loads((predict.FOLDER / "machines" / "gpu.json").read_text())
    path.write_text(json.dumps(values))
    assert predict.load(path).node == Link(5e-6, 3e11)
    edits = {
        "missing": ({"flops": None}, "look at flops"),
        "unknown": ({"cores": 3}, "look at cores"),
        "text": ({"wait": "1"}, "wait must be a number, got '1'"),
        "negative": ({"flops": -1}, r"flops must be in \(0, inf\), got -1"),
        "share": ({"ranks_per_node": 2.5}, "ranks_per_node must be an integer, got 2.5"),
        "deep": ({"node": {"latency": 1, "bandwidth": 0}}, r"node.bandwidth must be in \(0, inf\), got 0"),
        "list": ({"network": [1, 2]}, "network has the keys latency, bandwidth; look at list"),
        "broken": ({}, "is not JSON"),
    }
    edit, message = edits[change]
    values = {key: value for key, value in (values | edit).items() if value is not None}
    path.write_text("{" if change == "broken" else json.dumps(values))
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        predict.load(path)
    assert str(path) in str(raised.value)
    with pytest.raises(SystemExit, match="error: "):
        predict.main([str(path)])
