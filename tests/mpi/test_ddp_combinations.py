"""Options of DDPSequential together, and calls that could bring ranks out of step, on 2 and 3 real ranks."""

import pytest

from tests.mpi.test_ddp import run

pytestmark = pytest.mark.mpi

PASSES = """
# Every rank runs passes of its own number, sizes and place in no_sync, all with statistics of all ranks.
passes = {0: [3, 2], 1: [4], 2: []}
for buckets, blocks in (1, 1), (3, 1), (3, 2):
    manual_seed(4)
    net = with_batch_norm(blocks)
    reference = copy.deepcopy(net)
    net.checkpoint_blocks = blocks == 2
    ddp = DDPSequential(net, DDPConfig(backend="mpi", timeout=20, buckets=buckets), average=False, sync_batch_norm=True)
    x, y = batch(net, 9, 0)
    part = {(0, 0): slice(0, 3), (0, 1): slice(3, 5), (1, 0): slice(5, 9)}
    for step in range(2):
        with ddp.join() if step else ddp.no_sync():
            for k in range(len(passes[rank]) - (not step)):
                if step:
                    with ddp.no_sync():
                        backpropagate(ddp, x[part[rank, k]], y[part[rank, k]])
                else:
                    backpropagate(ddp, x[part[rank, k]], y[part[rank, k]])
                ddp.predict(x[:2])
            if step and passes[rank]:
                ddp.step()
        if not step:
            if passes[rank]:
                last = part[rank, len(passes[rank]) - 1]
                backpropagate(ddp, x[last], y[last])
            ddp.step()
        reference.pending.accumulating = False
        for k in range(2):  # the k-th passes of all ranks are one
            rows = np.concatenate([np.arange(9)[part[r, k]] for r in range(size) if k < len(passes[r])])
            backpropagate(reference, x[rows], y[rows])
            reference.pending.accumulating = True
        reference.step()
    name = f"{buckets} buckets, {blocks} blocks"
    results[name] = [difference(reference.state_dict(), ddp.state_dict()), same_everywhere(ddp)]
"""


@pytest.mark.parametrize("np", [2, 3])
def test_synchronised_statistics_with_other_numbers_of_passes_on_every_rank(np):
    results = run(PASSES, np)
    assert len(results) == 3
    for difference, equal in results.values():
        assert difference < 1e-4
        assert equal


LOADED = """
for rule in ("mean", "precision_weighted"):
    for load in ("load_state_dict", "load", "synchronize"):
        manual_seed(3)
        old, new = (WITHOUT_BATCH_NORM["Linear"]() for _ in range(2))
        x, y = batch(old, 4 * size, 0)
        mine = slice(4 * rank, 4 * rank + 4)
        for _ in range(5):
            backpropagate(new, x, y)  # other variances than those of `old`
            new.step()
        ddp = DDPSequential(old, DDPConfig(backend="mpi"), every=2, merge=rule)
        backpropagate(ddp, x[mine], y[mine])
        ddp.step()
        if load == "load_state_dict":
            ddp.load_state_dict(new.state_dict())
        elif load == "load":
            path = f"{FOLDER}/{rank}.safetensors"
            new.save(path)
            ddp.load(path)
        else:
            if rank == 0:
                old.params_from(new)
            ddp.synchronize()
        fresh = DDPSequential(copy.deepcopy(new), DDPConfig(backend="mpi"), every=2, merge=rule)
        for _ in range(2):
            for net in (ddp, fresh):
                backpropagate(net, x[mine], y[mine])
                net.step()
        results[f"{rule} {load}"] = [difference(ddp.state_dict(), fresh.state_dict()), ddp.steps_since_merge]
"""


def test_parameters_that_are_loaded_between_merges_are_a_new_prior(tmp_path):
    results = run(f"FOLDER = {str(tmp_path)!r}\n" + LOADED, 2)
    assert len(results) == 6
    for name, outcome in results.items():
        assert outcome == [0, 0], name


MERGE_ALL = """
net = WITHOUT_BATCH_NORM["Linear"]()
ddp = DDPSequential(net, DDPConfig(backend="mpi", timeout=20), every=2, merge="mean")
x, y = batch(net, 4, rank)
alone = copy.deepcopy(net)
backpropagate(alone, x, y)
alone.step()
with ddp.join():
    backpropagate(ddp, x, y)  # no step: what was learnt counts all the same
expected = np.mean(comm.all_gather_object(alone.arena.theta.copy()), 0)
results["difference"] = float(np.abs(net.arena.theta - expected).max())
failed = []
for step in range(4):
    backpropagate(ddp, x, y)
    if rank == 0 and step in (1, 2):  # one of them in the step that merges
        net.layers[0].parameters.w.delta_mu_sum[2] = np.inf
    try:
        ddp.step()
    except FloatingPointError:
        failed.append(step)
results["failed"], results["left"] = comm.all_gather_object(failed), ddp.steps_since_merge
results["equal"] = same_everywhere(ddp)
backpropagate(net, x, y)
try:
    ddp.step()
except RuntimeError as error:
    results["refused"] = str(error)
"""


def test_merges_miss_no_deltas_and_no_rank():
    results = run(MERGE_ALL, 2)
    assert "forward() of the DDPSequential" in results.pop("refused")
    assert results.pop("difference") < 1e-6
    assert results == {"failed": [[1, 2], []], "left": 0, "equal": True}


