"""What DDPSequential can do beside one all-reduce a step, on 1, 2 and 3 real ranks."""

import copy
import gc
import os
import time
import warnings
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp import cuda, manual_seed
from pytagi_ddp.distributed import NonFiniteError
from pytagi_ddp.distributed.compare import ReplicaMismatchError
from pytagi_ddp.nn import DDPConfig, DDPSequential, EvidenceSchedule
from tests.learning import backpropagate, learn
from tests.mpi.ddp_networks import (
    WITHOUT_BATCH_NORM,
    batch,
    difference,
    digest,
    error_of,
    same_everywhere,
    shard,
    shares,
    with_batch_norm,
)
from tests.mpi.shared import on_ranks


def no_sync(comm):
    rank, size, results = comm.rank, comm.world_size, {}
    for name in ("Linear", "Conv2d", "LayerNorm", "ResNetBlock with shortcut", "MixtureReLU"):
        manual_seed(7)
        net = WITHOUT_BATCH_NORM[name]()
        reference = copy.deepcopy(net)
        ddp = DDPSequential(net, DDPConfig(backend=comm.backend), average=False)
        worst = 0.0
        for step in range(2):
            x, y = batch(net, 6 * size, step)
            mine, calls = slice(6 * rank, 6 * rank + 6), ddp.communicator.reduce_calls
            with ddp.no_sync():
                backpropagate(ddp, x[mine][:2], y[mine][:2])
                backpropagate(ddp, x[mine][2:3], y[mine][2:3])
            learn(ddp, x[mine][3:], y[mine][3:])
            learn(reference, x, y)
            worst = max(worst, difference(reference.state_dict(), ddp.state_dict()))
            net.load_state_dict(reference.state_dict())
        results[name] = [worst, ddp.communicator.reduce_calls - calls, same_everywhere(ddp)]
    with ddp.no_sync():
        results["refused"] = error_of(ddp.step, RuntimeError)
    return results


@on_ranks(no_sync, 1, 2, 3, real=2)
def test_micro_batches_are_one_batch(results):
    for result in results:
        assert "no_sync()" in result.pop("refused")
        assert len(result) == 5
        for name, (worst, calls, equal) in result.items():
            assert worst < 2e-5, f"{name}: parameters differ by {worst:.2g}"
            assert calls == 1 and equal


def join(comm, batch_norm):
    rank, size, results = comm.rank, comm.world_size, {}
    manual_seed(1)
    net = with_batch_norm() if batch_norm else WITHOUT_BATCH_NORM["Conv2d"]()
    reference = copy.deepcopy(net)
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend), average=False, sync_batch_norm=batch_norm)
    batches = [3 - r for r in range(size)]  # batches of each rank; the last one may have one batch only
    x, y = batch(net, 4 * 3 * size, 5)

    def rows(r, step):
        return slice(4 * (3 * r + step), 4 * (3 * r + step) + 4)

    with ddp.join():
        for step in range(batches[rank]):
            learn(ddp, x[rows(rank, step)], y[rows(rank, step)])
    results["calls"] = ddp.communicator.reduce_calls
    for step in range(3):
        union = [rows(r, step) for r in range(size) if step < batches[r]]
        learn(reference, np.concatenate([x[i] for i in union]), np.concatenate([y[i] for i in union]))
    results["difference"] = difference(reference.state_dict(), ddp.state_dict())
    results["equal"] = same_everywhere(ddp)
    return results


@on_ranks(join, 1, 2, 3, real=3)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_join_learns_the_union_of_what_was_seen(results, batch_norm):
    for result in results:
        assert result["difference"] < 1e-4
        assert result["equal"]
        # A step each, and one to see that nobody has more; statistics of two layers, and a look for more passes each
        # step.
        assert result["calls"] == (4 + (3 * 2 + 4 * (len(results) > 1) if batch_norm else 0))


def synchronised(comm):
    size, results = comm.world_size, {}
    manual_seed(4)
    net = with_batch_norm()
    reference = copy.deepcopy(net)
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend), average=False, sync_batch_norm=True)
    sizes = shares([3, 2, 4], size)
    mine = shard(sizes, comm.rank)
    worst = 0.0
    for step in range(3):
        x, y = batch(net, sum(sizes), step)
        learn(ddp, x[mine], y[mine])
        learn(reference, x, y)
        worst = max(worst, difference(reference.state_dict(), ddp.state_dict()))
        if step == 0:
            ours, theirs = (n.get_norm_mean_var() for n in (net, reference))
            results["statistics"] = max(
                np.abs(np.array(a) - np.array(b)).max()
                for key in ours
                for a, b in zip(ours[key], theirs[key], strict=True)
            )
    results["difference"], results["equal"] = worst, same_everywhere(ddp)
    return results


