"""Data-parallel training over the NCCL engine: 2 and 3 MPI ranks, each with a stand-in GPU, and NCCL played by MPI.

The engine, the kernels (as NVVM compiled them) and everything above are the library's own. See `standin/cupy/cuda`.
"""

import contextlib
import copy
import os
import threading
import time
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp import cuda, manual_seed
from pytagi_ddp.distributed.communicator import create_communicator
from pytagi_ddp.distributed.engine import nccl as engine
from pytagi_ddp.distributed.engine.errors import LaunchError
from pytagi_ddp.nn import (
    DDPConfig,
    DDPSequential,
    EvidenceSchedule,
    FSDPSequential,
    MixtureReLU,
    OutputUpdater,
    PipelineSequential,
)
from pytagi_ddp.selfcheck.examples import TOLERANCE
from pytagi_ddp.selfcheck.two_ranks import largest_error
from tests.cuda.ptx import ranks
from tests.cuda.ptx.emulator import missing
from tests.learning import backpropagate, learn
from tests.mpi import run
from tests.mpi.conftest import _mpi_is_here as _mpi_is_here
from tests.mpi.conftest import _outcomes as _outcomes
from tests.mpi.conftest import results as results
from tests.mpi.ddp_networks import batch, dense, difference, error_of, shard, with_batch_norm
from tests.mpi.rank import fault
from tests.mpi.shared import on_ranks

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # where no kernel is compiled yet
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]
on_gpus = partial(on_ranks, threads=False, several=ranks.several)


def scheduled():
    """A network whose steps, from the second one on, pull towards the prior."""
    net = dense(MixtureReLU())
    EvidenceSchedule(net, steps_per_epoch=1, epochs=3)
    return net


WAYS = {  # network, options of DDPSequential, steps, options of DDPConfig; whether it is one process with all samples
    "sum": (lambda: dense(MixtureReLU()), {"average": False}, 4, {}, True),
    "average, BatchNorm2d, blocks": (with_batch_norm, {"average": True}, 4, {}, False),
    "buckets": (lambda: dense(MixtureReLU()), {"average": False}, 4, {"buckets": 2}, True),
    "synchronised BatchNorm2d": (with_batch_norm, {"average": False, "sync_batch_norm": True}, 2, {}, True),
    "synchronised BatchNorm2d, buckets": (with_batch_norm, {"sync_batch_norm": True}, 2, {"buckets": 3}, False),
    "merge by precision": (lambda: dense(MixtureReLU()), {"every": 2}, 4, {}, False),
    "merge by mean": (with_batch_norm, {"every": 3, "merge": "mean"}, 3, {}, False),
    "merge by damped product": (with_batch_norm, {"every": 3, "merge": "damped_product"}, 3, {}, False),
    "sum, pulled": (scheduled, {"average": False}, 4, {}, True),
    "merge by precision, pulled": (scheduled, {"every": 2}, 4, {}, False),
}


@contextlib.contextmanager
def connected(**options):
    """An NCCL communicator, closed in the end."""
    with contextlib.closing(create_communicator("nccl", **options)) as communicator:
        yield communicator


def on_device(values: np.ndarray):
    """An array of a GPU."""
    from pytagi_ddp.kernels.cuda.runtime.array import arrays  # here, with the stand-in

    return arrays(0).place(values)


def what_the_doctor_tries(comm):
    return largest_error()


@on_gpus(what_the_doctor_tries, 2)
def test_what_the_doctor_tries_on_two_gpus(results):
    assert [rank for rank, _ in results] == [0, 1] and all(error < TOLERANCE for _, error in results)