OWNERS = """
import pickle
net = with_batch_norm()
norm = net.layers[2]
def refused(call):
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
config = DDPConfig(backend="mpi", timeout=20)
first = DDPSequential(net, config, sync_batch_norm=True)
for copies in (copy.deepcopy, copy.copy, pickle.dumps):
    assert "copy or pickle its `model`" in refused(lambda: copies(first))
from pytagi_ddp.distributed import synchronize
synchronize(comm, net)  # leaves it to its DDPSequential
results["synchronised"] = [norm.reduce_sums is not None, norm.pool_at_step]
second = DDPSequential(net, config)
results["pooled"] = [norm.reduce_sums is not None, norm.pool_at_step]
results["old step"] = refused(first.step)
third = DDPSequential(net, config, every=2)
results["own"] = [norm.reduce_sums is not None, norm.pool_at_step]
results["twice"] = refused(lambda: DDPSequential(third))
results["rule"] = refused(lambda: DDPSequential(net, config, merge="median"))
results["half"] = refused(lambda: DDPSequential(net, config, every=2.5))
alone = copy.deepcopy(net)
x, y = batch(net, 4, rank)
if rank == 0:
    backpropagate(alone, x, y)  # meets no ranks
    alone.step()
"""


def test_a_network_belongs_to_one_ddp_sequential():
    results = run(OWNERS, 2)
    assert results["synchronised"] == [True, False]
    assert results["pooled"] == [False, True]
    assert results["own"] == [False, False]
    assert "given to another one" in results["old step"]
    assert "takes a Sequential" in results["twice"]
    assert "'median'" in results["rule"]
    assert "whole numbers" in results["half"]


IN_FLIGHT = """
net = with_batch_norm()
ddp = DDPSequential(net, DDPConfig(backend="mpi", buckets=3, timeout=20), average=False)
x, y = batch(net, 4, rank)
for again in ("backward", "no_sync"):
    backpropagate(ddp, x, y)
    try:
        with ddp.no_sync() if again == "no_sync" else contextlib.nullcontext():
            backpropagate(ddp, x, y)
    except RuntimeError as error:
        results[again] = str(error)
    ddp.step()
for k in range(20):
    backpropagate(ddp, x, y)
    sums = np.full(3, rank, np.float32)
    comm.all_reduce(sums)  # waits while a thread drives the buckets
    ddp.step()
results["sums"], results["equal"] = float(sums[0]), same_everywhere(ddp)
net.layers[0].backward = lambda *_: 1 / 0
try:
    backpropagate(ddp, x, y)
except ZeroDivisionError:
    pass
try:
    ddp.step()
except RuntimeError as error:
    results["failed"] = str(error)
net.layers[0].__dict__.pop("backward")
net.pending.passed(1)
ddp.step()
"""


@pytest.mark.parametrize("debug", ["0", "1"])
def test_nothing_meets_deltas_that_are_on_their_way(monkeypatch, debug):
    monkeypatch.setenv("PYTAGI_DDP_DEBUG", debug)
    results = run("import contextlib\n" + IN_FLIGHT, 2)
    assert "second backward()" in results["backward"] and "second backward()" in results["no_sync"]
    assert results["sums"] == 1 and results["equal"]
    assert "backward() failed" in results["failed"]


STOP = """
for every in (1, 2):
    net = WITHOUT_BATCH_NORM["Linear"]()
    ddp = DDPSequential(net, DDPConfig(backend="mpi", timeout=20), every=every)
    x, y = batch(net, 4, rank)
    taken = 0
    with ddp.join():
        for step in range(2 if rank == size - 1 else 9):  # the last rank has come to its end when the first one asks
            with ddp.no_sync():
                backpropagate(ddp, x[:2], y[:2])
            backpropagate(ddp, x[2:], y[2:])
            if rank == 0 and step == 4:
                ddp.request_stop()
            ddp.step()
            taken += 1
            if ddp.stop_requested:
                break
    results[str(every)] = [comm.all_gather_object((taken, ddp.stop_requested)), same_everywhere(ddp)]
"""


def test_a_stop_reaches_ranks_that_have_no_batches_left():
    results = run(STOP, 3)
    assert results["1"] == [[[5, True], [5, True], [2, True]], True]
    assert results["2"] == [[[6, True], [6, True], [2, True]], True]


SETTINGS = """
def network(k):
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, **({"padding": 2, "padding_type": 2} if k == "window" else {"padding": 1}), **IMAGE),
        nn.BatchNorm2d(3, eps=1e-5 if k != "eps" else 1e-4, momentum=0.9 if k != "momentum" else 0.5),
    )
for name in ("window", "eps", "momentum", "none"):
    try:
        DDPSequential(network(name if rank else "none"), DDPConfig(backend="mpi", timeout=20))
        results[name] = ""
    except ValueError as error:
        results[name] = str(error)
"""


def test_settings_of_layers_are_compared():
    results = run(SETTINGS, 2)
    assert results.pop("none") == ""
    assert "padding of Conv2d.0 is 1 on rank 0 and 2 on rank 1" in results["window"]
    assert "eps of BatchNorm2d.1 is 1e-05 on rank 0 and 0.0001 on rank 1" in results["eps"]
    assert "momentum of BatchNorm2d.1 is 0.9 on rank 0 and 0.5 on rank 1" in results["momentum"]
