"""Options of DDPSequential together, and calls that could bring ranks out of step, on 2 and 3 real ranks."""

import contextlib
import copy
import os
import pickle
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed import synchronize
from pytagi_ddp.nn import DDPConfig, DDPSequential
from tests.learning import backpropagate, learn
from tests.mpi.ddp_networks import (
    IMAGE,
    WITHOUT_BATCH_NORM,
    batch,
    difference,
    error_of,
    same_everywhere,
    with_batch_norm,
)
from tests.mpi.rank import job_folder
from tests.mpi.shared import on_ranks


def config_of(comm, **options):
    return DDPConfig(backend=comm.backend, timeout=20, **options)


def uneven_passes(comm, buckets, blocks):
    """Every rank runs passes of its own number, sizes and place in no_sync, all with statistics of all ranks."""
    rank, size = comm.rank, comm.world_size
    passes = [[3, 2], [4], *[[] for _ in range(size - 2)]]
    manual_seed(4)
    net = with_batch_norm(blocks)
    reference = copy.deepcopy(net)
    net.checkpoint_blocks = blocks == 2
    ddp = DDPSequential(net, config_of(comm, buckets=buckets), average=False, sync_batch_norm=True)
    x, y = batch(net, 9, 0)
    part = {(0, 0): slice(0, 3), (0, 1): slice(3, 5), (1, 0): slice(5, 9)}
    for step in range(2):
        with ddp.join() if step else ddp.no_sync():
            for k in range(len(passes[rank]) - (not step)):
                with ddp.no_sync() if step else contextlib.nullcontext():
                    backpropagate(ddp, x[part[rank, k]], y[part[rank, k]])
                ddp.predict(x[:2])
            if step and passes[rank]:
                ddp.step()
        if not step:
            if passes[rank]:
                last = part[rank, len(passes[rank]) - 1]
                backpropagate(ddp, x[last], y[last])
            ddp.step()
        reference.passes.accumulating = False
        for k in range(2):  # the k-th passes of all ranks are one
            rows = np.concatenate([np.arange(9)[part[r, k]] for r in range(size) if k < len(passes[r])])
            backpropagate(reference, x[rows], y[rows])
            reference.passes.accumulating = True
        reference.step()
    return [difference(reference.state_dict(), ddp.state_dict()), same_everywhere(ddp)]


@on_ranks(uneven_passes, 2, 3, real=3)
@pytest.mark.parametrize(("buckets", "blocks"), [(1, 1), (3, 1), (3, 2)])
def test_synchronised_statistics_with_other_numbers_of_passes_on_every_rank(results, buckets, blocks):
    for worst, equal in results:
        assert worst < 1e-4
        assert equal


def loaded(comm, rule, load):
    rank, size = comm.rank, comm.world_size
    manual_seed(3)
    old, new = (WITHOUT_BATCH_NORM["Linear"]() for _ in range(2))
    x, y = batch(old, 4 * size, 0)
    mine = slice(4 * rank, 4 * rank + 4)
    for _ in range(5):
        backpropagate(new, x, y)  # other variances than those of `old`
        new.step()
    ddp = DDPSequential(old, DDPConfig(backend=comm.backend), every=2, merge=rule)
    learn(ddp, x[mine], y[mine])
    if load == "load_state_dict":
        ddp.load_state_dict(new.state_dict())
    elif load == "past the DDPSequential":
        old.load_state_dict(new.state_dict())
    elif load == "load":
        path = job_folder() / f"{rank}.safetensors"
        new.save(path)
        ddp.load(path)
    else:
        if rank == 0:
            old.params_from(new)
        ddp.synchronize()
    fresh = DDPSequential(copy.deepcopy(new), DDPConfig(backend=comm.backend), every=2, merge=rule)
    for _ in range(2):
        for net in (ddp, fresh):
            learn(net, x[mine], y[mine])
    return [difference(ddp.state_dict(), fresh.state_dict()), ddp.steps_since_merge]


@on_ranks(loaded, 2)
@pytest.mark.parametrize("rule", ["mean", "precision_weighted"])
@pytest.mark.parametrize("load", ["load_state_dict", "load", "past the DDPSequential", "synchronize"])
def test_parameters_that_are_loaded_between_merges_are_a_new_prior(results, rule, load):
    assert results == [[0, 0]] * 2