def train(comm, way):
    """Steps over NCCL, over MPI on the CPU and (for sums) in one process, from different priors on each rank."""
    make, options, steps, config, one_process = WAYS[way]
    net, host = make(), make()
    ddp = DDPSequential(net, DDPConfig(backend="nccl", **config), **options)
    other = DDPSequential(host, DDPConfig(backend="mpi", **config), **options)
    alone = copy.deepcopy(host)
    found = {"device": net.device, "worst": 0.0, "alone": 0.0, "equal": True}
    net.load_state_dict(host.state_dict())  # of another rank 0's prior than its own
    ddp.synchronize()
    sizes = [3, 1, 2][: comm.world_size]
    for step in range(steps):
        x, y = batch(net, sum(sizes), step)
        mine = shard(sizes, comm.rank)
        for model, part in ((ddp, mine), (other, mine), (alone, slice(None))):
            learn(model, x[part], y[part])
        if ddp.steps_since_merge == 0:
            states = comm.all_gather_object(ddp.state_dict())
            found["equal"] &= all(state == states[0] for state in states)
        found["worst"] = max(found["worst"], difference(other.state_dict(), ddp.state_dict()))
        if one_process:
            found["alone"] = max(found["alone"], difference(alone.state_dict(), ddp.state_dict()))
    found["reduced"] = ddp.communicator.reduce_calls
    found["as by MPI"] = other.communicator.reduce_calls
    for model in (ddp, other):
        model.communicator.close()
    return found


@on_gpus(train, 2, 3)
@pytest.mark.parametrize("way", WAYS)
def test_steps_are_those_of_mpi_and_of_one_process(results, way):
    for found in results:
        assert found["device"] == "cuda:0" and found["equal"]
        assert found["worst"] < 1e-4 and found["alone"] < 1e-4
        assert found["reduced"] == found["as by MPI"] > 0


def late_merge(comm):
    """A merge that a rank does not wait for in its step, and that `merge` ends: that of all ranks, over MPI."""
    net, host = with_batch_norm(), with_batch_norm()
    ddp = DDPSequential(net, DDPConfig(backend="nccl"), every=2, max_wait=0)
    other = DDPSequential(host, DDPConfig(backend="mpi"), every=2)
    net.load_state_dict(host.state_dict())
    ddp.synchronize()
    for step in range(2):
        x, y = batch(net, 3 * comm.world_size, step)
        for model in (ddp, other):
            learn(model, x[comm.rank :: comm.world_size], y[comm.rank :: comm.world_size])
    ddp.merge()
    found = [difference(other.state_dict(), ddp.state_dict()), ddp.steps_since_merge, ddp.stop_requested]
    for model in (ddp, other):
        model.communicator.close()
    return found


@on_gpus(late_merge, 2)
def test_a_merge_that_is_waited_for_later(results):
    for worst, *rest in results:
        assert worst < 1e-4 and rest == [0, False]


def pipelined(comm, schedule, recompute):
    """Stages on GPUs, beside those of the CPU; messages go from GPU to GPU."""
    nets = []
    for backend in ("nccl", "mpi"):
        manual_seed(5)
        options = {"n_microbatches": 3, "schedule": schedule, "recompute": recompute}
        nets.append(PipelineSequential(with_batch_norm(2), DDPConfig(backend=backend), **options))
    found = {"device": nets[0].stage.device, "worst": 0.0}
    for step in range(3):
        x, y = batch(with_batch_norm(2), 7, step)
        for net in nets:
            updater = OutputUpdater(net.stage.device)
            net.forward_backward(x, lambda s, rows, d, u=updater, y=y: u.update(s, y[rows], np.ones(y[rows].size), d))
            net.step()
        found["worst"] = max(found["worst"], difference(nets[1].state_dict(), nets[0].state_dict()))
    mu, var = nets[0].predict(x)
    found["predicted"] = max(float(np.abs(a - b).max()) for a, b in zip(nets[1].predict(x), (mu, var), strict=True))
    for net in nets:
        net.communicator.close()
    return found


@on_gpus(pipelined, 2)
@pytest.mark.parametrize(("schedule", "recompute"), [("1F1B", False), ("GPipe", True)])
def test_pipelines(results, schedule, recompute):
    for found in results:
        assert found["device"] == "cuda:0"  # each rank has a GPU of its own, the only one that it sees
        assert found["worst"] < 1e-5
        assert found["predicted"] < 1e-5


def replayed(comm):
    """The bits of steps that are walked through, replayed and launched as graphs."""
    states = []
    for options in ({"replay_launches": False}, {"replay_launches": True}, {"use_graphs": True}):
        with patch.multiple(cuda, **options):
            manual_seed(3)
            ddp = DDPSequential(with_batch_norm(0), DDPConfig(backend="nccl"))
            for step in range(4):
                x, y = batch(ddp.model, 2, comm.rank + 10 * step)
                learn(ddp, x, y)
            states.append(ddp.state_dict())
            ddp.communicator.close()
    return [state == states[0] for state in states]


