"""BatchNorm2d on ranks that are in other modes, or do other things, than the others; and norms that are frozen."""

import numpy as np
import pytest

from pytagi_ddp import manual_seed
from pytagi_ddp.distributed import (
    DDPConfig,
    DDPSequential,
    FSDPSequential,
    PipelineSequential,
    init_device_mesh,
    initialize,
    run_threads,
)
from pytagi_ddp.nn import BatchNorm2d, Linear, OutputUpdater, ReLU, Sequential
from tests.learning import backpropagate
from tests.mpi.ddp_networks import batch, difference, error_of


def network():
    manual_seed(3)
    layers = [Linear(4, 6), ReLU(), BatchNorm2d(6), Linear(6, 5), ReLU(), BatchNorm2d(5), Linear(5, 2)]
    return Sequential(*layers)


def learn(net, samples, seed):
    if samples:
        backpropagate(net, *batch(net if isinstance(net, Sequential) else net.model, samples, seed))
    net.step()


def freeze(net, layers):
    for k in layers:
        net.layers[k].training = False


def whole_state(net):
    if isinstance(net, FSDPSequential):
        with net.unshard():
            return net.model.state_dict()
    return net.state_dict()


def one_rank_without_samples(kind, frozen):
    net = kind(network(), average=False, sync_batch_norm=True)
    learn(net, 6 * (net.rank == 0), seed=0)
    freeze(net.model, frozen)
    learn(net, 6 * (net.rank == 1), seed=1)
    return whole_state(net)


@pytest.mark.parametrize("frozen", [[2], [5], [2, 5]])
@pytest.mark.parametrize("kind", [DDPSequential, FSDPSequential])
def test_frozen_norms_of_synchronised_ranks(kind, frozen):
    alone = network()
    learn(alone, 6, seed=0)
    running = [alone.layers[k].running_mean.copy() for k in frozen]
    freeze(alone, frozen)
    learn(alone, 6, seed=1)
    assert all(np.array_equal(alone.layers[k].running_mean, a) for k, a in zip(frozen, running, strict=True))
    first, second = run_threads(one_rank_without_samples, 2, kind, frozen)
    assert first == second
    assert difference(alone.state_dict(), first) < 1e-5


def evaluates_before_step(mode):
    net = DDPSequential(network(), average=False)
    backpropagate(net, *batch(net.model, 6, seed=initialize().rank))
    if net.rank:
        getattr(net, mode)()
    net.step()
    return net.state_dict()


def test_a_step_of_a_rank_in_evaluation_mode_moves_its_statistics():
    for state in run_threads(evaluates_before_step, 2, "eval"):
        assert state == run_threads(evaluates_before_step, 2, "train")[0]


def passes_of_other_numbers(kind):
    net = kind(network(), average=False, sync_batch_norm=True)
    x, _ = batch(net.model, 6, seed=7)
    for step in range(3):
        with net.no_sync():
            net(x[net.rank :])
            if net.rank:  # the others go on to the next batch
                nothing = np.zeros(5 * net.model.out_shape.size)
                net.model.set_delta_z(nothing, nothing)
                net.backward()
        learn(net, 3 + net.rank, seed=10 * step + net.rank)
        net.predict(x, batch_size=2 + 2 * net.rank)
    return whole_state(net)


def test_passes_of_synchronised_ranks_belong_together_whatever_else_these_do():
    sharded, replicated = (run_threads(passes_of_other_numbers, 2, kind) for kind in (FSDPSequential, DDPSequential))
    assert sharded == replicated


def keeps_frozen(kind):
    net = kind(network())
    norm = next((layer for layer in net.model.layers if isinstance(layer, BatchNorm2d)), BatchNorm2d(1))
    norm.training = False
    x = batch(network(), 12, seed=1)[0]
    net.predict(x)
    net.update_bn([x])
    return norm.training


@pytest.mark.parametrize("kind", [DDPSequential, FSDPSequential, PipelineSequential])
def test_frozen_norms_stay_frozen(kind):
    assert run_threads(keeps_frozen, 2, kind) == [False, False]


def norms_of_a_rank(kind, evaluates):
    mesh = {"mesh": init_device_mesh((2, 2), ("pipe", "data"))} if kind is PipelineSequential else {}
    net = kind(network(), **mesh)
    freeze(net.model, [k for k, layer in enumerate(net.model.layers) if isinstance(layer, BatchNorm2d)][:1])
    if net.rank == net.world_size - 1:
        net.eval() if evaluates else net.train()
    before = whole_state(net)
    with pytest.raises(ValueError, match=r"update_bn\(\).* list of unfrozen BatchNorm2d is "):
        net.update_bn([batch(network(), 12, seed=1)[0]])
    return whole_state(net) == before


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("kind", [DDPSequential, FSDPSequential, PipelineSequential])
def test_ranks_whose_frozen_norms_differ_take_no_statistics(kind, evaluates):
    assert all(run_threads(norms_of_a_rank, 4 if kind is PipelineSequential else 2, kind, evaluates))


def waits_amid_passes(kind):
    net = kind(network(), average=False, sync_batch_norm=True)
    with net.no_sync():
        for seed in range(1 + net.rank):
            backpropagate(net, *batch(net.model, 4, seed))
    net.barrier()
    net.step()
    return whole_state(net)


def test_a_synchronised_rank_that_waits_takes_part_in_the_passes_of_others():
    sharded, replicated = (run_threads(waits_amid_passes, 2, kind) for kind in (FSDPSequential, DDPSequential))
    assert difference(sharded[0], replicated[0]) < 1e-5
    assert replicated[0] == replicated[1]


