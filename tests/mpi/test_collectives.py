"""Every collective at 1, 2 and 3 ranks: values, in place, dtypes, sizes around the pieces, same bits everywhere."""

import json

import pytest

from tests.mpi.run import mpirun

pytestmark = pytest.mark.mpi

RANKS = """
import hashlib, json
import numpy as np
from pytagi_ddp.distributed.engine import mpi
from pytagi_ddp.distributed.communicator import create_communicator

comm = create_communicator("mpi")
rank, size = comm.rank, comm.world_size
shares = [np.random.default_rng(seed) for seed in range(size)]
checks = {}

LEAD, PIECE = mpi.LEAD_BYTES // 4, mpi.PIECE_BYTES // 4
SHARED = comm._job.shared_sum.floats if size > 1 else 64
WHOLE = mpi.WHOLE_BYTES // 4
SIZES = [0, 1, 7, 1023, SHARED, SHARED + 1, WHOLE, WHOLE + 1, LEAD + PIECE - 1, LEAD + PIECE + 3]
for dtype in (np.float32, np.float64, np.int64):
    for n in SIZES:
        parts = [share.integers(-1000, 1000, n).astype(dtype) for share in shares]
        buffer, view = parts[rank].copy(), None
        view = buffer[:]
        result = comm.all_reduce(buffer)
        checks[f"all_reduce {np.dtype(dtype).name} {n}"] = bool(
            result is None and np.array_equal(view, np.sum(parts, axis=0, dtype=dtype)))

parts = [share.normal(size=(3, 400_001)).astype(np.float32) for share in shares]
digests = []
for _ in range(2):
    buffer = parts[rank].copy()
    comm.all_reduce(buffer)
    digests.append(hashlib.sha256(buffer).hexdigest())
error = np.abs(buffer - np.sum(parts, axis=0, dtype=np.float64)).max()
checks["all_reduce matrix of rounded sums"] = bool(error < 3e-6)
everyone = comm.all_gather_object(digests)
checks["all_reduce same bits on every rank and again"] = len({d for pair in everyone for d in pair}) == 1

for dtype, n in [("f4", 0), ("f4", 1), ("u1", 13), ("i8", 1023), ("f8", 400_001), ("?", 5)]:
    for root in {0, size - 1}:
        buffer = np.full(n, rank == root, dtype)
        comm.broadcast(buffer, root)
        checks[f"broadcast {dtype} {n} from {root}"] = bool((buffer == 1).all())

copies = [np.full(n, 1 + rank, np.float32) for n in (3, SHARED + 1, 5, 4, SHARED)]
for handle in [comm.start_all_reduce(copy) for copy in copies]:
    handle.wait()
checks["shared memory and MPI in flight together"] = all((copy == size * (size + 1) / 2).all() for copy in copies)
job_shared, comm._job.shared_sum = comm._job.shared_sum, None
parts = [share.normal(size=1000).astype(np.float32) for share in shares]
without, with_it = parts[rank].copy(), parts[rank].copy()
comm.all_reduce(without)
comm._job.shared_sum = job_shared
comm.all_reduce(with_it)
checks["shared memory gives what MPI gives"] = bool(np.allclose(without, with_it, rtol=1e-6, atol=1e-6))
checks["shared memory is used"] = (job_shared is not None) == (size > 1)

scalar = np.array(2.0 + rank)
comm.all_reduce(scalar)
checks["all_reduce 0-d"] = scalar == sum(2.0 + r for r in range(size))

for root in {0, size - 1}:
    got = comm.broadcast_object({"from": rank, "data": [None] * 1000}, root)
    checks[f"broadcast_object from {root}"] = got == {"from": root, "data": [None] * 1000}
got = comm.all_gather_object("x" * 300_000 * rank)
checks["all_gather_object of uneven lengths"] = [len(text) for text in got] == [300_000 * r for r in range(size)]

comm.barrier()
import time
time.sleep(0.2 * rank)
start = time.monotonic()
comm.barrier()
waited = comm.all_gather_object(time.monotonic() - start)
checks["barrier holds the first for the last"] = size == 1 or waited[0] > 0.15 * (size - 1)

COMBINE = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
for dtype in (np.float32, np.float64, np.int64):
    for op, combine in COMBINE.items():
        if op == "mean" and dtype is np.int64:
            continue
        for n in (0, 7, LEAD + PIECE + 3 if op == "max" else 1023):
            parts = [share.integers(-9, 10, n).astype(dtype) for share in shares]
            expected = combine(parts, axis=0).astype(dtype) if n else parts[0]
            buffer = parts[rank].copy()
            comm.all_reduce(buffer, op)
            name = f"{op} {np.dtype(dtype).name} {n}"
            checks[f"all_reduce {name}"] = bool(np.array_equal(buffer, expected))
            digests = comm.all_gather_object(hashlib.sha256(buffer).hexdigest())
            checks[f"all_reduce {name} same bits"] = len(set(digests)) == 1
            for root in {0, size - 1}:
                buffer = parts[rank].copy()
                comm.reduce(buffer, op, root)
                right = expected if rank == root else parts[rank]
                checks[f"reduce {name} to {root}"] = bool(np.array_equal(buffer, right))

for dtype in (np.float32, np.float64):
    values = np.array([[np.nan, 0.0, -np.inf, 2.0], [1.0, -0.0, np.inf, -3.0], [5.0, 0.0, -0.0, -np.nan]], dtype)
    for op, combine in (("max", np.max), ("min", np.min), ("sum", np.sum)):
        buffer = values[rank].copy()
        with np.errstate(invalid="ignore"):
            expected = combine(values[:size], axis=0)
        comm.all_reduce(buffer, op)
        checks[f"{op} {np.dtype(dtype).name} NaN reaches all"] = bool(np.array_equal(buffer, expected, equal_nan=True))
        bits = comm.all_gather_object(buffer.tobytes())
        checks[f"{op} {np.dtype(dtype).name} NaN same bits"] = len(set(bits)) == 1
        kept = values[rank].copy()
        comm.reduce(kept, op, size - 1)
        checks[f"{op} reduce keeps NaN elsewhere"] = rank == size - 1 or kept.tobytes() == values[rank].tobytes()
scalar = np.array(1.0 + rank, np.float32)
for op in ("max", "mean"):
    value = scalar.copy()
    comm.all_reduce(value, op)
    checks[f"{op} 0-d"] = value == {"max": size, "mean": (1 + size) / 2}[op]

kind = np.dtype([("a", "f2"), ("b", "i4")])
for dtype, n in [("f2", 5), ("i8", 0), ("?", 3), (kind, 4), ("f2", 2 * LEAD + 2 * PIECE + 5)]:
    blocks = np.empty((size, size, n), dtype)
    blocks[:] = np.zeros(1, dtype) if isinstance(dtype, np.dtype) else np.ones(1).astype(dtype)
    if dtype is kind:
        blocks["b"] = np.arange(blocks.size).reshape(blocks.shape)
    elif dtype in ("f2", "i8"):
        blocks *= (np.arange(size * size).reshape(size, size, 1)).astype(dtype)
        blocks[..., -1:] += np.ones(1, dtype) / 2 if dtype == "f2" else 1
    receive = np.empty_like(blocks[0])
    comm.all_to_all(blocks[rank], receive)
    checks[f"all_to_all {dtype} {n}"] = receive.tobytes() == blocks[:, rank].tobytes()
    receive = np.empty_like(blocks[0])
    comm.all_gather(blocks[rank, 0], receive)
    checks[f"all_gather {dtype} {n}"] = receive.tobytes() == blocks[:, 0].tobytes()

before = comm.reduce_calls, comm.reduce_bytes, comm.reduce_seconds
comm.all_reduce(np.zeros(1000, np.float32))
checks["counts calls and bytes"] = (comm.reduce_calls - before[0], comm.reduce_bytes - before[1]) == (1, 4000)
checks["counts seconds"] = 0 < comm.reduce_seconds - before[2] < 5
checks["place"] = (rank, comm.local_rank, comm.local_world_size) == (rank, rank, size) and comm.backend == "mpi"
checks["ranks are numbered"] = comm.all_gather_object(rank) == list(range(size))

for name, call in {
    "strided": lambda: comm.all_reduce(np.zeros((4, 4), np.float32)[:, 1]),
    "float16": lambda: comm.all_reduce(np.zeros(4, np.float16)),
    "list": lambda: comm.broadcast([1, 2]),
    "root": lambda: comm.broadcast(np.zeros(1), size),
    "root of a reduce": lambda: comm.reduce(np.zeros(1), root=-1),
    "mean of integers": lambda: comm.all_reduce(np.zeros(4, np.int64), "mean"),
    "unknown op": lambda: comm.all_reduce(np.zeros(4), "median"),
    "uneven blocks": lambda: comm.all_to_all(np.zeros(2 * size), np.zeros(size)),
    "blocks of another size": lambda: comm.all_gather(np.zeros(2), np.zeros(2 * size + 1)),
    "other dtype": lambda: comm.all_gather(np.zeros(2), np.zeros(2 * size, np.float32)),
    "one memory": lambda: comm.all_to_all(scalars := np.zeros(size), scalars),
}.items():
    try:
        call()
        checks[f"refuses {name}"] = False
    except (TypeError, ValueError):
        checks[f"refuses {name}"] = True

failed = comm.all_gather_object([name for name, passed in checks.items() if not passed])
comm.close()
if rank == 0:
    print(json.dumps({"failed": failed, "count": len(checks)}))
"""


