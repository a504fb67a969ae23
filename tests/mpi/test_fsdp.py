"""FSDPSequential on 1, 2, 3 and 4 ranks: the bits of DDPSequential, from shards, by the bytes that were predicted."""

import contextlib
import copy

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.distributed.gathering import VOTES
from pytagi_ddp.nn import DDPConfig, DDPSequential, FSDPSequential
from pytagi_ddp.nn.core.parameters import ParametersNotHereError
from tests.learning import backpropagate, learn
from tests.mpi.ddp_networks import (
    WITHOUT_BATCH_NORM,
    batch,
    difference,
    error_of,
    shard,
    shares,
    with_batch_norm,
)
from tests.mpi.rank import job_folder
from tests.mpi.shared import check, on_ranks

BOTH = pytest.mark.parametrize("reshard", [True, False])


def pair(comm, net, reshard=True, average=True, sync=False, min_num_params=60):
    """The same network in shards and as a replica."""
    config = DDPConfig(backend=comm.backend)
    whole = DDPSequential(copy.deepcopy(net), config, average, sync_batch_norm=sync)
    options = {"reshard_after_forward": reshard, "min_num_params": min_num_params, "sync_batch_norm": sync}
    return FSDPSequential(net, config, average, **options), whole


def same(sharded, whole) -> bool:
    """Whether a network in shards has the bits of a replica; on rank 0. Collective."""
    found = sharded.state_dict()
    return bool(sharded.rank) or found == whole.state_dict()


def every_network(comm, reshard):
    results = {}
    for name, make in WITHOUT_BATCH_NORM.items():
        sharded, whole = pair(comm, make(), reshard, average=False)
        sizes = shares([4, 1, 3, 2], comm.world_size)
        mine = shard(sizes, comm.rank)
        for step in range(3):
            x, y = batch(whole.model, sum(sizes), step)
            for net in (sharded, whole):
                learn(net, x[mine], y[mine])
        predictions = [net.predict(x) for net in (sharded, whole)]
        results[name] = [same(sharded, whole), np.array_equal(*predictions)]
    return results


@on_ranks(every_network, "3 threads", once_a_week=(2, 3, 4))
@BOTH
def test_every_network_has_the_bits_of_replicas(results, reshard):
    for result in results:
        assert result == {name: [True, True] for name in WITHOUT_BATCH_NORM}


def options_together(comm, reshard, average, sync, blocks):
    """Ranks with other numbers of samples in each step, none on some; one that has fewer batches than the others."""
    net = with_batch_norm(2)
    net.checkpoint_blocks = blocks
    sharded, whole = pair(comm, net, reshard, average, sync, min_num_params=100)
    rows = [[3, 2, 4], [2, 0, 2], [0, 4, 3], [2, 2, 0]][comm.rank % 4]
    for k, samples in enumerate(rows):
        x, y = batch(net, samples or 2, 10 * comm.rank + k)
        for each in (sharded, whole):
            if samples:
                backpropagate(each, x, y)
            each.step()
    for each in (sharded, whole):
        with each.join():
            for k in range(4 - comm.rank):
                x, y = batch(net, 3, 7 * comm.rank + k)
                backpropagate(each, x, y)
                if comm.rank == 1:
                    each.request_stop()
                each.step()
    x, _ = batch(net, 4, comm.rank)
    changes = [each.update_bn([x[:2], x[2:]]) for each in (sharded, whole)]
    stops = sharded.stop_requested == whole.stop_requested
    return [same(sharded, whole), stops, changes[0] == changes[1], len(changes[0]), len(sharded.model.arena.groups)]


@on_ranks(options_together, 2, "3 threads", threads=False, once_a_week=(3,))
@BOTH
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(("sync", "blocks"), [(False, False), (True, False), (False, True), (True, True)])
def test_options_have_the_bits_of_replicas(results, reshard, average, sync, blocks):
    assert results == [[True, True, True, 3, 4]] * len(results)


