"""Every collective of every engine on 1, 2 and 3 ranks: values, in place, dtypes, sizes around the pieces, bits."""

import hashlib
import time
from functools import partial

import numpy as np

from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.distributed.engine import mpi
from pytagi_ddp.distributed.engine.combine import combined, tree_sum
from pytagi_ddp.distributed.engine.launcher import MPICH_LIKE, mpi_family
from tests.mpi.ddp_networks import error_of
from tests.mpi.shared import backend_of, check, on_ranks

# Floats in the pieces that an all-reduce is cut into.
LEAD, PIECE, WHOLE = mpi.LEAD_BYTES // 4, mpi.PIECE_BYTES // 4, mpi.WHOLE_BYTES // 4
FEW = 4  # ranks up to which each rank may draw the long arrays of all
COMBINE = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


def draws(comm):
    """A generator for the share of each rank, the same on all ranks."""
    return [np.random.default_rng(seed) for seed in range(comm.world_size)]


def floats_in_shared_memory(comm):
    return comm._group.shared_sum.floats if comm.backend == "mpi" and comm.world_size > 1 else 64


def all_reduce(comm):
    checks, shares, shared = {}, draws(comm), floats_in_shared_memory(comm)
    sizes = [0, 1, 7, 1023, shared, shared + 1, WHOLE, WHOLE + 1]
    sizes += [LEAD + PIECE - 1, LEAD + PIECE + 3] if comm.world_size <= FEW else []
    for dtype in (np.float32, np.float64, np.int64):
        for n in sizes:
            parts = [share.integers(-1000, 1000, n).astype(dtype) for share in shares]
            buffer = parts[comm.rank].copy()
            view = buffer[:]
            returned = comm.all_reduce(buffer)
            checks[f"{np.dtype(dtype).name} {n}"] = returned is None and np.array_equal(
                view, np.sum(parts, axis=0, dtype=dtype)
            )

    columns = 400_001 if comm.world_size <= FEW else 100_001
    parts = [share.normal(size=(3, columns)).astype(np.float32) for share in shares]
    digests = []
    for _ in range(2):
        buffer = parts[comm.rank].copy()
        comm.all_reduce(buffer)
        digests.append(hashlib.sha256(buffer).hexdigest())
    checks["matrix of rounded sums"] = np.abs(buffer - np.sum(parts, axis=0, dtype=np.float64)).max() < 3e-6
    checks["same bits on every rank and again"] = (
        len({bits for two in comm.all_gather_object(digests) for bits in two}) == 1
    )

    scalar = np.array(2.0 + comm.rank)
    comm.all_reduce(scalar)
    checks["0-d"] = scalar == sum(2.0 + r for r in range(comm.world_size))
    return checks


@on_ranks(all_reduce, "serial", 1, 2, 3)
def test_all_reduce(results):
    check(results, at_least=27 if len(results) <= FEW else 1)


def broadcast(comm):
    checks, rank, size = {}, comm.rank, comm.world_size
    for root in {0, size - 1}:
        for dtype, n in [("f4", 0), ("f4", 1), ("u1", 13), ("i8", 1023), ("f8", 400_001), ("?", 5)]:
            buffer = np.full(n, rank == root, dtype)
            comm.broadcast(buffer, root)
            checks[f"{dtype} {n} from {root}"] = (buffer == 1).all()
        got = comm.broadcast_object({"from": rank, "data": [None] * 1000}, root)
        checks[f"object from {root}"] = got == {"from": root, "data": [None] * 1000}
    return checks


@on_ranks(broadcast, "serial", "nccl", 1, 2, 3)
def test_broadcast(results):
    check(results, at_least=7)