@pytest.mark.parametrize("np", [1, 2, 3])
def test_collectives(np):
    result = mpirun(RANKS, np=np)
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report["failed"] == [[]] * np
    assert report["count"] >= 160


@pytest.mark.parametrize("np", [2, 3])
def test_auto_takes_mpi_and_checks_rank_and_world_size(np):
    code = """
        from pytagi_ddp.distributed.communicator import create_communicator
        comm = create_communicator()
        rank, size = comm.rank, comm.world_size
        assert create_communicator(rank=rank, world_size=size).backend == "mpi"
        for asked in ({"rank": rank + 1}, {"world_size": size + 1}):
            try:
                create_communicator(**asked)
            except ValueError as error:
                (value,) = asked.values()
                assert f"={value} " in str(error) and f"rank {rank} of {size}" in str(error), error
            else:
                raise AssertionError("accepted", asked)
        assert comm.all_gather_object(rank) == list(range(size))
        print(f"ok {rank}\\n", end="")
    """
    result = mpirun(code, np=np)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == sorted(["ok"] * np + [str(rank) for rank in range(np)])


def test_waiting_leaves_the_core_to_others():
    code = """
        import time
        from pytagi_ddp.distributed.communicator import create_communicator
        comm = create_communicator()
        comm.barrier()
        if comm.rank == 0:
            time.sleep(1.5)
        busy = time.process_time()
        comm.barrier()
        if comm.rank == 1:
            print(time.process_time() - busy)
    """
    result = mpirun(code, np=2)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 0.3  # of 1.5 s; spinning would take all of it