WAYS = {
    "ddp": lambda net: DDPSequential(net),
    "buckets": lambda net: DDPSequential(net, DDPConfig(buckets=2)),
    "synchronised": lambda net: DDPSequential(net, sync_batch_norm=True),
    "weighted merges": lambda net: DDPSequential(net, every=2),
    "mean merges": lambda net: DDPSequential(net, every=2, merge="mean"),
    "shards": lambda net: FSDPSequential(net),
    "whole parameters": lambda net: FSDPSequential(net, reshard_after_forward=False),
    "pipeline": lambda net: PipelineSequential(net, n_microbatches=2),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_one_rank_cannot_learn_changes_nothing_anywhere(way):
    """Neither parameters nor running statistics, which one value of 1e20 could make infinite for good."""

    def program():
        net = WAYS[way](network())
        piped = way == "pipeline"
        model = net.stage if piped else net.model
        rank, moved, outcomes = net.communicator.rank, [], []

        def state():
            own = {key: [array.tobytes() for array in arrays] for key, arrays in net.state_dict().items()}
            return own if "merges" in way else net.communicator.all_gather_object(own)

        for step in range(5):
            x, y = batch(network(), 8, 10 * step + (0 if piped else rank))
            if step == 2 and (piped or rank == 1):
                x[0, 0] = 1e25
            before = state()
            try:
                if piped:
                    update = OutputUpdater("cpu").update
                    net.forward_backward(x, lambda states, rows, deltas: update(states, y[rows], 1.0, deltas))  # noqa: B023
                else:
                    backpropagate(net, x, y)
                net.step()
                outcomes.append("learnt")
            except FloatingPointError:
                outcomes.append("refused")
            moved.append(state() != before)
        if "merges" not in way:
            assert len({a.tobytes() for a in net.communicator.all_gather_object(model.arena.statistics)}) == 1 or piped
        assert np.isfinite(model.arena.statistics).all()
        return outcomes, moved

    found = run_threads(program, 2)
    merges = "merges" in way
    assert found[1] == (["learnt"] * 2 + ["refused"] + ["learnt"] * 2, [True] * 2 + [False] + [True] * 2)
    assert found[0] == ((["learnt"] * 5, [True] * 5) if merges else found[1])


@pytest.mark.parametrize("way", [way for way in WAYS if way != "pipeline"])
def test_a_second_backward_pass_of_one_rank_harms_no_other(way):
    """It is refused there, or does nothing; the step is that of the first pass, and all ranks go on."""

    def program(again):
        net, refused = WAYS[way](network()), []
        for step in range(4):
            backpropagate(net, *batch(network(), 8, 10 * step + net.rank))
            if again and net.rank == 1 and step in (1, 2):
                refused.append(error_of(net.backward, RuntimeError))
            net.step()
        return net.state_dict(), refused

    (once, _), _ = run_threads(program, 2, False)
    (twice, _), (_, refused) = run_threads(program, 2, True)
    assert once == twice
    divided = way in ("buckets", "shards", "whole parameters")
    assert all(text.startswith("a second backward() before step()" if divided else "") for text in refused)


@pytest.mark.parametrize("options", [{"merge": "mean"}, {"merge": "precision_weighted"}, {"max_wait": 9}])
def test_merged_statistics_are_the_means_of_all_ranks(options):
    """Those of the second norm, too, some of whose running means are negative."""

    def program():
        manual_seed(3)
        model = Sequential(Linear(4, 6), BatchNorm2d(6), ReLU(), Linear(6, 5), BatchNorm2d(5), Linear(5, 2))
        net = DDPSequential(model, every=1, **options)
        backpropagate(net, *batch(net.model, 8, net.rank))
        own = net.model.arena.statistics.copy()
        net.step()
        return own, net.model.arena.statistics.copy()

    results = run_threads(program, 2)
    assert (results[0][0][12:17] < 0).any()
    for _, statistics in results:
        np.testing.assert_allclose(statistics, np.mean([own for own, _ in results], 0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("options", [{"merge": "mean"}, {"merge": "precision_weighted"}, {"max_wait": 9}])
@pytest.mark.parametrize(("field", "value"), [("mu_w", np.nan), ("var_w", -1.0)])
def test_ranks_do_not_take_parameters_that_are_none(options, field, value):
    def program():
        net = DDPSequential(network(), every=2, **options)
        outcomes = []
        for step in range(4):
            if step == 2 and net.rank == 1:
                getattr(net.model.layers[0], field)[:] = value
            backpropagate(net, *batch(net.model, 8, 10 * step + net.rank))
            try:
                net.step()
                outcomes.append("")
            except FloatingPointError as error:
                outcomes.append(str(error))
        mu, var = net.model.arena.theta
        sound = np.isfinite(mu).all() and np.isfinite(var).all() and (var >= 0).all()
        if net.rank == 1:
            net.load_state_dict(network().state_dict())
        net.merge()
        merged = np.asarray(net._exchange.pooled)[:2].tolist()
        net.synchronize()
        for step in (5, 6):
            backpropagate(net, *batch(net.model, 8, 10 * step + net.rank))
            net.step()
        return [text[:26] for text in outcomes], bool(sound), merged

    (first, sound, merged), (second, _, _) = run_threads(program, 2)
    assert sound and first == ["", "", "", "merge refused: rank 1 has "]
    assert merged == [16, 1]  # what rank 0 has learnt since the last merge
    assert second[2] and second[3] == first[3]
