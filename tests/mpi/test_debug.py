"""PYTAGI_DDP_DEBUG=1: ranks that come to different collectives hear of it, and so do those that reduce a NaN."""

import os
import pickle
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.distributed import CollectiveMismatchError, NonFiniteError, create_communicator, run_threads
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, Linear, OutputUpdater, ReLU, Sequential
from tests.mpi.ddp_networks import error_of
from tests.mpi.run import fails, mpirun
from tests.mpi.shared import on_ranks


def communicator_with(debug):
    """A communicator that has run one collective; made with the environment variable set."""
    with patch.dict(os.environ, PYTAGI_DDP_DEBUG=debug):
        comm = create_communicator("mpi", timeout=10)
    comm.all_reduce(np.ones(3))
    return comm


# What the last rank calls, what the others call, and how the error names the difference.
DIFFERENT = {
    "kind": (
        lambda comm: comm.barrier(),
        lambda comm: comm.all_reduce(np.ones(3)),
        "collective is 'all_reduce' on rank 0 and 'barrier'",
    ),
    "shape": (
        lambda comm: comm.all_reduce(np.ones(4)),
        lambda comm: comm.all_reduce(np.ones(3)),
        "shape is (3,) on rank 0 and (4,)",
    ),
    "dtype": (
        lambda comm: comm.all_reduce(np.ones(3, "f4")),
        lambda comm: comm.all_reduce(np.ones(3, "f8")),
        "dtype is 'float64' on rank 0 and 'float32'",
    ),
    "op": (
        lambda comm: comm.all_reduce(np.ones(3), "max"),
        lambda comm: comm.all_reduce(np.ones(3), "min"),
        "op is 'min' on rank 0 and 'max'",
    ),
    "root": (
        lambda comm: comm.broadcast(np.ones(3), 1),
        lambda comm: comm.broadcast(np.ones(3), 0),
        "root is 0 on rank 0 and 1",
    ),
    "started": (
        lambda comm: comm.start_broadcast(np.ones(4)).wait(),
        lambda comm: comm.start_broadcast(np.ones(3)).wait(),
        "shape is (3,) on rank 0 and (4,)",
    ),
    "kind of object": (
        lambda comm: comm.broadcast_object(1),
        lambda comm: comm.reduce(np.ones(1)),
        "is 'reduce' on rank 0 and 'broadcast_object'",
    ),
    "gathered": (
        lambda comm: comm.all_gather(np.ones(2), np.ones(2 * comm.world_size)),
        lambda comm: comm.all_gather(np.ones(1), np.ones(comm.world_size)),
        "shape is (1,) on rank 0 and (2,)",
    ),
}


def mismatch(_, case):
    comm = communicator_with("1")
    call = DIFFERENT[case][comm.rank < comm.world_size - 1]
    return error_of(lambda: call(comm), CollectiveMismatchError)


@on_ranks(mismatch, 2, 3, threads=False)
@pytest.mark.parametrize("case", DIFFERENT)
def test_a_mismatch_raises_on_every_rank(results, np, case):
    assert len(results) == np and len(set(results)) == 1, results
    assert results[0].startswith(f"collective #2 of this communicator differs between ranks 0 and {np - 1}")
    assert f"{DIFFERENT[case][2]} on rank {np - 1}" in results[0]


def said_and_goes_on(comm, call):
    text, after = error_of(call, NonFiniteError), np.ones(2)
    comm.all_reduce(after)
    return [text, after.tolist()]


def reduce_a_nan(_, op, started):
    comm = communicator_with("1")
    values = np.ones((4, 5), np.float32)
    if comm.rank == comm.world_size - 1:
        values[2, 1:3] = np.nan
    call = (lambda: comm.start_all_reduce(values, op).wait()) if started else (lambda: comm.all_reduce(values, op))
    return said_and_goes_on(comm, call)


@on_ranks(reduce_a_nan, 2, threads=False)
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("op", ["sum", "max", "mean"])
def test_a_nan_is_found_on_every_rank(results, op, started):
    for text, after in results:
        assert "2 of 20 values are not finite, the first is nan at flat index 11, in an array of" in text
        assert after == [2, 2]


PARTS = {
    "reduce_scatter": lambda comm, values: comm.reduce_scatter(values, np.empty(10, np.float32)),
    "reduce": lambda comm, values: comm.reduce(values, root=1),
}