def forgetting(comm, reshard):
    """Ranks that have predicted different numbers of batches before; groups with one prior, and with several."""
    net = WITHOUT_BATCH_NORM["Parallel" if reshard else "ResNetBlock"]()
    sharded, whole = pair(comm, net, reshard)
    for step in range(3):
        x, y = batch(whole.model, 3, 10 * comm.rank + step)
        for each in (sharded, whole):
            learn(each, x, y)
            if step < 2:
                each.forget_evidence((1.5, 1e9)[step])
        for _ in range(comm.rank):
            sharded.predict(x)
    with sharded.unshard():
        refused = error_of(lambda: sharded.forget_evidence(2), RuntimeError)
    return same(sharded, whole), len(sharded.model.arena.groups), refused


@on_ranks(forgetting, 2, "4 threads", threads=False)
@BOTH
def test_forgetting(results, reshard):
    for equal, groups, refused in results:
        assert equal and groups > 1
        assert "inside unshard()" in refused


def micro_batches(comm, reshard):
    rank = comm.rank
    sharded, whole = pair(comm, WITHOUT_BATCH_NORM["ResNetBlock"](), reshard, average=False)
    for step in range(2):
        passes = [3, 1, 2, 0][rank % 4]
        for each in (sharded, whole):
            for k in range(passes):
                x, y = batch(whole.model, 2 + k, 100 * step + 10 * rank + k)
                with each.no_sync() if k < passes - 1 else contextlib.nullcontext():
                    backpropagate(each, x, y)
            each.step()
    found = sharded.state_dict()
    return difference(found, whole.state_dict()) if rank == 0 else 0


@on_ranks(micro_batches, 2, "4 threads", threads=False)
@BOTH
def test_micro_batches_add_up(results, reshard):
    assert max(results) < 1e-6


def bytes_of_a_step(comm, reshard, blocks):
    R = comm.world_size
    net = with_batch_norm(2)
    net.checkpoint_blocks = blocks
    sharded, _ = pair(comm, net, reshard, min_num_params=100)
    arena, c = net.arena, sharded.communicator
    x, y = batch(net, 3, comm.rank)
    sharded.step()  # nothing is gathered from here on
    before = c.gather_bytes, c.reduce_bytes
    learn(sharded, x, y)
    rows = [4 * R * group.shard for group in arena.groups]
    votes = 4 * VOTES * (R > 1)
    reduced = 2 * sum(rows) + arena.tail.nbytes + (2 + reshard) * votes + 4
    found = [c.gather_bytes - before[0], c.reduce_bytes - before[1] - reduced]
    n, widest = sum(group.shard for group in arena.groups), max(group.shard for group in arena.groups)
    small = arena.tail.nbytes + arena.statistics.nbytes + arena.carried.nbytes
    memory = 16 * n + 16 * R * widest if reshard else 8 * R * n + 8 * n + 8 * R * widest
    sharded.barrier()
    return [found, rows, sharded.nbytes - small - memory, net.num_parameters]


@on_ranks(bytes_of_a_step, 1, 3, "4 threads", threads=False)
@pytest.mark.parametrize(("reshard", "blocks"), [(True, False), (False, False), (True, True)])
def test_bytes_and_memory_are_those_of_the_formulas(results, reshard, blocks):
    R = len(results)
    for (gathered, unexplained), rows, memory, P in results:
        assert unexplained == memory == 0
        assert len(rows) == 4
        assert 0 <= sum(rows) - 4 * P < 4 * 64 * R
        if reshard:  # both rows forward; means backward, but of the last group, which is still there
            again = rows[1] * blocks  # the first block is run again: its variances, too
            assert gathered == 2 * sum(rows) + sum(rows[:-1]) + again
        else:
            assert gathered == 2 * sum(rows)