@on_gpus(replayed, 2)
def test_replayed_steps_and_graphs_are_the_same_steps(results):
    assert results == [[True] * 3] * 2


def in_shards(comm):
    """Steps in shards over NCCL: as a replica takes them over MPI, on the CPU; one rank has no batch in the second."""
    found = []
    for reshard, offloaded in ((True, False), (False, False), (True, True)):
        manual_seed(3)
        net, host = with_batch_norm(0), with_batch_norm(0)
        host.load_state_dict(net.state_dict())
        for each in (net, host):
            EvidenceSchedule(each, steps_per_epoch=1, epochs=5)
        options = {"reshard_after_forward": reshard, "min_num_params": 60}
        sharded = FSDPSequential(net, DDPConfig(backend="nccl", offload_params=offloaded), **options)
        whole = DDPSequential(host, DDPConfig(backend="mpi"))
        for step in range(3):
            x, y = batch(net, 3, 10 * comm.rank + step)
            for model in (sharded, whole):
                if step == 2:
                    with model.no_sync():
                        backpropagate(model, x[:2], y[:2])
                if step != 1 or comm.rank:
                    backpropagate(model, x, y)
                model.step()
        with sharded.unshard():
            inside = net.predict(x)[0]
        state = sharded.state_dict()
        worst = difference(whole.state_dict(), state) if comm.rank == 0 else 0.0
        predictions = [inside, sharded.predict(x)[0], whole.predict(x)[0]]
        memory = net.arena.nbytes
        backpropagate(sharded, x, y)
        if comm.rank:
            sums = net.arena.sections[net.arena.groups[0]].own_sums[0]
            net.arena.keeper.array.copy(np.full(sums.shape, np.nan, np.float32), sums)
        problem = error_of(sharded.step, FloatingPointError)
        found.append([net.device, worst, float(np.ptp(predictions, axis=0).max()), problem, memory])
        for model in (sharded, whole):
            model.communicator.close()
    return found


@on_gpus(in_shards, 2)
def test_steps_in_shards(results):
    for found in results:
        sharded, whole, offloaded = (memory for *_, memory in found)
        assert offloaded < min(sharded, whole)
        for device, worst, predicted, problem, _ in found:
            assert device == "cuda:0"
            assert worst < 1e-4 and predicted < 1e-4
            assert "layer 0 (Conv2d" in problem and problem == found[0][3]


def uneven(comm):
    """Ranks with 1, 2 and 3 batches, then exact statistics and a request to stop by the last one."""
    manual_seed(5)
    net, host = with_batch_norm(0), with_batch_norm(0)
    ddp, other = (DDPSequential(model, DDPConfig(backend=backend)) for model, backend in ((net, "nccl"), (host, "mpi")))
    host.load_state_dict(net.state_dict())
    batches = [batch(net, 2, 10 * comm.rank + i) for i in range(comm.rank + 1)]
    for model in (ddp, other):
        with model.join():
            for i, (x, y) in enumerate(batches):
                backpropagate(model, x, y)
                if comm.rank == comm.world_size - 1 and i == 0:
                    model.request_stop()
                model.step()
        model.update_bn([x for x, _ in batches])
    states = comm.all_gather_object(ddp.state_dict())
    stop = ddp.stop_requested
    for model in (ddp, other):
        model.communicator.close()
    return [difference(other.state_dict(), ddp.state_dict()), all(state == states[0] for state in states), stop]


@on_gpus(uneven, 2, 3)
def test_ranks_with_fewer_batches_and_exact_statistics(results):
    for worst, equal, stop in results:
        assert worst < 1e-4 and equal and stop


