"""Groups of ranks: who is in which, their collectives beside each other, and ranks that leave one."""

import re
import sys
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp.distributed import (
    RankLeftError,
    all_reduce,
    create_communicator,
    get_distributed_backend,
    init_device_mesh,
    initialize,
    run_threads,
)
from pytagi_ddp.distributed.engine.combine import tree_sum
from pytagi_ddp.likelihoods import Gaussian
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential, Linear, PipelineSequential, Sequential
from pytagi_ddp.training import Trainer
from tests.mpi.ddp_networks import error_of
from tests.mpi.run import mpirun
from tests.mpi.shared import on_ranks


def places(comm):
    """Of this rank in groups: by parity in reverse order, of all but rank 0, of itself, and in a group of a group."""
    rank, size = comm.rank, comm.world_size
    by_parity = comm.split(rank % 2, -rank)
    without_first = comm.split(None if rank == 0 else 7)
    alone = comm.split(rank)
    found = []
    for group in (by_parity, without_first, alone):
        if group is None:
            found.append(None)
            continue
        assert (group.backend, group.timeout) == (comm.backend, comm.timeout)
        assert (group.local_rank, group.local_world_size) == (group.rank, group.world_size)
        found.append([group.rank, group.all_gather_object(rank)])
    of_group = by_parity.split(by_parity.rank // 2)
    found.append(of_group.all_gather_object(rank))
    if without_first is not None:
        without_first.close()
        assert "closed" in error_of(without_first.barrier, RuntimeError)
    row = np.full(1000, rank, np.float32)
    by_parity.all_reduce(row)
    comm.barrier()
    mine = [r for r in range(size) if r % 2 == rank % 2]
    return [*found, (row == sum(mine)).all(), of_group.split(None) is None]


@on_ranks(places, "serial", 1, 2, 3, 4)
def test_who_is_where(results):
    size = len(results)
    for rank, (by_parity, without_first, alone, of_group, summed, nobody) in enumerate(results):
        same = [r for r in reversed(range(size)) if r % 2 == rank % 2]
        others = [*range(1, size)]
        assert by_parity == [same.index(rank), same]
        assert without_first == ([rank - 1, others] if rank else None)
        assert alone == [0, [rank]]
        place = same.index(rank) // 2 * 2
        assert of_group == same[place : place + 2]
        assert summed and nobody


def of_mpi4py(comm):
    """Each communicator of mpi4py stands for its ranks, wherever a communicator is an argument."""
    from mpi4py import MPI

    world, found = MPI.COMM_WORLD, {}
    made = {"dup": world.Dup(), "split": world.Split(comm.rank % 2, -comm.rank)}
    made["grid"] = made["split"].Create_cart([made["split"].size])
    for name, ranks in ({"world": world, "self": MPI.COMM_SELF} | made).items():
        ddp = DDPSequential(Sequential(Linear(2, 8), Linear(8, 1)), communicator=ranks)
        assert (ddp.rank, ddp.world_size, ddp.communicator.backend) == (ranks.rank, ranks.size, "mpi")
        fsdp = FSDPSequential(Sequential(Linear(2, 1)), communicator=ranks)
        mesh = init_device_mesh((-1,), ("pipe",), ranks)
        pipeline = PipelineSequential(Sequential(*(Linear(2, 2) for _ in range(max(4, comm.world_size)))), mesh=mesh)
        assert fsdp.communicator is pipeline.communicator is ddp.communicator is get_distributed_backend(ranks)
        row = np.full(1000, comm.rank + 1, np.float32)
        all_reduce(ranks, row)
        assert (row == ranks.allreduce(comm.rank + 1)).all()
        Trainer(ddp, Gaussian(0.1), epochs=1, batch_size=4).fit((np.eye(8, 2), np.arange(8.0)))
        assert len(set(ranks.allgather(ddp.model.arena.theta.tobytes()))) == 1
        found[name] = [ddp.communicator.local_rank, ddp.communicator.all_gather_object(comm.rank)]
        mesh.close()
    with pytest.raises(ValueError, match="DDPConfig asks for backend='nccl', the communicator has 'mpi'"):
        DDPSequential(Sequential(Linear(2, 1)), DDPConfig(backend="nccl"), communicator=world)
    split = get_distributed_backend(made["split"])
    split.close()
    assert get_distributed_backend(made["split"]) is not split  # which is closed
    for ranks in made.values():
        ranks.Free()
    for ranks in (*made.values(), MPI.COMM_NULL):
        with pytest.raises(ValueError, match="this communicator of mpi4py is null: it was freed"):
            DDPSequential(Sequential(Linear(2, 1)), communicator=ranks)
    comm.barrier()
    return found


@on_ranks(of_mpi4py, 1, 2, 3, threads=False)
def test_communicators_of_mpi4py(results):
    size = len(results)
    for rank, found in enumerate(results):
        same = [r for r in reversed(range(size)) if r % 2 == rank % 2]
        assert found["world"] == found["dup"] == [rank, [*range(size)]]
        assert found["split"] == found["grid"] == [same.index(rank), same]
        assert found["self"] == [0, [rank]]


def all_verbs(comm):
    """Every collective within the ranks but the first, and the same sums as those of as many ranks alone."""
    group = comm.split(int(comm.rank > 0))
    rank, size, checks = group.rank, group.world_size, {}
    shares = [np.random.default_rng(r).normal(size=(size, 2000)).astype(np.float32) for r in range(size)]
    total = tree_sum(shares)
    for n in (2000, 10):
        mine = shares[rank][:, :n].copy()
        group.all_reduce(mine)
        checks[f"all_reduce {n}"] = mine.tobytes() == total[:, :n].tobytes()
    receive = np.empty(2000, np.float32)
    group.reduce_scatter(shares[rank], receive)
    checks["reduce_scatter"] = receive.tobytes() == total[rank].tobytes()
    everyone = np.empty_like(total)
    group.all_gather(receive, everyone)
    checks["all_gather"] = everyone.tobytes() == total.tobytes()
    blocks = np.arange(size, dtype=np.int64) + 10 * rank
    came = np.empty_like(blocks)
    group.all_to_all(blocks, came)
    checks["all_to_all"] = came.tolist() == [10 * other + rank for other in range(size)]
    at_root = np.array([rank + 1.0])
    group.reduce(at_root, "max", size - 1)
    checks["reduce"] = at_root[0] == (size if rank == size - 1 else rank + 1)
    checks["object"] = group.broadcast_object(f"from {rank}", size - 1) == f"from {size - 1}"
    if size > 1:
        around = np.array([rank])
        handle = group.start_send(np.array([rank]), (rank + 1) % size)
        group.receive(around, (rank - 1) % size)
        handle.wait()
        checks["message"] = around[0] == (rank - 1) % size
    comm.barrier()
    return [name for name, right in checks.items() if not right]


@on_ranks(all_verbs, "serial", 1, 2, 3, 4)
def test_all_verbs_in_a_group(results):
    assert results == [[]] * len(results)


def beside_each_other(comm):
    """Handles of three groups, waited for in another order on each rank; long ones, which somebody has to move."""
    rank, size = comm.rank, comm.world_size
    groups = [comm, comm.split(0, -rank), comm.split(rank // 2)]
    arrays, handles = [], []
    for turn in range(2):
        for k in range(3):
            array = np.full(400_000 if turn else 7, 1.0 + rank + k)
            arrays.append((array, groups[k], k))
            handles.append(groups[k].start_all_reduce(array))
    neighbour = rank ^ 1
    if neighbour < size:
        came = np.empty(300_000)
        handles += [comm.start_send(np.full(300_000, rank), neighbour), comm.start_receive(came, neighbour)]
    own_order = np.random.default_rng(rank).permutation(len(handles))
    for k in own_order:
        if k % 2:
            handles[k].wait()
        while not handles[k].test():
            pass
    members = [range(size), range(size), [r for r in range(size) if r // 2 == rank // 2]]
    return all((array == sum(1.0 + r + k for r in members[k])).all() for array, _, k in arrays)


@on_ranks(beside_each_other, 2, 3, 4)
def test_handles_of_several_groups_are_waited_for_in_any_order(results):
    assert results == [True] * len(results)


def many_groups(comm):
    """More splits than MPI has communicators for, whose groups are closed at other times on each rank."""
    earlier, total = [], np.ones(1)
    for k in range(220 if comm.world_size == 2 else 20):
        group = comm.split(k % 2)
        group.all_reduce(total)
        earlier.append(group)
        if len(earlier) > comm.rank:
            earlier.pop(0).close()
    group = comm.split(0)
    array = np.full(400_000, 1.0)
    handle = group.start_all_reduce(array)
    group.close()  # amid a collective, which comes to its end
    handle.wait()
    comm.barrier()
    return array[-1] == comm.world_size


@on_ranks(many_groups, 2, 3)
def test_groups_that_are_closed_leave_room_for_others(results):
    assert results == [True] * len(results)


def without_communicators(comm):
    """What MPI says when it has none left says nothing; this is what becomes of it."""
    from mpi4py import MPI

    from pytagi_ddp.distributed.engine.mpi_group import MPIGroup

    with patch.object(MPIGroup, "duplicate", side_effect=MPI.Exception(MPI.ERR_OTHER)):
        return error_of(lambda: comm.split(0), RuntimeError)


@on_ranks(without_communicators, 2, threads=False)
def test_mpi_has_no_communicators_left(results):
    assert all("MPI makes no more communicators; each group takes 10" in said for said in results)


def not_an_integer(comm):
    return [error_of(lambda color=color: comm.split(*color), TypeError) for color in (("a",), (1.5,), (0, "b"))]


@on_ranks(not_an_integer, "serial", 2)
def test_colors_and_keys_are_integers(results):
    assert all("interpreted as an integer" in said for said in results[0])


def mesh_of(comm):
    """Two rows (or one) of ranks, the ranks of each line of the mesh, and what a sum over one of them is."""
    rank, size = comm.rank, comm.world_size
    rows = 1 + (size % 2 == 0)
    mesh = init_device_mesh((rows, -1), ("pipe", "data"), comm)
    everyone = [mesh[name].all_gather_object(rank) for name in mesh.names]
    total = np.array([1.0 + rank])
    mesh["data"].all_reduce(total)
    place = [mesh[name].rank for name in mesh.names]
    said = error_of(lambda: mesh["tensor"], KeyError)
    mesh.close()
    comm.barrier()
    return [list(mesh.shape), list(mesh.coordinates), place, everyone, total[0], said, repr(mesh)]


@on_ranks(mesh_of, "serial", 2, 3, 4)
def test_mesh(results):
    size = len(results)
    rows = 1 + (size % 2 == 0)
    grid = np.arange(size).reshape(rows, -1)
    for rank, (shape, coordinates, place, everyone, total, said, text) in enumerate(results):
        row, column = divmod(rank, size // rows)
        assert shape == [rows, size // rows] and coordinates == place == [row, column]
        assert everyone == [grid[:, column].tolist(), grid[row].tolist()]
        assert total == (grid[row] + 1).sum()
        assert "'tensor'; it has 'pipe', 'data'" in said and text == f"DeviceMesh(pipe={rows}, data={size // rows})"


def program_of_the_page(comm):
    """The block of docs/distributed.md about blocks, messages and groups."""
    page = (Path(__file__).parents[2] / "docs/distributed.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "reduce_scatter" in block)
    names = {"np": np, "initialize": lambda: comm, "init_device_mesh": partial(init_device_mesh, backend=comm)}
    exec(code, names)
    return [names["theirs"][0], names["deltas"][-1, -1], names["mine"][0], names["row"].world_size]


@on_ranks(program_of_the_page, 2, 4)
def test_the_program_of_the_page_runs(results):
    size = len(results)
    assert results == [[size, size, size * size / 2, size]] * size


def uneven_meshes(comm):
    meshes = [((5, 2), "ab"), ((-1, 3), "ab"), ((2, 2, 3), "abc"), ((0, 4), "ab"), ((4,), "ab"), ((2, 2), "aa")]
    return [error_of(lambda mesh=mesh: init_device_mesh(*mesh, comm), ValueError) for mesh in meshes]


@on_ranks(uneven_meshes, 4)
def test_meshes_that_do_not_fit(results):
    five, three, cube, zero, one_name, same_name = results[0]
    assert "a mesh of 5 x 2 does not fit 4 ranks; 1 x 4, 2 x 2, 4 x 1 would, or mpirun -np 10" in five
    assert "a mesh of -1 x 3 does not fit 4 ranks; 1 x 4, 2 x 2, 4 x 1 would" in three
    assert (
        "2 x 2 x 3 does not fit 4 ranks; lengths whose product is the number of ranks would, or mpirun -np 12" in cube
    )
    assert "0 x 4 does not fit" in zero
    assert "each dimension of (4,) needs a name of its own, got ('a', 'b')" in one_name and "('a', 'a')" in same_name


def different_meshes(comm):
    """Each of them fits, but they are not the same on all ranks."""
    shapes = error_of(lambda: init_device_mesh((4, 1) if comm.rank == 2 else (2, 2), "ab", comm), ValueError)
    names = error_of(lambda: init_device_mesh((2, 2), "ba" if comm.rank == 3 else "ab", comm), ValueError)
    return shapes, names


@on_ranks(different_meshes, 4)
def test_meshes_that_differ_between_ranks(results):
    for shapes, names in results:
        assert "ranks 0 and 2 have different meshes: ((2, 2), ('a', 'b')) on rank 0 and ((4, 1), ('a', 'b'))" in shapes
        assert "ranks 0 and 3 have different meshes" in names and "('b', 'a')) on rank 3" in names


# What follows ends its job: a launch each, and as threads.
def leave_a_group(comm):
    """Rank 2 leaves; rank 0 waits for it in their group, the others in theirs for longer."""
    group = comm.split(comm.rank % 2)
    group.barrier()
    if comm.rank == 2:
        return
    if comm.rank == 0:
        group.barrier()
    time.sleep(1 if comm.backend == "threads" else 20)


def wait_for_one_that_waits_elsewhere(comm):
    """Rank 0 waits in the group of all for rank 1, which has left that of the first two."""
    group = comm.split(comm.rank // 2)
    if comm.rank == 1:
        return
    (group if comm.rank == 0 else comm).barrier()


def leave_out_one(comm):
    """Rank 1 takes no part in a broadcast of its group, of which rank 0 does not notice."""
    group = comm.split(comm.rank // 2)
    if comm.rank == 0:
        group.start_broadcast(np.ones(3), 0).wait()


LEAVING = {
    leave_a_group: "rank 2 has left the job after 1 collectives of ranks 0, 2, while rank 0 waits in barrier #2 of "
    "ranks 0, 2 (0 MB)",
    wait_for_one_that_waits_elsewhere: "rank 1 has left the job after ",
}


def as_a_job(name):
    globals()[name](create_communicator("mpi", timeout=20))
    sys.exit(0)


@pytest.mark.mpi
@pytest.mark.parametrize("program", LEAVING)
def test_a_rank_that_leaves_a_group_ends_the_job(program):
    result = mpirun(partial(as_a_job, name=program.__name__), np=4)
    assert result.returncode == 1 and result.seconds < 10
    assert f"RankLeftError: {LEAVING[program]}" in result.stderr and result.stderr.count("[rank ") == 1


@pytest.mark.mpi
def test_a_rank_that_missed_a_collective_of_its_group_ends_the_job():
    result = mpirun(partial(as_a_job, name="leave_out_one"), np=4)
    assert result.returncode == 1
    said = "rank 1 has left the job after 0 collectives of ranks 0, 1, rank 0 after 1: it ended early"
    assert said in result.stderr and result.stderr.count("[rank ") == 1


@pytest.mark.parametrize("program", LEAVING)
def test_a_thread_that_leaves_a_group_is_an_error(program):
    with pytest.raises(RankLeftError, match=LEAVING[program].partition("(")[0]):
        run_threads(lambda: program(initialize(timeout=20)), 4)