def all_parameters(comm, reshard):
    rank, results = comm.rank, {}
    net = with_batch_norm(1)
    sharded, whole = pair(comm, net, reshard)
    x, y = batch(net, 3, rank)
    for each in (sharded, whole):
        learn(each, x, y)
    expected = whole.state_dict()
    path = job_folder() / "sharded.safetensors"
    sharded.save(path)
    sharded.barrier()
    other = with_batch_norm(1)
    other.load(path)
    results["saved"] = other.state_dict() == expected
    with sharded.unshard():
        results["whole"] = sharded.state_dict() == net.state_dict() == expected
        sharded.save(job_folder() / f"{comm.rank}")
        results["wrote"] = (job_folder() / f"{comm.rank}").exists() == (comm.rank == 0)
        sharded.barrier()
        whole.load_state_dict(other.state_dict() | {"Linear.4": [np.full_like(a, 2) for a in expected["Linear.4"]]})
        sharded.load_state_dict(whole.state_dict())
    results["loaded inside"] = same(sharded, whole)
    whole.load_state_dict(expected)
    sharded.load_state_dict(expected)
    with sharded.unshard():
        results["values"] = np.array_equal(net.layers[0].mu_w, whole.model.layers[0].mu_w)
        results["local"] = np.array_equal(net.predict(x[: rank + 1]), whole.predict(x[: rank + 1]))
        net.layers[0].mu_b = [1, 2, 3]
    whole.model.layers[0].mu_b = [1, 2, 3]
    results["assigned"] = same(sharded, whole)
    sharded.load(path)
    whole.load(path)
    for each in (sharded, whole):
        learn(each, x, y)
    results["loaded"] = same(sharded, whole)
    sharded.load_state_dict(expected)
    results["taken"] = same(sharded, other)
    wrong = dict(expected) | {"Linear.4": expected["Linear.4"][:1] * 4}
    refused = error_of(lambda: sharded.load_state_dict(wrong), ValueError)
    results["refused"] = "Linear.4" in refused and same(sharded, other)
    parts = comm.all_gather_object(
        [(part.name, part.start, part.stop, part.size, np.array(part.array)) for part in sharded.slices() if part.saved]
    )
    gathered = {}
    for name, start, stop, size, values in (part for theirs in parts for part in theirs):
        gathered.setdefault(name, np.full(size, np.nan, np.float32))[start:stop] = values
    tensors = {f"{key}/{k}": a for key, arrays in expected.items() for k, a in enumerate(arrays) if a.size}
    results["slices"] = sorted(a.tobytes() for a in gathered.values()) == sorted(a.tobytes() for a in tensors.values())
    results["named"] = "Linear.4/mu_w" in gathered and "BatchNorm2d.2.running/var" in gathered
    local = sharded.state_dict(full=False)
    results["own"] = sum(a.size for (a,) in local.values()) < (1 + 1 / comm.world_size) * net.num_parameters + 64
    return results


@on_ranks(all_parameters, 1, 3, "4 threads", threads=False)
@BOTH
def test_reading_and_writing_all_parameters(results, reshard):
    check(results, 13)


def checkpoints(comm, reshard):
    net = with_batch_norm(1)
    sharded, whole = pair(comm, net, reshard)
    x, y = batch(net, 3, comm.rank)
    for each in (sharded, whole):
        learn(each, x, y)
    manager = CheckpointManager(job_folder())
    manager.save(sharded, TrainingPosition(step=1))
    other, replica = pair(comm, with_batch_norm(1), not reshard, min_num_params=1000)
    found = [manager.load(net).position.step for net in (other, replica)]
    return [found, same(other, whole), replica.state_dict() == whole.state_dict()]


@on_ranks(checkpoints, 2, "3 threads", threads=False)
@BOTH
def test_checkpoints_of_shards(results, reshard):
    assert results == [[[1, 1], True, True]] * len(results)