@on_ranks(synchronised, 1, 2, 3, real=3)
def test_synchronised_batch_norm_is_one_process_with_the_global_batch(results):
    for result in results:
        assert result["difference"] < 1e-4
        assert result["statistics"] < 2e-6
        assert result["equal"]


def merged_by_precision(prior, posteriors):
    """In float64, of (means, variances): the rule of the page."""
    (m0, s0), (m, s) = prior, np.moveaxis(np.array(posteriors), 1, 0)
    gained = (1 / s - 1 / s0).sum(0)
    variance = 1 / np.where(gained > 0, 1 / s0 + gained, (1 / s).mean(0))
    learnt = (s != s0).any(0) | (m != m0).any(0)
    return np.where(learnt, (m / s).sum(0) / (1 / s).sum(0), m0), np.where(learnt, variance, s0)


def merge(comm, rule, every):
    rank, size, results = comm.rank, comm.world_size, {}
    manual_seed(2)
    net = with_batch_norm()
    alone = copy.deepcopy(net)  # what this rank would learn without the others
    prior = net.arena.theta.copy().astype(float)
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend), every=every, merge=rule)
    for step in range(every):
        x, y = batch(net, 4 * size, step)
        for one in (ddp, alone):
            backpropagate(one, x[4 * rank : 4 * rank + 4], y[4 * rank : 4 * rank + 4])
        alone.step()
        results["steps before"] = ddp.steps_since_merge
        ddp.step()
    thetas = np.array(comm.all_gather_object(alone.arena.theta.copy()), float)
    expected = thetas.mean(0) if rule == "mean" else np.array(merged_by_precision(prior, thetas))
    scale = np.abs(expected).max(1, keepdims=True)
    results["parameters"] = (np.abs(net.arena.theta - expected) / scale).max()
    statistics = np.mean(comm.all_gather_object(alone.arena.statistics.copy()), 0)
    results["statistics"] = np.abs(net.arena.statistics - statistics).max()
    results["rest"] = [same_everywhere(ddp), ddp.steps_since_merge, ddp.communicator.reduce_calls]
    return results


@on_ranks(merge, 1, 2, 3, real=2)
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("rule", ["mean", "precision_weighted"])
def test_posteriors_are_merged_after_each_step_or_a_few(results, rule, every):
    for result in results:
        assert result["steps before"] == every - 1
        assert result["parameters"] < 2e-6
        assert result["statistics"] < 1e-6
        assert result["rest"] == [True, 0, 1]


