"""What DDPSequential can do beside one all-reduce a step, on 1, 2 and 3 real ranks."""

import pytest

from tests.mpi.test_ddp import run

pytestmark = pytest.mark.mpi

NO_SYNC = """
for name, make in WITHOUT_BATCH_NORM.items():
    if name not in ("Linear", "Conv2d", "LayerNorm", "ResNetBlock with shortcut", "MixtureReLU"):
        continue
    manual_seed(7)
    net = make()
    reference = copy.deepcopy(net)
    ddp = DDPSequential(net, DDPConfig(backend="mpi"), average=False)
    worst = 0.0
    for step in range(2):
        x, y = batch(net, 6 * size, step)
        mine, calls = slice(6 * rank, 6 * rank + 6), ddp.communicator.reduce_calls
        with ddp.no_sync():
            backpropagate(ddp, x[mine][:2], y[mine][:2])
            backpropagate(ddp, x[mine][2:3], y[mine][2:3])
        backpropagate(ddp, x[mine][3:], y[mine][3:])
        ddp.step()
        backpropagate(reference, x, y)
        reference.step()
        worst = max(worst, difference(reference.state_dict(), ddp.state_dict()))
        net.load_state_dict(reference.state_dict())
    results[name] = [worst, ddp.communicator.reduce_calls - calls, same_everywhere(ddp)]
with ddp.no_sync():
    try:
        ddp.step()
    except RuntimeError as error:
        results["refused"] = str(error)
"""


@pytest.mark.parametrize("np", [1, 2, 3])
def test_micro_batches_are_one_batch(np):
    results = run(NO_SYNC, np)
    assert "no_sync()" in results.pop("refused")
    assert len(results) == 5
    for name, (worst, calls, equal) in results.items():
        assert worst < 2e-5, f"{name}: parameters differ by {worst:.2g}"
        assert calls == 1 and equal


JOIN = """
manual_seed(1)
def network():
    return with_batch_norm() if BATCH_NORM else WITHOUT_BATCH_NORM["Conv2d"]()
net = network()
reference = copy.deepcopy(net)
ddp = DDPSequential(net, DDPConfig(backend="mpi"), average=False, sync_batch_norm=BATCH_NORM)
batches = [3 - r for r in range(size)]  # batches of each rank; the last one may have one batch only
x, y = batch(net, 4 * 3 * size, 5)
index = lambda r, step: slice(4 * (3 * r + step), 4 * (3 * r + step) + 4)
with ddp.join():
    for step in range(batches[rank]):
        backpropagate(ddp, x[index(rank, step)], y[index(rank, step)])
        ddp.step()
results["calls"] = ddp.communicator.reduce_calls
for step in range(3):
    union = [index(r, step) for r in range(size) if step < batches[r]]
    backpropagate(reference, np.concatenate([x[i] for i in union]), np.concatenate([y[i] for i in union]))
    reference.step()
results["difference"] = difference(reference.state_dict(), ddp.state_dict())
results["equal"] = same_everywhere(ddp)
"""


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("np", [1, 2, 3])
def test_join_learns_the_union_of_what_was_seen(np, batch_norm):
    results = run(f"BATCH_NORM = {batch_norm}\n" + JOIN, np)
    assert results["difference"] < 1e-4
    assert results["equal"]
    # A step each, and one to see that nobody has more; statistics of two layers, and a look for more passes each step.
    assert results["calls"] == (4 + (3 * 2 + 4 * (np > 1) if batch_norm else 0))


SYNC = """
manual_seed(4)
net = with_batch_norm()
reference = copy.deepcopy(net)
ddp = DDPSequential(net, DDPConfig(backend="mpi"), average=False, sync_batch_norm=True)
sizes = [3, 2, 4][:size]
worst = 0.0
for step in range(3):
    x, y = batch(net, sum(sizes), step)
    backpropagate(ddp, x[shards(sizes)], y[shards(sizes)])
    ddp.step()
    backpropagate(reference, x, y)
    reference.step()
    worst = max(worst, difference(reference.state_dict(), ddp.state_dict()))
    if step == 0:
        ours, theirs = (n.get_norm_mean_var() for n in (net, reference))
        gap = lambda a, b: float(np.abs(np.array(a) - np.array(b)).max())
        results["statistics"] = max(gap(a, b) for key in ours for a, b in zip(ours[key], theirs[key]))
results["difference"], results["equal"] = worst, same_everywhere(ddp)
"""