def merge_all(comm):
    rank, results = comm.rank, {}
    net = WITHOUT_BATCH_NORM["Linear"]()
    ddp = DDPSequential(net, config_of(comm), every=2, merge="mean")
    x, y = batch(net, 4, rank)
    alone = copy.deepcopy(net)
    learn(alone, x, y)
    with ddp.join():
        backpropagate(ddp, x, y)  # no step: what was learnt counts all the same
    expected = np.mean(comm.all_gather_object(alone.arena.theta.copy()), 0)
    results["difference"] = np.abs(net.arena.theta - expected).max()
    results["failed"] = []
    for step in range(4):
        backpropagate(ddp, x, y)
        if rank == 0 and step in (1, 2):  # one of them in the step that merges
            net.layers[0].parameters.w.delta_mu_sum[2] = np.inf
        try:
            ddp.step()
        except FloatingPointError:
            results["failed"].append(step)
    results["left"], results["equal"] = ddp.steps_since_merge, same_everywhere(ddp)
    backpropagate(net, x, y)
    results["refused"] = error_of(ddp.step, RuntimeError)
    return results


@on_ranks(merge_all, 2)
def test_merges_miss_no_deltas_and_no_rank(results):
    for result, failed in zip(results, [[1, 2], []], strict=True):
        assert "forward() of the DDPSequential" in result.pop("refused")
        assert result.pop("difference") < 1e-6
        assert result == {"failed": failed, "left": 0, "equal": True}


def owners(comm):
    results = {}
    net = with_batch_norm()
    norm = net.layers[2]

    def refused(call):
        return error_of(call, TypeError, ValueError, RuntimeError)

    first = DDPSequential(net, config_of(comm), sync_batch_norm=True)
    results["copies"] = [
        refused(lambda copies=copies: copies(first)) for copies in (copy.deepcopy, copy.copy, pickle.dumps)
    ]
    synchronize(comm, net)  # leaves it to its DDPSequential
    results["synchronised"] = [norm.reduce_sums is not None, norm.pool_at_step]
    DDPSequential(net, config_of(comm))
    results["pooled"] = [norm.reduce_sums is not None, norm.pool_at_step]
    results["old step"] = refused(first.step)
    third = DDPSequential(net, config_of(comm), every=2)
    results["own"] = [norm.reduce_sums is not None, norm.pool_at_step]
    results["twice"] = refused(lambda: DDPSequential(third))
    results["rule"] = refused(lambda: DDPSequential(net, config_of(comm), merge="median"))
    results["half"] = refused(lambda: DDPSequential(net, config_of(comm), every=2.5))
    alone = copy.deepcopy(net)
    x, y = batch(net, 4, comm.rank)
    if comm.rank == 0:
        backpropagate(alone, x, y)  # meets no ranks
        alone.step()
    return results


@on_ranks(owners, 2)
def test_a_network_belongs_to_one_ddp_sequential(results):
    for result in results:
        assert len(result["copies"]) == 3
        assert all("copy or pickle its `model`" in text for text in result["copies"])
        assert result["synchronised"] == [True, False]
        assert result["pooled"] == [False, True]
        assert result["own"] == [False, False]
        assert "now belongs to another one" in result["old step"]
        assert "takes a Sequential" in result["twice"]
        assert "'median'" in result["rule"]
        assert "must be an integer, got" in result["half"]


def in_flight(comm, debug):
    results = {}
    net = with_batch_norm()
    with patch.dict(os.environ, PYTAGI_DDP_DEBUG=debug):
        comm.debug = debug == "1"
        ddp = DDPSequential(net, config_of(comm, buckets=3), average=False)
    x, y = batch(net, 4, comm.rank)

    def twice(again):
        backpropagate(ddp, x, y)
        with again:  # an error that leaves no_sync() would drop the deltas of the first
            return error_of(lambda: backpropagate(ddp, x, y), RuntimeError)

    for name, again in (("backward", contextlib.nullcontext()), ("no_sync", ddp.no_sync())):
        results[name] = twice(again)
        ddp.step()
    for _ in range(20):
        backpropagate(ddp, x, y)
        sums = np.full(3, comm.rank, np.float32)
        comm.all_reduce(sums)  # waits while a thread drives the buckets
        ddp.step()
    results["sums"], results["equal"] = float(sums[0]), same_everywhere(ddp)
    net.layers[0].backward = lambda *_: 1 / 0
    with contextlib.suppress(ZeroDivisionError):
        backpropagate(ddp, x, y)
    results["failed"] = error_of(ddp.step, RuntimeError)
    net.layers[0].__dict__.pop("backward")
    net.passes.passed(1)
    ddp.step()
    return results