def bounded_wait(comm):
    """The last rank sleeps before a merge, while the others make steps; they would wait for ever without `max_wait`."""
    rank, size, results = comm.rank, comm.world_size, {}
    late = size > 1 and rank == size - 1
    net = with_batch_norm()
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend), every=2, max_wait=0.05)
    alone, prior = copy.deepcopy(net), net.arena.theta.astype(float)

    def step(number, ddp=ddp):
        x, y = batch(net, 4 * size, number)
        mine = slice(4 * rank, 4 * rank + 4)
        backpropagate(ddp, x[mine], y[mine])
        start = time.perf_counter()
        ddp.step()
        return time.perf_counter() - start

    def theta_of_all(own):
        return np.array(comm.all_gather_object(own.arena.theta.copy()), float)

    if late:
        comm.barrier()  # the others have made four steps
    for number in range(2 if late or size == 1 else 4):
        step(number, alone)
        seconds = step(number)
        if number == 1:
            results["wait"] = seconds
            sent = alone.arena.theta.copy()
        elif number > 1:
            results["after"] = seconds
    results["steps"] = ddp.steps_since_merge
    if size > 1 and not late:
        results["load"] = error_of(lambda: ddp.load_state_dict(net.state_dict()), RuntimeError)
        results["update_bn"] = error_of(lambda: ddp.update_bn([]), RuntimeError)
        comm.barrier()
    ddp.merge()
    sent_of_all, ends = np.array(comm.all_gather_object(sent), float), theta_of_all(alone)
    first = merged_by_precision(prior, sent_of_all)
    rebased = []
    for (m_r, s_r), (m, s) in zip(sent_of_all, ends, strict=True):
        if (s_r != s).any():
            precision = 1 / first[1] + 1 / s - 1 / s_r
            rebased.append(((first[0] / first[1] + m / s - m_r / s_r) / precision, 1 / precision))
    expected = merged_by_precision(first, rebased) if rebased else first
    scale = np.abs(expected).max(1, keepdims=True)
    results["parameters"] = (np.abs(net.arena.theta - expected) / scale).max()
    gained = (1 / ends[:, 1] - 1 / prior[1]).sum(0)
    everywhere = (1 / sent_of_all[:, 1] > 1 / prior[1]).all(0) & (1 / ends[:, 1] > 1 / sent_of_all[:, 1]).any(0)
    once = np.abs(1 / (1 / prior[1] + gained) / net.arena.theta[1] - 1)[everywhere]
    results["evidence"] = [len(once), once.max(initial=0)]
    results["same"] = [same_everywhere(ddp), ddp.steps_since_merge]
    # A merge that ends between two steps: the last rank comes while the others go on.
    if late:
        comm.barrier()
    for number in (10, 11):
        step(number)
    if size > 1 and not late:
        comm.barrier()
    for number in range(20, 400):
        if ddp.steps_since_merge < 2:
            break
        time.sleep(2e-3)
        step(number)
    results["came"] = ddp.steps_since_merge < 2
    ddp.request_stop()
    ddp.merge()
    results["end"] = [same_everywhere(ddp), ddp.steps_since_merge, ddp.stop_requested]
    return results


def deleted(comm):
    ddp = DDPSequential(WITHOUT_BATCH_NORM["Linear"](), DDPConfig(backend=comm.backend), every=2, max_wait=1.0)
    ranks = ddp._exchange._ranks
    before = ranks.closed
    del ddp
    deadline = time.monotonic() + 10
    while not ranks.closed and time.monotonic() < deadline:  # nothing happens while another thread collects
        gc.collect()
        time.sleep(2e-3)
    return [before, ranks.closed, comm.closed]


@on_ranks(deleted, 1, 2, real=2)
def test_a_network_that_is_deleted_gives_its_group_back(results):
    assert results == [[False, True, False]] * len(results)


@on_ranks(bounded_wait, 1, 2, 3, real=3)
def test_a_late_rank_is_waited_for_so_long_and_counts_once(results):
    for rank, result in enumerate(results):
        assert result["parameters"] < 5e-6
        assert result["same"] == [True, 0]
        assert result["end"] == [True, 0, True]
        assert result["came"]
        if len(results) > 1:
            count, worst = result["evidence"]
            assert count > 100 and worst < 1e-4, "the evidence of every rank, once"
        if rank < len(results) - 1:
            assert result["wait"] >= 0.05 and result["steps"] == 4
            assert "call merge() on every rank before these are loaded" in result["load"]
            assert "call merge() on every rank first" in result["update_bn"]


def join_with_merges(comm, options):
    net = WITHOUT_BATCH_NORM["Conv2d"]()
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend), every=2, **options)
    x, y = batch(net, 2, comm.rank)
    schedule = EvidenceSchedule(ddp, 10, 1)
    with ddp.join():
        for _ in range(1 + 2 * comm.rank):  # odd: everyone has a step left that was not merged
            learn(ddp, x, y)
    return {"equal": same_everywhere(ddp), "left": ddp.steps_since_merge, "steps": schedule.steps}


@on_ranks(join_with_merges, 1, 3, real=3)
@pytest.mark.parametrize("options", [{"merge": "mean"}, {"max_wait": 0.02}])
def test_join_with_merges(results, options):
    assert results == [{"equal": True, "left": 0, "steps": 2 * len(results) - 1}] * len(results)