@pytest.mark.parametrize("np", [1, 2, 3])
def test_synchronised_batch_norm_is_one_process_with_the_global_batch(np):
    results = run(SYNC, np)
    assert results["difference"] < 1e-4
    assert results["statistics"] < 2e-6
    assert results["equal"]


MERGE = """
for rule in ("mean", "precision_weighted"):
    manual_seed(2)
    net = with_batch_norm()
    alone = copy.deepcopy(net)  # what this rank would learn without the others
    prior = net.arena.theta.copy().astype(float)
    ddp = DDPSequential(net, DDPConfig(backend="mpi"), every=3, merge=rule)
    for step in range(3):
        x, y = batch(net, 4 * size, step)
        for one in (ddp, alone):
            backpropagate(one, x[4 * rank:4 * rank + 4], y[4 * rank:4 * rank + 4])
        alone.step()
        results[f"{rule} before"] = ddp.steps_since_merge
        ddp.step()
    all_theta = np.array(comm.all_gather_object(alone.arena.theta.copy()), float)
    m, s = all_theta[:, 0], all_theta[:, 1]
    if rule == "mean":
        expected = np.stack([m.mean(0), s.mean(0)])
    else:
        gained = (1 / s - 1 / prior[1]).sum(0)
        variance = 1 / np.where(gained > 0, 1 / prior[1] + gained, (1 / s).mean(0))
        expected = np.stack([(m / s).sum(0) / (1 / s).sum(0), variance])
    scale = np.abs(expected).max(1, keepdims=True)
    results[rule] = float((np.abs(net.arena.theta - expected) / scale).max())
    statistics = np.mean(comm.all_gather_object(alone.arena.statistics.copy()), 0)
    results[f"{rule} statistics"] = float(np.abs(net.arena.statistics - statistics).max())
    results[f"{rule} rest"] = [same_everywhere(ddp), ddp.steps_since_merge, ddp.communicator.reduce_calls]
"""


@pytest.mark.parametrize("np", [1, 2, 3])
def test_posteriors_are_merged_every_few_steps(np):
    results = run(MERGE, np)
    for rule in ("mean", "precision_weighted"):
        assert results[f"{rule} before"] == 2
        assert results[rule] < 2e-6
        assert results[f"{rule} statistics"] < 1e-6
        assert results[f"{rule} rest"] == [True, 0, 1]


LOCAL_JOIN = """
net = WITHOUT_BATCH_NORM["Conv2d"]()
ddp = DDPSequential(net, DDPConfig(backend="mpi"), every=2, merge="mean")
x, y = batch(net, 2, rank)
with ddp.join():
    for step in range(1 + 2 * rank):  # odd: everyone has a step left that was not merged
        backpropagate(ddp, x, y)
        ddp.step()
results["equal"], results["left"] = same_everywhere(ddp), ddp.steps_since_merge
"""


@pytest.mark.parametrize("np", [1, 3])
def test_join_with_merges(np):
    assert run(LOCAL_JOIN, np) == {"equal": True, "left": 0}


WIRE = """
for dtype in ("float32", "float16", "bfloat16"):
    manual_seed(6)
    net = with_batch_norm()
    ddp = DDPSequential(net, DDPConfig(backend="mpi", wire_dtype=dtype), average=False)
    x, y = batch(net, 4 * size, 1)
    backpropagate(ddp, x[4 * rank:4 * rank + 4], y[4 * rank:4 * rank + 4])
    net.arena.delta[1] *= 1e-12  # would vanish in float16 as it is
    mine = net.arena.buffer.copy()
    if rank == 0:
        ddp.request_stop()
    ddp.step()
    total = np.sum(comm.all_gather_object(mine), 0)[: 2 * net.num_parameters].reshape(2, -1)
    error = np.abs(net.arena.delta - total).max(1) / np.abs(total).max(1)
    results[dtype] = [error.tolist(), same_everywhere(ddp), ddp.stop_requested]
"""