def shared_memory(comm):
    checks, rank, size, floats = {}, comm.rank, comm.world_size, floats_in_shared_memory(comm)
    copies = [np.full(n, 1 + rank, np.float32) for n in (3, floats + 1, 5, 4, floats)]
    for handle in [comm.start_all_reduce(copy) for copy in copies]:
        handle.wait()
    checks["in flight together with MPI"] = all((copy == size * (size + 1) / 2).all() for copy in copies)
    job_shared, comm._group.shared_sum = comm._group.shared_sum, None
    without = draws(comm)[rank].normal(size=1000).astype(np.float32)
    with_it = without.copy()
    comm.all_reduce(without)
    comm._group.shared_sum = job_shared
    comm.all_reduce(with_it)
    checks["gives what MPI gives"] = np.allclose(without, with_it, rtol=1e-6, atol=1e-6)
    checks["is used"] = (job_shared is not None) == (size > 1)
    return checks


@on_ranks(shared_memory, 1, 2, 3, threads=False)
def test_sums_in_shared_memory(results):
    check(results, 3)


def gather_and_wait(comm):
    texts = comm.all_gather_object("x" * (300_000 if comm.world_size <= FEW else 10_000) * comm.rank)
    comm.barrier()
    time.sleep(0.2 * comm.rank)
    start = time.monotonic()
    comm.barrier()
    return [[len(text) for text in texts], time.monotonic() - start]


@on_ranks(gather_and_wait, "serial", "nccl", 1, 2, 3)
def test_objects_of_uneven_lengths_and_a_barrier_that_holds_the_first_for_the_last(results):
    size = len(results)
    length = 300_000 if size <= FEW else 10_000
    assert [lengths for lengths, _ in results] == [[length * r for r in range(size)]] * size
    assert size == 1 or results[0][1] > 0.15 * (size - 1)


def ops(comm):
    checks, shares, rank, size = {}, draws(comm), comm.rank, comm.world_size
    for dtype in (np.float32, np.float64, np.int64):
        for op, combine in COMBINE.items():
            if op == "mean" and dtype is np.int64:
                continue
            for n in (0, 7, LEAD + PIECE + 3 if op == "max" and size <= FEW else 1023):
                low, high = (1, 3) if op == "prod" else (-9, 10)  # powers of two are exact
                parts = [share.integers(low, high, n).astype(dtype) for share in shares]
                expected = combine(parts, axis=0).astype(dtype) if n else parts[0]
                buffer = parts[rank].copy()
                comm.all_reduce(buffer, op)
                name = f"{op} {np.dtype(dtype).name} {n}"
                checks[f"all_reduce {name}"] = np.array_equal(buffer, expected)
                digests = comm.all_gather_object(hashlib.sha256(buffer).hexdigest())
                checks[f"all_reduce {name} same bits"] = len(set(digests)) == 1
                for root in {0, size - 1}:
                    buffer = parts[rank].copy()
                    comm.reduce(buffer, op, root)
                    right = expected if rank == root else parts[rank]
                    checks[f"reduce {name} to {root}"] = np.array_equal(buffer, right)
    scalar = np.array(1.0 + rank, np.float32)
    for op in ("max", "mean"):
        value = scalar.copy()
        comm.all_reduce(value, op)
        checks[f"{op} 0-d"] = value == {"max": size, "mean": (1 + size) / 2}[op]
    return checks


@on_ranks(ops, "serial", "nccl", 1, 2, 3)
def test_ops(results):
    check(results, at_least=14 * 3 * 3 + 2)


def not_finite(comm):
    checks, rank, size = {}, comm.rank, comm.world_size
    for dtype in (np.float32, np.float64):
        values = np.array([[np.nan, 0.0, -np.inf, 2.0], [1.0, -0.0, np.inf, -3.0], [5.0, 0.0, -0.0, -np.nan]], dtype)
        values = values[np.arange(size) % 3]
        for op in ("max", "min", "sum"):
            name = f"{op} {np.dtype(dtype).name}"
            buffer = values[rank].copy()
            with np.errstate(invalid="ignore"):
                expected = COMBINE[op](values, axis=0)
            comm.all_reduce(buffer, op)
            checks[f"{name} NaN reaches all"] = np.array_equal(buffer, expected, equal_nan=True)
            checks[f"{name} NaN same bits"] = len(set(comm.all_gather_object(buffer.tobytes()))) == 1
            kept = values[rank].copy()
            comm.reduce(kept, op, size - 1)
            checks[f"{name} reduce keeps NaN elsewhere"] = rank == size - 1 or kept.tobytes() == values[rank].tobytes()
            block = np.empty(4, dtype)
            comm.reduce_scatter(np.tile(values[rank], size), block, op)
            checks[f"{name} block"] = np.array_equal(block, expected, equal_nan=True)
    return checks