def forgetting(comm, every):
    rank, size, results = comm.rank, comm.world_size, {}
    manual_seed(2)
    net = with_batch_norm()
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend), every=every)
    for step in range(every + 1):
        x, y = batch(net, 4 * size, step)
        backpropagate(ddp, x[4 * rank : 4 * rank + 4], y[4 * rank : 4 * rank + 4])
        if step == 0:
            results["waiting"] = error_of(lambda: ddp.forget_evidence(2), RuntimeError)
        ddp.step()
    if every > 1:
        results["apart"] = error_of(lambda: ddp.forget_evidence(2), RuntimeError)
        ddp.merge()
    if size > 1:
        results["other"] = error_of(lambda: ddp.forget_evidence(2 + (rank == 1)), ValueError)
    results["factor"] = error_of(lambda: ddp.forget_evidence(np.nan), ValueError)
    alone = copy.deepcopy(net)
    alone.forget_evidence(2)
    ddp.forget_evidence(2)
    results["equal"] = [np.array_equal(alone.arena.theta, net.arena.theta), same_everywhere(ddp)]
    learn(ddp, x[:2], y[:2])
    return results


@on_ranks(forgetting, 1, 2, 3, real=2)
@pytest.mark.parametrize("every", [1, 2])
def test_all_ranks_forget_together(results, every):
    for result in results:
        assert "rank 0 has deltas or steps that the other ranks do not have: call step()" in result["waiting"]
        assert every == 1 or "merge()" in result["apart"]
        assert len(results) == 1 or "factor is '2' on rank 0 and '3' on rank 1" in result["other"]
        assert "factor must be in" in result["factor"]
        assert result["equal"] == [True, True]


def compression(comm, dtype):
    rank, size = comm.rank, comm.world_size
    manual_seed(6)
    net = with_batch_norm()
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend, wire_dtype=dtype), average=False)
    x, y = batch(net, 4 * size, 1)
    backpropagate(ddp, x[4 * rank : 4 * rank + 4], y[4 * rank : 4 * rank + 4])
    net.arena.delta[1] *= 1e-12  # would vanish in float16 as it is
    mine = net.arena.buffer.copy()
    if rank == 0:
        ddp.request_stop()
    ddp.step()
    parts = np.array(comm.all_gather_object(mine))[:, : 2 * net.num_parameters].reshape(size, 2, -1)
    error = np.abs(net.arena.delta - parts.sum(0)).max(1) / np.abs(parts).sum(0).max(1)
    return [error.tolist(), same_everywhere(ddp), ddp.stop_requested]


@on_ranks(compression, 1, 2, 3, real=2)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-6), ("float16", 2**-11), ("bfloat16", 2**-8)])
def test_compression_to_half_precision(results, dtype, bound):
    for errors, equal, stopped in results:
        assert max(errors) <= (bound if len(results) > 1 else 0)
        assert equal and stopped
        assert len(results) == 1 or dtype != "bfloat16" or max(errors) > 2**-11  # it was really sent as such


def buckets(comm):
    results = {}
    for count in (1, 2, 4, 100):
        manual_seed(8)
        net = with_batch_norm()
        ddp = DDPSequential(net, DDPConfig(backend=comm.backend, buckets=count), average=False)
        for step in range(3):
            sizes = shares([4, 2, 3 * (step != 1)], comm.world_size)  # the third rank has none in the second step
            mine = shard(sizes, comm.rank)
            x, y = batch(net, sum(sizes), step)
            if sizes[comm.rank]:
                backpropagate(ddp, x[mine], y[mine])
            ddp.step()
        results[str(count)] = [digest(ddp), same_everywhere(ddp), ddp.communicator.reduce_calls]
    return results


@on_ranks(buckets, 1, 2, 3, real=3)
def test_reduction_in_buckets_gives_the_same(results):
    for result in results:
        assert len({bits for bits, _, _ in result.values()}) == 1
        assert all(equal for _, equal, _ in result.values())
        assert [calls for _, _, calls in result.values()] == [3, 3 * 5, 3 * 5, 3 * 9]  # a layer is not cut


def parts_of_passes_run_again(comm, blocks):
    """Of the numbers of each reduction, how many were not there yet when it began; passes of several sizes."""
    manual_seed(8)
    net = with_batch_norm(2)
    net.checkpoint_blocks = blocks
    twin = copy.deepcopy(net)
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend, buckets=100), average=False)
    begin, missing = ddp.communicator.start_all_reduce, []

    def watched(values):
        first = (values.ctypes.data - net.arena.delta.ctypes.data) // values.itemsize
        whole = twin.arena.delta.reshape(-1)[first : first + values.size]
        missing.append(int(np.count_nonzero(values != whole)))
        return begin(values)

    sizes = [2, 2, 2, 3, 2]  # the last forward pass is a replay, behind one that was walked through
    with patch.object(ddp.communicator, "start_all_reduce", watched):
        for step in range(3):
            x, y = batch(net, sum(sizes), 10 * step + comm.rank)
            rows = [shard(sizes, k) for k in range(len(sizes))]
            with twin.accumulate():
                for part in rows:
                    backpropagate(twin, x[part], y[part])
            with ddp.no_sync():
                for part in rows[:-1]:
                    backpropagate(ddp, x[part], y[part])
            learn(ddp, x[rows[-1]], y[rows[-1]])
            twin.load_state_dict(ddp.state_dict())
    return [missing, same_everywhere(ddp)]