def misuse(comm, reshard):
    """What refused calls say, and what that has to hold; then whether the network is as it was, and goes on."""
    rank, found = comm.rank, []
    make = WITHOUT_BATCH_NORM["Conv2d"]
    config = DDPConfig(backend=comm.backend, timeout=20)
    offload, buckets = (DDPConfig(backend=comm.backend, **o) for o in ({"offload_params": True}, {"buckets": 2}))

    def refused(call, words, *kinds):
        found.append([error_of(call, *kinds or (ValueError, TypeError, RuntimeError, FloatingPointError)), words])

    other_mode = {"reshard_after_forward": reshard == (rank == 0)}
    refused(lambda: FSDPSequential(make(), config, **other_mode), "reshard_after_forward is")
    other_size = "min_num_params is 100 on rank 0 and 101 on rank 1"
    refused(lambda: FSDPSequential(make(), config, min_num_params=100 + rank), other_size)
    refused(lambda: FSDPSequential(make(), config, min_num_params=-1), "got -1")
    other_class = "class is 'FSDPSequential' on rank 0 and 'DDPSequential' on rank 1"
    refused(lambda: (DDPSequential if rank else FSDPSequential)(make(), config), other_class)
    refused(lambda: FSDPSequential(make(), offload, reshard_after_forward=reshard), "needs a network on a GPU")
    refused(lambda: DDPSequential(make(), offload), "is for an FSDPSequential")
    refused(lambda: FSDPSequential(make(), buckets), "buckets")
    net = make()
    sharded, whole = pair(comm, net, reshard)
    model = sharded.model
    refused(lambda: DDPSequential(net, config), "lies in shards")
    refused(model.step, "step() of a network in a FSDPSequential: call that one's")
    refused(lambda: sharded.__reduce_ex__(2), "copy or pickle its `model`")
    refused(lambda: model.layers[0].delta_mu_w, "unshard()", ParametersNotHereError)
    if reshard:
        refused(lambda: copy.deepcopy(model), "unshard()")
        refused(lambda: model.layers[0].mu_w, "unshard()", ParametersNotHereError)
    else:
        assert model.layers[0].mu_w.size
    refused(lambda: model.arena.detach(), "cannot be moved")
    x, y = batch(net, 3, rank)
    backpropagate(sharded, x, y)
    refused(lambda: backpropagate(sharded, x, y), "no_sync()")
    sharded.step()
    with sharded.unshard():
        for call in (lambda: backpropagate(sharded, x, y), sharded.step, lambda: sharded.update_bn([x])):
            refused(call, "inside unshard()")
    before = sharded.state_dict()
    updater = nn.OutputUpdater("cpu")
    sharded(x)
    updater.update(sharded.output_z_buffer, y, np.full(y.size, 1.0), sharded.input_delta_z_buffer)
    if rank == comm.world_size - 1:
        sharded.input_delta_z_buffer.delta_mu = np.full(y.size, np.nan, np.float32)
    sharded.backward()
    refused(sharded.step, "parameters have a delta that is not finite")
    unchanged = sharded.state_dict() == before
    for each in (sharded, whole):
        each.load_state_dict(whole.state_dict())
        learn(each, x, y)
    return found, unchanged, same(sharded, whole)


@on_ranks(misuse, 2, "3 threads", threads=False)
@BOTH
def test_misuse_is_refused_on_every_rank(results, reshard):
    for found, unchanged, goes_on in results:
        assert [(text, words) for text, words in found if words not in text] == []
        assert found[-1] == results[0][0][-1]
        assert unchanged and goes_on


def cut_short(comm, reshard):
    """A layer that fails on one rank, in a pass forward and in one back; and ranks at different places."""
    rank, results = comm.rank, []
    net = with_batch_norm(1)
    sharded, whole = pair(comm, net, reshard, sync=True)
    x, y = batch(net, 3, rank)
    last = comm.world_size - 1
    for way in ("forward", "backward"):
        layer = net.layers[3].main_block.layers[0]
        if rank == last:
            setattr(layer, way, lambda *_, **__: 1 / 0)
        failed = error_of(lambda: backpropagate(sharded, x, y), ZeroDivisionError)
        layer.__dict__.pop(way, None)
        refused = error_of(sharded.step, RuntimeError)
        results.append([bool(failed), "cut short on 1 ranks" in refused])
        if way == "forward":  # the others learnt, and so does this rank's replica not
            sharded.load_state_dict(whole.state_dict())
    places = error_of(sharded.step if rank else lambda: sharded.unshard().__enter__(), RuntimeError)
    results.append(f"{comm.world_size - 1} in step(), 1 in unshard()" in places)
    net.checkpoint_blocks = rank == 0
    blocks = error_of(lambda: sharded(x), RuntimeError)
    net.checkpoint_blocks = False
    results.append(f"checkpoint_blocks is set on 1 of {comm.world_size} ranks" in blocks)
    sharded.load_state_dict(whole.state_dict())
    sharded.model.arena.statistics[:] = whole.model.arena.statistics
    for each in (sharded, whole):
        learn(each, x, y)
    return [*results, same(sharded, whole)]


@on_ranks(cut_short, 2, "3 threads", threads=False)
@BOTH
def test_passes_that_are_cut_short(results, reshard):
    for rank, (forward, backward, places, blocks, equal) in enumerate(results):
        fails = rank == len(results) - 1
        assert forward == [fails, False]
        assert backward == [fails, True]
        assert places and blocks and equal