@on_ranks(not_finite, "serial", "nccl", 1, 2, 3)
def test_values_that_are_not_finite(results):
    check(results, 24)


def exchange(comm):
    checks, rank, size = {}, comm.rank, comm.world_size
    kind = np.dtype([("a", "f2"), ("b", "i4")])
    for dtype, n in [
        ("f2", 5),
        ("i8", 0),
        ("?", 3),
        (kind, 4),
        ("f2", 2 * (LEAD + PIECE if size <= FEW else 0) + 7),
    ]:
        blocks = np.empty((size, size, n), dtype)
        blocks[:] = np.zeros(1, dtype) if isinstance(dtype, np.dtype) else np.ones(1).astype(dtype)
        if dtype is kind:
            blocks["b"] = np.arange(blocks.size).reshape(blocks.shape)
        elif dtype in ("f2", "i8"):
            blocks *= (np.arange(size * size).reshape(size, size, 1)).astype(dtype)
            blocks[..., -1:] += np.ones(1, dtype) / 2 if dtype == "f2" else 1
        receive = np.empty_like(blocks[0])
        before = comm.sent_bytes
        comm.all_to_all(blocks[rank], receive)
        right = receive.tobytes() == blocks[:, rank].tobytes()
        checks[f"all_to_all {dtype} {n}"] = right and comm.sent_bytes - before == (size - 1) * blocks[0, 0].nbytes
        receive = np.empty_like(blocks[0])
        comm.all_gather(blocks[rank, 0], receive)
        checks[f"all_gather {dtype} {n}"] = receive.tobytes() == blocks[:, 0].tobytes()
    return checks


@on_ranks(exchange, "serial", "nccl", 1, 2, 3)
def test_exchanges_of_blocks(results):
    check(results, 10)