def collectives(comm):
    """The largest errors of all reductions, of broadcasts, and of several handles that are waited for in any order."""
    rank, size, worst = comm.rank, comm.world_size, 0.0
    numpy_ops = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
    with connected() as nccl:
        for dtype in (np.float32, np.float64, np.int64):
            for op, combine in numpy_ops.items():
                if op == "mean" and dtype == np.int64:
                    continue
                values = [np.random.default_rng(r).integers(1, 9, 300).astype(dtype) for r in range(size)]
                everywhere, at_root = on_device(values[rank]), on_device(values[rank])
                nccl.all_reduce(everywhere, op)
                nccl.reduce(at_root, op, size - 1)
                expected = combine(values, 0)
                worst = max(worst, np.abs(everywhere.get() / expected - 1).max())
                kept = expected if rank == size - 1 else values[rank]
                worst = max(worst, np.abs(at_root.get() / kept - 1).max())
        rows = [on_device(np.full(4, 1.0 + rank + i)) for i in range(4)]
        handles = [nccl.start_all_reduce(row) for row in rows[:3]] + [nccl.start_broadcast(rows[3], 1)]
        while not handles[1].test():
            time.sleep(0.001)
        for handle in handles if rank else reversed(handles):
            handle.wait()
        nccl.all_reduce(on_device(np.empty(0)))
        shares = [np.random.default_rng(r).integers(1, 9, (size, 300)).astype(np.float32) for r in range(size)]
        apart, in_place, gathered = (on_device(values) for values in (shares[0][0], shares[rank], shares[0]))
        nccl.reduce_scatter(in_place, apart)
        nccl.start_all_gather(apart, gathered).wait()
        nccl.start_reduce_scatter(in_place, in_place[rank], "sum").wait()
        nccl.all_gather(in_place[rank], in_place)
        blocks = [(found.get() == np.sum(shares, 0)).all() for found in (gathered, in_place)]
        sums = [size * (1 + i) + sum(range(size)) for i in range(3)]
        by_handles = [row.get().tolist() == [value] * 4 for row, value in zip(rows, [*sums, 5.0], strict=True)]
        part = on_device(np.arange(9.0))
        nccl.all_reduce(part[2:5])
        only_part = part.get().tolist() == [0, 1, *(size * np.arange(2, 5.0)), 5, 6, 7, 8]
        text = nccl.broadcast_object(f"from {rank}")
        host = np.array([rank + 1.0])
        nccl.all_reduce(host)
        in_block = np.array([rank + 1.0])
        nccl.reduce_scatter(np.arange(size) + host, in_block)
    fine = [*by_handles, *blocks, only_part, in_block[0] == size * (rank + host[0])]
    return [worst, *map(bool, fine), text, host[0]]


@on_gpus(collectives, 2, 3)
def test_collectives(results):
    size = len(results)
    for worst, *equal, text, total in results:
        assert worst < 1e-6 and equal == [True] * 8
        assert text == "from 0" and total == size * (size + 1) / 2


def messages(comm):
    """What arrives from each other rank, by its own GPU, its neighbour's group and the host; then a group's sum."""
    rank, size, right = comm.rank, comm.world_size, []
    with connected() as nccl:
        for sender in range(size):  # every rank starts them in this order
            for receiver in range(size):
                if rank == sender != receiver:
                    nccl.start_send(on_device(np.full(500, 10.0 * sender + receiver)), receiver).wait()
                elif rank == receiver != sender:
                    came = on_device(np.zeros(500))
                    nccl.receive(came, sender)
                    right.append((came.get() == 10.0 * sender + receiver).all())
        group = nccl.split(int(rank > 0), -rank)
        assert (group.backend, group.device_index) == ("nccl", nccl.device_index)
        total = on_device(np.full(9, rank + 1.0))
        group.all_reduce(total)
        right.append((total.get() == (1 if rank == 0 else size * (size + 1) / 2 - 1)).all())
        if group.world_size > 1:
            number = on_device(np.full(3, rank))
            group.send(number, 1) if group.rank == 0 else group.receive(number, 0)
            right.append((number.get() == size - 1).all())
        group.close()
        nccl.all_reduce(total)
        host = np.array([rank])
        nccl.send(host, 1) if rank == 0 else nccl.receive(host, 0) if rank == 1 else None
        right.append(host[0] == (rank if rank > 1 else 0))
    return [len(right), all(right)]


@on_gpus(messages, 2, 3)
def test_messages_and_groups(results):
    size = len(results)
    assert results == [[size + 1 + (size > 2 and rank > 0), True] for rank in range(size)]