def reduce_a_nan_to_one_rank(_, call):
    comm = communicator_with("1")
    values = np.ones(20, np.float32)
    values[11:13] = np.nan
    return said_and_goes_on(comm, lambda: PARTS[call](comm, values))


@on_ranks(reduce_a_nan_to_one_rank, 2, threads=False)
@pytest.mark.parametrize("call", PARTS)
def test_a_nan_that_one_rank_finds_is_raised_on_every_rank(results, call):
    for text, after in results:
        assert text.startswith(f"after {call}") and "on rank 1: 2 of " in text
        assert after == [2, 2]


@pytest.mark.parametrize("way", [{}, {"buckets": 2}, {"wire_dtype": "bfloat16"}, "fsdp", "merge"])
@pytest.mark.parametrize("debug", ["0", "1"])
def test_training_goes_on_behind_a_step_that_was_lost(way, debug):
    """With every rank in the same step, and with the same parameters."""

    def on_ranks():
        manual_seed(1)
        net = Sequential(Linear(3, 8), ReLU(), Linear(8, 1))
        if way == "fsdp":
            ddp = FSDPSequential(net)
        elif way == "merge":
            ddp = DDPSequential(net, merge="mean")
        else:
            ddp = DDPSequential(net, DDPConfig(**way))
        updater, rng, errors = OutputUpdater("cpu"), np.random.default_rng(ddp.rank), []
        for step in range(4):
            ddp(rng.normal(size=(4, 3)))
            updater.update(ddp.output_z_buffer, rng.normal(size=4), 0.1, ddp.input_delta_z_buffer)
            if step == 1 and ddp.rank == 1:
                ddp.input_delta_z_buffer.arrays[0][:] = 3e38  # sums overflow
            ddp.backward()
            try:
                ddp.step()
                errors.append("")
            except FloatingPointError as error:
                errors.append(type(error).__name__)
        return errors, [moments.tolist() for moments in ddp.predict(np.ones((2, 3)))]

    with patch.dict(os.environ, PYTAGI_DDP_DEBUG=debug):
        (one, moments), (other, same) = run_threads(on_ranks, 2)
    assert moments == same
    if way == "merge":  # a step of each rank alone
        assert [one, other] == [[""] * 4, ["", "FloatingPointError", "", ""]]
    else:
        kind = "NonFiniteError" if debug == "1" and way in ({}, {"buckets": 2}) else "FloatingPointError"
        assert one == other == ["", kind, "", ""]


def test_it_can_be_sent():
    error = pickle.loads(pickle.dumps(NonFiniteError("no number", 7)))
    assert (str(error), error.index) == ("no number", 7)


def without_it(_):
    comm = communicator_with("0")
    operations, names, results = comm._group.collectives, [], []
    start = operations.start
    with patch.object(operations, "start", lambda name, *rest: names.append(name) or start(name, *rest)):
        comm.all_reduce(np.full(3, np.nan))
        results.append([comm.debug, *names])
        comm.debug = True
        comm.all_reduce(np.ones(3))
        results.append([comm.debug, *names])
    return results


@on_ranks(without_it, 1, 2, threads=False)
def test_nothing_is_compared_without_it(results):
    with_it = ["all_reduce", *["debug of all_reduce"] * 2, "all_reduce"]
    for result in results:
        assert result == [[False, "all_reduce"], [True, *with_it]]


def different_sizes():
    comm = communicator_with("0")
    comm.all_reduce(np.ones(3 + comm.rank, np.float32))


@pytest.mark.mpi
def test_short_arrays_of_different_sizes_end_the_job_without_it_too():
    result = mpirun(different_sizes)
    assert result.returncode != 0
    assert "rank 1 adds 4 numbers, rank 0 3" in result.stderr or "rank 0 adds 3 numbers, rank 1 4" in result.stderr


@pytest.mark.mpi
def test_debug_on_some_ranks_only_is_named():
    """They waited for the time-out, which did not say why."""
    result = fails(debug_on_one, within=5)
    assert result.stderr.count("LaunchError: PYTAGI_DDP_DEBUG is set on rank 1, and not on rank 0") == 1


def debug_on_one():
    os.environ["PYTAGI_DDP_DEBUG"] = os.environ["PMI_RANK"]
    create_communicator("mpi").barrier()