@pytest.mark.parametrize("np", [1, 2, 3])
def test_half_precision_on_the_wire(np):
    results = run(WIRE, np)
    for dtype, bound in (("float32", 1e-6), ("float16", 2**-11), ("bfloat16", 2**-8)):
        errors, equal, stopped = results[dtype]
        assert max(errors) <= bound
        assert equal and stopped
    assert np == 1 or max(results["bfloat16"][0]) > 2**-11  # it was really sent as such


BUCKETS = """
for count in (1, 2, 4, 100):
    manual_seed(8)
    net = with_batch_norm()
    ddp = DDPSequential(net, DDPConfig(backend="mpi", buckets=count), average=False)
    for step in range(3):
        sizes = [4, 2, 3 * (step != 1)][:size]  # in the second step the third rank has no samples
        x, y = batch(net, sum(sizes), step)
        if sizes[rank]:
            backpropagate(ddp, x[shards(sizes)], y[shards(sizes)])
        ddp.step()
    digest = hashlib.sha256(net.arena.theta).hexdigest()
    results[str(count)] = [digest, same_everywhere(ddp), ddp.communicator.reduce_calls]
"""


@pytest.mark.parametrize("np", [1, 2, 3])
def test_reduction_in_buckets_gives_the_same(np):
    results = run(BUCKETS, np)
    assert len({digest for digest, _, _ in results.values()}) == 1
    assert all(equal for _, equal, _ in results.values())
    assert [calls for _, _, calls in results.values()] == [3, 3 * 5, 3 * 5, 3 * 9]  # a layer is not cut


def test_options_that_contradict_each_other_are_refused():
    program = """
for options, config in [
    (dict(every=0), {}),
    (dict(every=2, merge="median"), {}),
    (dict(every=2, sync_batch_norm=True), {}),
    (dict(every=2), dict(buckets=2)),
    (dict(), dict(buckets=0)),
    (dict(), dict(wire_dtype="int8")),
    (dict(), dict(wire_dtype="float16", buckets=2)),
]:
    try:
        DDPSequential(WITHOUT_BATCH_NORM["Linear"](), DDPConfig(backend="mpi", **config), **options)
    except ValueError as error:
        results[str(error)] = 1
"""
    assert len(run(program, 1)) == 7


DEBUG = """
from pytagi_ddp.distributed.compare import ReplicaMismatchError
from pytagi_ddp.distributed import NonFiniteError
for change in ("options", "parameters", "delta", "nothing"):
    try:
        net = with_batch_norm()
        ddp = DDPSequential(net, DDPConfig(backend="mpi"), average=change != "options" or rank == 0)
        if change == "parameters" and rank == size - 1:
            net.layers[4].parameters.w.mu[3] += 1
        x, y = batch(net, 4, rank)
        backpropagate(ddp, x, y)
        if change == "delta" and rank == 0:
            net.layers[4].parameters.w.delta_mu_sum[2] = np.inf
        ddp.step()
        results[change] = ""
    except (ValueError, ReplicaMismatchError, NonFiniteError) as error:
        results[change] = str(error)
    results[change] = comm.all_gather_object(results[change])
"""


def test_replicas_are_compared(monkeypatch):
    monkeypatch.setenv("PYTAGI_DDP_DEBUG", "1")
    results = run(DEBUG, 2)
    assert set(results["nothing"]) == {""}
    assert all("average is True on rank 0 and False on rank 1" in text for text in results["options"])
    assert all("ranks 0 and 1 have different parameters in Linear.4" in text for text in results["parameters"])
    assert all(
        "not finite" in text and "a delta of layer" in text and "Linear(108,4)" in text for text in results["delta"]
    )