@on_ranks(parts_of_passes_run_again, "serial", 2)
@pytest.mark.parametrize("blocks", [False, True])
def test_no_reduction_begins_before_its_deltas_are_there(results, blocks):
    for missing, equal in results:
        assert missing == [0] * 3 * 8  # means and variances of four parts
        assert equal


CONTRADICTIONS = [
    ({"every": 0}, {}),
    ({"every": 2, "merge": "median"}, {}),
    ({"every": 2, "sync_batch_norm": True}, {}),
    ({"every": 2}, {"buckets": 2}),
    ({"merge": "mean"}, {"wire_dtype": "float16"}),
    ({}, {"buckets": 0}),
    ({}, {"wire_dtype": "int8"}),
    ({}, {"wire_dtype": "float16", "buckets": 2}),
]


def test_options_that_contradict_each_other_are_refused():
    def construct(options, config):
        DDPSequential(WITHOUT_BATCH_NORM["Linear"](), DDPConfig(backend="serial", **config), **options)

    texts = [error_of(partial(construct, *both), ValueError) for both in CONTRADICTIONS]
    assert all(texts) and len(set(texts)) == 8


def compare_replicas(comm, change):
    with patch.dict(os.environ, PYTAGI_DDP_DEBUG="1"):
        try:
            net = with_batch_norm()
            ddp = DDPSequential(net, DDPConfig(backend=comm.backend), average=change != "options" or comm.rank == 0)
            if change == "parameters" and comm.rank == comm.world_size - 1:
                net.layers[4].parameters.w.mu[3] += 1
            x, y = batch(net, 4, comm.rank)
            backpropagate(ddp, x, y)
            if change == "delta" and comm.rank == 0:
                net.layers[4].parameters.w.delta_mu_sum[2] = np.inf
            ddp.step()
        except (ValueError, ReplicaMismatchError, NonFiniteError) as error:
            return str(error)
    return ""


@on_ranks(compare_replicas, 2, threads=False)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("options", ["average is True on rank 0 and False on rank 1"]),
        ("parameters", ["ranks 0 and 1 have different networks in step()", "Linear.4/mu_w"]),
        ("delta", ["not finite", "a delta of layer", "Linear(108,4)"]),
        ("nothing", []),
    ],
)
def test_replicas_are_compared(results, change, words):
    for text in results:
        assert all(word in text for word in words)
        assert bool(text) == (change != "nothing")


def default_of_pytagi(comm):
    """Its default backend is "nccl": the step over the stand-in, and the warnings that this rank saw."""
    rank, size = comm.rank, comm.world_size
    manual_seed(7)
    net = WITHOUT_BATCH_NORM["Linear"]()
    reference = copy.deepcopy(net)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ddp = DDPSequential(net, DDPConfig(list(range(size)), "nccl", rank, size), False)
    x, y = batch(net, 3 * size, 0)
    learn(ddp, x[3 * rank : 3 * rank + 3], y[3 * rank : 3 * rank + 3])
    learn(reference, x, y)
    ddp.communicator.barrier()
    return (
        ddp.communicator.backend,
        difference(reference.state_dict(), net.state_dict()),
        [str(w.message) for w in caught],
    )


@pytest.mark.skipif(cuda.is_nccl_available(), reason="NCCL would start")
@on_ranks(default_of_pytagi, 1, 2, threads=False)
def test_nccl_without_a_gpu_is_mpi_with_one_warning(results):
    for rank, (backend, worst, said) in enumerate(results):
        assert backend == ("mpi" if len(results) > 1 else "serial") and worst < 2e-5
        assert len(said) == (rank == 0)
        assert rank or "instead of NCCL: backend 'nccl' cannot be used on rank 0" in said[0]
