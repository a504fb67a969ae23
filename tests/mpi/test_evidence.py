"""A joint likelihood with weights and an `EvidenceSchedule`, on several ranks, in shards, stages and threads.

The step is that of one process with all samples, and the pull of all counts once.
"""

from functools import partial
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp import likelihoods as lk
from pytagi_ddp import manual_seed
from pytagi_ddp.distributed import DataParallel, PipelineSequential, run_threads
from pytagi_ddp.nn import (
    DDPConfig,
    DDPSequential,
    EvidenceSchedule,
    FSDPSequential,
    LayerNorm,
    Linear,
    ReLU,
    Sequential,
)
from tests.mpi.ddp_networks import difference, error_of, same_everywhere, shard
from tests.mpi.shared import on_ranks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
Y = [RNG.integers(-1, 3, 12), RNG.poisson(2, 12).astype(float), RNG.normal(size=12)]
WEIGHT = RNG.uniform(0.5, 2, 12)
LIKELIHOOD = lk.Joint(lk.Categorical(3), lk.Poisson(), lk.StudentT(3, 0.5))
STEPS = 7  # of which the first two are the first epoch


def network() -> Sequential:
    manual_seed(3)
    return Sequential(Linear(3, 16), LayerNorm([16]), ReLU(), Linear(16, 5))


def observe(net, schedule, rows):
    LIKELIHOOD.observe(net, [part[rows] for part in Y], weight=schedule.weight * WEIGHT[rows])


def steps(net, mine=slice(None), number=STEPS):
    """Steps with a new schedule, which is returned; the ranks with an odd number have no samples in the last one."""
    schedule = EvidenceSchedule(net, steps_per_epoch=2, epochs=3)
    for step in range(number):
        rows = mine if step < number - 1 else slice(0, 5) if mine.start in (None, 0) else slice(0, 0)
        net(X[rows])
        observe(net, schedule, rows)
        net.backward()
        net.step()
    return schedule


def trained():
    net = network()
    schedule = steps(net)
    return net.state_dict(), schedule.state_dict()


def of_ranks(comm):
    mine = shard({1: [12], 2: [5, 7]}.get(comm.world_size, [5, 4, 3]), comm.rank)
    config = DDPConfig(backend=comm.backend)
    ways = {
        "sum": DDPSequential(network(), config, average=False),
        "buckets": DDPSequential(network(), DDPConfig(backend=comm.backend, buckets=2), average=False),
        "ZeRO-3": FSDPSequential(network(), config, average=False, min_num_params=60),
        "ZeRO-2": FSDPSequential(network(), config, average=False, reshard_after_forward=False),
    }
    (expected, state), found = trained(), {}
    for name, net in ways.items():
        schedule = steps(net, mine)
        net.step()  # without samples on any rank
        moments = net.state_dict()  # with ZeRO-3, of rank 0
        equal = same_everywhere(net) if isinstance(net, DDPSequential) else True
        found[name] = [difference(expected, moments) if moments else 0.0, equal, schedule.state_dict() == state]
    return found


@on_ranks(of_ranks, 1, 2, 3, real=2)
def test_ranks_make_the_step_of_one_process(results):
    for result in results:
        for name, (worst, equal, schedule) in result.items():
            assert worst < 1e-4 and equal and schedule, (name, result)


WEIGHTS, BATCHES, NOISE = 4, 40, 5.0


def linear(comm, way):
    """Each rank has 40 batches of 4 one-hot inputs in an epoch: the posterior of the weights is known."""
    net = Sequential(Linear(WEIGHTS, 1, bias=False))
    options = {"average": {"average": True}, "mean": {"every": 3, "merge": "mean"}, "weighted": {"every": 3}}[way]
    ddp = DDPSequential(net, DDPConfig(backend=comm.backend), **options)
    likelihood, epochs = lk.Gaussian(NOISE**0.5), 8 * max(3, comm.world_size)
    schedule = EvidenceSchedule(ddp, BATCHES, epochs, count=1, first=1, last=1)
    y = np.random.default_rng(comm.rank).normal(1, NOISE**0.5, (BATCHES, WEIGHTS)).astype(np.float32)
    for step in range(epochs * BATCHES):
        ddp(np.eye(WEIGHTS))
        likelihood.observe(ddp, y[step % BATCHES], weight=schedule.weight)
        ddp.backward()
        ddp.step()
    if "every" in options:
        ddp.merge()
    tau = WEIGHTS + comm.world_size * BATCHES / NOISE
    m, s = net.arena.theta
    mean = sum(part.sum(0) for part in comm.all_gather_object(y)) / NOISE / tau
    return [(s * tau).tolist(), np.abs((m - mean) * np.sqrt(tau)).tolist(), same_everywhere(ddp)]


@on_ranks(linear, 1, 2, 3, real=2)
@pytest.mark.parametrize("way", ["average", "mean", "weighted"])
def test_the_pull_of_all_ranks_counts_once(results, way):
    for variances, means, equal in results:
        np.testing.assert_allclose(variances, 1, rtol=0.015)
        assert max(means) < 0.5
        assert equal