@on_ranks(in_flight, 2)
@pytest.mark.parametrize("debug", ["0", "1"])
def test_nothing_meets_deltas_that_are_on_their_way(results, debug):
    for result in results:
        assert "second backward()" in result["backward"] and "second backward()" in result["no_sync"]
        assert result["sums"] == 1 and result["equal"]
        assert "backward() failed" in result["failed"]


def stop(comm, every):
    net = WITHOUT_BATCH_NORM["Linear"]()
    ddp = DDPSequential(net, config_of(comm), every=every)
    x, y = batch(net, 4, comm.rank)
    taken = 0
    with ddp.join():
        for step in range(2 if comm.rank == comm.world_size - 1 else 9):  # the last has ended when the first one asks
            with ddp.no_sync():
                backpropagate(ddp, x[:2], y[:2])
            backpropagate(ddp, x[2:], y[2:])
            if comm.rank == 0 and step == 4:
                ddp.request_stop()
            ddp.step()
            taken += 1
            if ddp.stop_requested:
                break
    return [taken, ddp.stop_requested, same_everywhere(ddp)]


@on_ranks(stop, 3)
@pytest.mark.parametrize(("every", "steps"), [(1, [5, 5, 2]), (2, [6, 6, 2])])
def test_a_stop_reaches_ranks_that_have_no_batches_left(results, every, steps):
    assert results == [[taken, True, True] for taken in steps]


def settings(comm, name):
    other = name if comm.rank == 1 else "none"
    window = {"padding": 2, "padding_type": 2} if other == "window" else {"padding": 1}
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, **window, **IMAGE),
        nn.BatchNorm2d(3, eps=1e-5 if other != "eps" else 1e-4, momentum=0.9 if other != "momentum" else 0.5),
        nn.Linear(108, 3 if other != "size" else 2),
    )
    if other == "dtype":
        net.arena.theta = net.arena.theta.astype(np.float64)
    config = config_of(comm, wire_dtype="float16" if other == "wire" else "float32")
    return error_of(lambda: DDPSequential(net, config), ValueError)


@on_ranks(settings, 3)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", ""),
        ("size", "output_size of Linear.2 is 3 on rank 0 and 2 on rank 1"),
        ("window", "padding of Conv2d.0 is 1 on rank 0 and 2 on rank 1"),
        ("eps", "eps of BatchNorm2d.1 is 1e-05 on rank 0 and 0.0001 on rank 1"),
        ("momentum", "momentum of BatchNorm2d.1 is 0.9 on rank 0 and 0.5 on rank 1"),
        ("dtype", "parameters is '390 of float32' on rank 0 and '390 of float64' on rank 1"),
        ("wire", "wire_dtype is 'float32' on rank 0 and 'float16' on rank 1"),
    ],
)
def test_sizes_and_settings_of_layers_are_compared(results, name, words):
    for text in results:
        assert words in text
        assert not text or "ranks 0 and 1" in text
        assert bool(text) == (name != "none")


def series_by_rank(comm):
    manual_seed(4)
    net = nn.Sequential(nn.SLSTM(2, 5), nn.SLSTM(5, 4), nn.SLinear(4, 1))
    twin = copy.deepcopy(net)
    ddp = DDPSequential(net, config_of(comm), average=False)
    for step in range(6):
        x, y = batch(net, 1, 10 * comm.rank + step)
        y[0, 0] = np.nan if step == 3 else y[0, 0]
        backpropagate(ddp, x, y)
        backpropagate(twin, x, y)
        ddp.step()
        twin.load_state_dict(ddp.state_dict())
    equal, memory = same_everywhere(ddp), ddp.get_lstm_states()
    memories = comm.all_gather_object(memory[1][0].tolist())
    smoothed = ddp.smoother()
    return {
        "equal": equal,
        "memories": len({tuple(values) for values in memories}),
        "twin's": np.array_equal(smoothed, twin.smoother()) and np.array_equal(smoothed, ddp.get_outputs_smoother()),
        "steps": smoothed[0].size,
        "states": np.array_equal(ddp.get_lstm_states(2)[0], twin.get_lstm_states(2)[0]),
        "cleared": not any(a.any() for state in ddp.get_lstm_states().values() for a in state),
    }


@on_ranks(series_by_rank, 1, 2, real=2)
def test_every_rank_smooths_its_own_series(results):
    """The parameters are those of all, memory and record those of a network that saw the rank's series alone."""
    for result in results:
        expected = {"equal": True, "memories": len(results), "twin's": True, "steps": 6, "states": True}
        assert result == expected | {"cleared": True}