def scatter(comm):
    """Every block of a reduction, apart and in place: on each rank what the reduction of all has there, to the bit."""
    checks, shares, rank, size = {}, draws(comm), comm.rank, comm.world_size
    piece = (LEAD + PIECE) // size
    cases = [(dtype, op, n) for dtype in (np.float32, np.float64, np.int64) for op in COMBINE for n in (0, 1, 301)]
    long = (piece - 1, piece + 2) if size <= FEW else ()
    cases += [(np.float32, "sum", n) for n in (WHOLE // size, WHOLE // size + 1, *long)]
    for dtype, op, n in cases:
        if (dtype, op) == (np.int64, "mean"):
            continue
        parts = [(100 * share.normal(size=size * n)).astype(dtype) for share in shares]
        with np.errstate(over="ignore"):
            expected = combined(parts, op).reshape(size, n)
        mine, receive = parts[rank].copy(), np.empty(n, dtype)
        comm.reduce_scatter(mine, receive, op)
        name = f"{op} {np.dtype(dtype).name} {n}"
        checks[name] = receive.tobytes() == expected[rank].tobytes() and np.array_equal(mine, parts[rank])
        own = mine.reshape(size, n)[rank]
        comm.start_reduce_scatter(mine, own, op).wait()
        expected_in_place = parts[rank].reshape(size, n).copy()
        expected_in_place[rank] = receive
        checks[f"{name} in place"] = mine.tobytes() == expected_in_place.tobytes()
        if op == "sum":
            comm.all_reduce(parts[rank], op)
            same_order = comm.backend != "mpi" or size == 2 or mpi_family(library(comm)) in MPICH_LIKE
            everywhere = parts[rank].reshape(size, n)[rank]
            checks[f"{name} of all_reduce"] = not same_order or everywhere.tobytes() == receive.tobytes()
            comm.all_gather(own, mine)
            checks[f"{name} gathered"] = mine.tobytes() == expected.tobytes()
    parts = [share.normal(size=1000).astype(np.float32) for share in shares]
    checks["the order matters"] = size < 3 or (tree_sum(parts) != sum(parts[::-1])).any()
    return checks


def library(comm):
    return comm._MPI.Get_library_version()


@on_ranks(scatter, "serial", 1, 2, 3, 4)
def test_blocks_of_reductions(results):
    check(results, at_least=2 * 44 + 2 * 11 + 1)


def scattered_and_gathered_in_flight(comm):
    rank, size = comm.rank, comm.world_size
    before = comm.reduce_calls, comm.reduce_bytes, comm.gather_bytes
    rows = [np.full((size, n), rank + 1.0, np.float32) for n in (5, 0, 600_000)]
    handles = [comm.start_reduce_scatter(row, row[rank]) for row in rows]
    handles += [comm.start_all_gather(row[rank], row) for row in rows]
    text = comm.broadcast_object(f"from {rank}", size - 1)
    for handle in handles if rank else handles[::-1]:
        handle.wait()
    counted = comm.reduce_calls - before[0], comm.reduce_bytes - before[1], comm.gather_bytes - before[2]
    sums = [(row == size * (size + 1) / 2).all() for row in rows]
    return [all(sums), text, *(int(number) for number in counted)]


@on_ranks(scattered_and_gathered_in_flight, "serial", 1, 2, 3)
def test_scattered_and_gathered_in_flight(results):
    size = len(results)
    assert results == [[True, f"from {size - 1}", 3, size * 2_400_020, size * 2_400_020]] * size


def exchange_alone(comm):
    blocks = np.arange(2 * LEAD + 2 * PIECE + 5, dtype=np.float32)
    channels, comm._group.channels = comm._group.channels, {}
    try:
        for exchange in (comm.all_gather, comm.all_to_all, comm.reduce_scatter):
            receive = np.zeros_like(blocks)
            exchange(blocks, receive)
            assert np.array_equal(receive, blocks)
    finally:
        comm._group.channels = channels


@on_ranks(exchange_alone, 1, threads=False)
def test_one_rank_exchanges_blocks_without_mpi(results):
    assert results == [None]  # some versions of MPICH give wrong numbers there


def place_and_counts(comm):
    before = comm.reduce_calls, comm.reduce_bytes, comm.reduce_seconds
    comm.all_reduce(np.zeros(1000, np.float32))
    counted = [comm.reduce_calls - before[0], comm.reduce_bytes - before[1]]
    place = [comm.rank, comm.local_rank, comm.local_world_size, comm.backend]
    return [counted, comm.reduce_seconds - before[2], place, comm.all_gather_object(comm.rank)]


@on_ranks(place_and_counts, "serial", "nccl", 1, 2, 3)
def test_counts_and_places(results, np):
    size = len(results)
    for rank, (counted, seconds, place, everyone) in enumerate(results):
        assert counted == [1, 4000]
        assert 0 < seconds < 5
        assert place == [rank, rank, size, backend_of(np)]
        assert everyone == list(range(size))


BAD_ARGUMENTS = {  # by what is said about them
    "not on list": lambda comm: comm.all_reduce([1.0]),
    "float32, float64, int64, not float16": lambda comm: comm.all_reduce(np.zeros(4, np.float16)),
    "(4,) is not contiguous": lambda comm: comm.all_reduce(np.zeros((4, 4), np.float32)[:, 1]),
    "unknown op 'median'; known are 'sum', 'mean'": lambda comm: comm.all_reduce(np.zeros(2), "median"),
    "the mean of int64 is not int64": lambda comm: comm.all_reduce(np.zeros(2, np.int64), "mean"),
    "read-only": lambda comm: comm.broadcast(np.frombuffer(b"12", np.uint8)),
    "array of object": lambda comm: comm.broadcast(np.array([None])),
    "rank from 0 to": lambda comm: comm.broadcast(np.zeros(2), comm.world_size),
    "got -1": lambda comm: comm.broadcast_object(2, -1),
    "got -2": lambda comm: comm.reduce(np.zeros(2), root=-2),
    "2 values to send": lambda comm: comm.all_gather(np.zeros(2), np.zeros(2 * comm.world_size + 1)),
    "sends float64 and receives float32": lambda comm: comm.all_gather(np.zeros(2), np.zeros(2, np.float32)),
    "sends float64 and receives int64": lambda comm: comm.all_to_all(np.zeros(2), np.zeros(2, int)),
    "in host memory, of numbers, not list": lambda comm: comm.all_to_all([1], np.zeros(1)),
    "values to send": lambda comm: comm.all_to_all(np.zeros(2 * comm.world_size), np.zeros(comm.world_size)),
    "apart from send": lambda comm: comm.all_to_all(scalars := np.zeros(comm.world_size), scalars),
    "NumPy or CuPy arrays of numbers, not list": lambda comm: comm.reduce_scatter([1.0], np.zeros(1)),
    "has strides": lambda comm: comm.reduce_scatter(np.zeros((4 * comm.world_size, 2))[:, 0], np.zeros(4)),
    "int64, not int8": lambda comm: comm.reduce_scatter(np.zeros(comm.world_size, "i1"), np.zeros(1, "i1")),
    "unknown op 'range'": lambda comm: comm.reduce_scatter(np.zeros(comm.world_size), np.zeros(1), "range"),
    "do not fit into 3 values": lambda comm: comm.reduce_scatter(np.zeros(2 * comm.world_size), np.zeros(3)),
    "of the larger of them": lambda comm: comm.reduce_scatter(
        (numbers := np.zeros(2 * comm.world_size + 1))[:-1], numbers[2 * comm.rank + 1 : 2 * comm.rank + 3]
    ),
    "above 0, got -1": lambda comm: comm.barrier(timeout=-1),
}


def bad_arguments(comm):
    return {message: error_of(partial(call, comm), TypeError, ValueError) for message, call in BAD_ARGUMENTS.items()}


@on_ranks(bad_arguments, "serial", "nccl", 1, 2, 3)
def test_bad_arguments_are_refused(results):
    for result in results:
        assert result.keys() == BAD_ARGUMENTS.keys()
        assert [(message, said) for message, said in result.items() if message not in said] == []


def auto(comm):
    automatic = create_communicator()
    rank, size = automatic.rank, automatic.world_size
    right = create_communicator(rank=rank, world_size=size)
    refused = [
        error_of(lambda asked=asked: create_communicator(**asked), ValueError)
        for asked in ({"rank": rank + 1}, {"world_size": size + 1})
    ]
    return [right.backend, rank, size, automatic.all_gather_object(rank), refused]


@on_ranks(auto, 2, 3)
def test_auto_finds_the_ranks_and_checks_rank_and_world_size(results, np):
    size = len(results)
    for rank, (backend, *place, everyone, refused) in enumerate(results):
        assert backend == backend_of(np) and place == [rank, size]
        for text, value in zip(refused, (rank + 1, size + 1), strict=True):
            assert f"={value} " in text and f"rank {rank} of {size}" in text
        assert everyone == list(range(size))


def seconds_of_waiting(comm):
    comm.barrier()
    if comm.rank == 0:
        time.sleep(1.5)
    busy = time.process_time()
    comm.barrier()
    return time.process_time() - busy


@on_ranks(seconds_of_waiting, 2)
def test_waiting_leaves_the_core_to_others(results):
    assert results[1] < 0.3  # of 1.5 s; spinning would take all of it