def on_one_gpu(comm):
    """What is said when all ranks are on one GPU: by the library, by NCCL itself, and where it can be done."""
    import cupy

    nccl, said, total = cupy.cuda.nccl, [], 0.0
    with patch.object(cupy.cuda, "identity", 7):
        for asked, version in (("0", 23203), ("1", 22907), ("1", 23000)):
            with patch.dict(os.environ, NCCL_MULTI_RANK_GPU_ENABLE=asked), patch.object(nccl, "version", version):
                try:
                    with connected() as communicator:
                        array = on_device(np.ones(3))
                        communicator.all_reduce(array)
                        total = array.get()[0]
                except LaunchError as error:
                    said.append(str(error))
        with patch.object(engine, "check_places", lambda *_: None), patch.dict(os.environ):
            os.environ.pop("NCCL_MULTI_RANK_GPU_ENABLE", None)
            said.append(error_of(partial(create_communicator, "nccl"), nccl.NcclError))
        uuid = cuda.get_device_uuid(0)
    return [said, uuid, cuda.get_device_uuid(0), total]


@on_gpus(on_one_gpu, 2, 3)
def test_ranks_on_one_gpu(results):
    assert len({own for _, _, own, _ in results}) == len(results)
    for (by_default, too_old, by_nccl), uuid, _, total in results:
        for refusal in (by_default, too_old):
            assert "ranks 0 and 1 are on one GPU" in refusal and uuid in refusal
        assert "Duplicate GPU" in by_nccl
        assert total == len(results)


def failing(comm, how):
    """The error that leaves the watchdog's thread on each rank, and what the next collective says."""
    seen: list[BaseException] = []
    with patch.object(threading, "excepthook", lambda arguments: seen.append(arguments.exc_value)), connected() as nccl:
        array = on_device(np.ones(3))
        nccl.all_reduce(array)
        array.get()
        last = comm.rank == comm.world_size - 1
        if how == "late":
            nccl._watchdog._timeout = 0.2
        elif how == "reported":
            nccl._comm.error = 2
        elif last:
            nccl._abort()  # as if its GPU had failed
        if not last:
            nccl.start_all_reduce(array).wait()
            until = time.monotonic() + 20
            while not seen and time.monotonic() < until:
                time.sleep(0.01)
        comm.barrier()
        after = "" if last else error_of(lambda: nccl.all_reduce(array), RuntimeError)
        nccl._watchdog.stop()
    return [[f"{type(error).__name__}: {error}" for error in seen], after]


@on_gpus(failing, 2, 3)
@pytest.mark.parametrize("how", ["late", "gone", "reported"])
def test_errors_that_come_later(results, how):
    says = {
        "late": "CollectiveTimeoutError: rank {} has waited 0.2 s in all_reduce #2",
        "gone": "NcclError: NCCL_ERROR_REMOTE_ERROR",
        "reported": "NcclError: NCCL_ERROR_SYSTEM_ERROR",
    }
    *others, (seen, after) = results
    assert (seen, after) == ([], "")
    for rank, (seen, after) in enumerate(others):
        assert len(seen) == 1 and seen[0].startswith(says[how].format(rank))
        assert f"rank {rank} cannot go on with all_reduce #3" in after


def one_makes_no_step():
    """Rank 1 stays behind while rank 0 waits for its own GPU, where no signal comes."""
    from pytagi_ddp.distributed.engine.launcher import detect_launcher
    from tests.cuda.ptx.stand_in import stand_in

    stand_in(detect_launcher().rank)
    ddp = DDPSequential(dense(MixtureReLU()), DDPConfig(backend="nccl", timeout=60))
    backpropagate(ddp, *batch(ddp.model, 2, 0))
    ddp.barrier()
    ddp.communicator._watchdog._timeout = 1
    fault()
    if ddp.rank == 1:
        time.sleep(60)
    ddp.step()
    ddp.state_dict()


@pytest.mark.mpi
def test_a_rank_that_makes_no_step_ends_the_job():
    result = run.mpirun(one_makes_no_step, timeout=120)
    assert result.returncode != 0 and result.seconds < 20
    assert "rank 0 has waited 1." in result.stderr
    assert result.stderr.count("Error: ") == 1
