"""PYTAGI_DDP_DEBUG=1: ranks that come to different collectives hear of it, and so do those that reduce a NaN."""

import pytest

from tests.mpi.run import mpirun

pytestmark = pytest.mark.mpi

START = """
import sys
import numpy as np
from pytagi_ddp.distributed import *
comm = create_communicator("mpi", timeout=10)
rank, size = comm.rank, comm.world_size
last = rank == size - 1
comm.all_reduce(np.ones(3))
"""
CATCH = """
try:
    {}
except (CollectiveMismatchError, NonFiniteError) as error:
    sys.stdout.write(f"{{type(error).__name__}}: {{error}}\\n")
"""


@pytest.mark.parametrize("np", [2, 3])
@pytest.mark.parametrize(
    ("call", "difference"),
    [
        (
            "comm.barrier() if last else comm.all_reduce(np.ones(3))",
            "collective is 'all_reduce' on rank 0 and 'barrier'",
        ),
        ("comm.all_reduce(np.ones(3 + last))", "shape is (3,) on rank 0 and (4,)"),
        ("comm.all_reduce(np.ones(3, 'f4' if last else 'f8'))", "dtype is 'float64' on rank 0 and 'float32'"),
        ("comm.all_reduce(np.ones(3), 'max' if last else 'min')", "op is 'min' on rank 0 and 'max'"),
        ("comm.broadcast(np.ones(3), int(last))", "root is 0 on rank 0 and 1"),
        ("comm.start_broadcast(np.ones(3 + last)).wait()", "shape is (3,) on rank 0 and (4,)"),
        (
            "comm.broadcast_object(1) if last else comm.reduce(np.ones(1))",
            "is 'reduce' on rank 0 and 'broadcast_object'",
        ),
        ("comm.all_gather(np.ones(1 + last), np.ones(size * (1 + last)))", "shape is (1,) on rank 0 and (2,)"),
    ],
)
def test_a_mismatch_raises_on_every_rank(call, difference, np):
    result = mpirun(START + CATCH.format(call), np=np, env={"PYTAGI_DDP_DEBUG": "1"})
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == np and len(set(lines)) == 1, result.stdout
    assert lines[0].startswith(
        f"CollectiveMismatchError: collective #2 of this communicator differs between ranks 0 and {np - 1}"
    )
    assert difference + f" on rank {np - 1}" in lines[0]


@pytest.mark.parametrize("start", ["comm.all_reduce(values, {})", "comm.start_all_reduce(values, {}).wait()"])
@pytest.mark.parametrize("op", ["'sum'", "'max'", "'mean'"])
def test_a_nan_is_found_on_every_rank(start, op):
    code = "values = np.ones((4, 5), np.float32)\nif last: values[2, 1:3] = np.nan" + CATCH.format(start.format(op))
    code += "comm.all_reduce(np.ones(2))\nprint('goes on')"
    result = mpirun(START + code, np=2, env={"PYTAGI_DDP_DEBUG": "1"})
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("2 of 20 values are not finite, the first is nan at flat index 11, in an array of") == 2
    assert result.stdout.count("goes on") == 2


@pytest.mark.parametrize("np", [1, 2])
def test_nothing_is_compared_without_it(np):
    code = """
names = []
start = comm._job.operations.start
comm._job.operations.start = lambda name, *rest: names.append(name) or start(name, *rest)
comm.all_reduce(np.full(3, np.nan))
assert not comm.debug and names == ["all_reduce"], names
comm.debug = True
comm.all_reduce(np.ones(3))
assert names == ["all_reduce", *["debug of all_reduce"] * 2, "all_reduce"], names
"""
    result = mpirun(START + code, np=np, env={"PYTAGI_DDP_DEBUG": "0"})
    assert (result.returncode, result.stderr) == (0, "")


def test_short_arrays_of_different_sizes_raise_without_it_too():
    code = "comm.all_reduce(np.ones(3 + last, np.float32))"
    result = mpirun(START + code, np=2, env={"PYTAGI_DDP_DEBUG": "0"})
    assert result.returncode != 0
    assert "rank 1 adds 4 numbers, rank 0 3" in result.stderr or "rank 0 adds 3 numbers, rank 1 4" in result.stderr