def empty_batches(comm):
    """Ranks that take steps alone between merges; one of them has no samples in every second step."""
    ddp = DDPSequential(network(), DDPConfig(backend=comm.backend), every=2)
    schedule, merged = EvidenceSchedule(ddp, 2, 3), []
    for step in range(5):
        rows = slice(0, 0) if comm.rank == 1 and step % 2 else slice(0, 3)
        ddp(X[rows])
        observe(ddp, schedule, rows)
        ddp.backward()
        ddp.step()
        if not ddp.steps_since_merge:
            merged += np.asarray(ddp._exchange.pooled)[:2].tolist()
    ddp.merge()
    return schedule.steps, same_everywhere(ddp), merged


@on_ranks(empty_batches, 2)
def test_ranks_that_merge_stay_at_the_same_step(results):
    assert results == [[5, True, [9, 2, 9, 2]]] * 2  # samples and ranks that have any, in two merges


def observe_in_parts(net, schedule):
    def observe(states, rows, deltas):
        LIKELIHOOD.update(states, [part[rows] for part in Y], deltas, weight=schedule.weight * WEIGHT[rows])

    for step in range(STEPS):
        x = X if step < STEPS - 1 else X[:5]
        net.forward_backward(x if net.is_first else None, observe)
        net.step()


def of_stages(comm):
    expected, found = trained()[0], []
    for schedule in ("GPipe", "1F1B"):
        options = {"average": False, "n_microbatches": 2, "schedule": schedule}
        net = PipelineSequential(network(), DDPConfig(backend=comm.backend), **options)
        if schedule == "GPipe":
            steps(net)
        else:
            observe_in_parts(net, EvidenceSchedule(net, 2, 3))
        state = net.state_dict()
        found.append(difference(expected, state) if state else 0.0)
    return max(found)


@on_ranks(of_stages, "serial", 2)
def test_each_stage_pulls_its_layers(results):
    assert max(results) < 1e-4


def test_threads_make_the_step_of_one():
    net = DataParallel(network(), ["cpu"] * 3, average=False)
    expected, state = trained()
    schedule = steps(net)
    assert difference(expected, net.model.state_dict()) < 1e-4
    assert schedule.state_dict() == state
    for replica in net._ranks:
        assert replica.model.schedule.state_dict() == state
        np.testing.assert_array_equal(replica.model.arena.theta, net.model.arena.theta)
    schedule.epochs = 9
    net(X)
    assert [replica.model.schedule.epochs for replica in net._ranks] == [9] * 3
    schedule.remove()
    net(X)
    assert [replica.model.schedule for replica in net._ranks] == [None] * 3
    net.close()


def other_schedules(comm):
    net = network()
    EvidenceSchedule(net, 2, 3 + comm.rank)
    made = error_of(lambda: DDPSequential(net, DDPConfig(backend=comm.backend)), ValueError)
    ddp = DDPSequential(network(), DDPConfig(backend=comm.backend), average=False)
    EvidenceSchedule(ddp, 2 + comm.rank, 3)
    return made, error_of(lambda: ddp.join().__enter__(), ValueError)


@on_ranks(other_schedules, 2)
def test_other_schedules_are_noticed(results):
    for made, joined in results:
        assert "the schedule is 'EvidenceSchedule(" in made
        assert "call join with different arguments: the EvidenceSchedule is {'steps_per_epoch': 2" in joined


def schedules_after_wrapping(comm, way, case):
    """What the first step says, and whether the ranks are equal after further steps with equal schedules."""
    net = {"ddp": DDPSequential, "fsdp": FSDPSequential}[way](network(), DDPConfig(backend=comm.backend), average=False)
    learn, compared = partial(one_step, net), []
    learn()
    schedule = EvidenceSchedule(net, 2 if case == "count" else 2 + comm.rank, 3)
    if case == "count":
        schedule.count = 3.0 + comm.rank
    error = error_of(learn, ValueError)
    EvidenceSchedule(net, 2, 3)
    net.parameters_changed()
    gather = net.communicator.all_gather_object
    with patch.object(net.communicator, "all_gather_object", lambda *a: compared.append(1) or gather(*a)):
        for _ in range(3):
            learn()
    return error, len(compared), way == "fsdp" or same_everywhere(net)


def one_step(net):
    rows = shard([5, 4, 3][: net.world_size], net.rank)
    net(X[rows])
    lk.Gaussian(0.5).observe(net, np.zeros(5 * len(X[rows])))
    net.backward()
    net.step()


@on_ranks(schedules_after_wrapping, 2)
@pytest.mark.parametrize("case", ["steps", "count"])
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_other_schedules_after_wrapping_are_noticed_in_the_first_step(results, way, case):
    for said, comparisons, same in results:
        assert "call step() with different arguments: the EvidenceSchedule is {'steps_per_epoch': 2" in said
        assert (comparisons, same) == (1, True), way


def test_a_schedule_of_one_rank_only_is_noticed():
    def train():
        net = DDPSequential(network(), average=False)
        if net.rank == 1:
            EvidenceSchedule(net, 2, 3)
        one_step(net)
        one_step(net)

    with pytest.raises(ValueError, match="is new on 1 of 2 ranks, also on rank 1: make the same one on every rank"):
        run_threads(train, 2)
