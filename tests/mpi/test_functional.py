"""The functional API on one process, and on 1, 2 and 3 real ranks."""

import contextlib
import copy
import dataclasses
import functools
import io
import time
from collections import OrderedDict, namedtuple
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp import distributed as dist
from pytagi_ddp import manual_seed, nn
from pytagi_ddp.distributed import (
    all_reduce_metrics,
    allreduce_deltas,
    backends,
    rank_zero_first,
    rank_zero_only,
    synchronize,
)
from tests.learning import backpropagate
from tests.mpi.ddp_networks import WITHOUT_BATCH_NORM, batch, shares, with_batch_norm
from tests.mpi.shared import check, on_ranks


def on_initialized(program):
    """Runs a program with the communicator that `initialize` makes for its job."""

    @functools.wraps(program)
    def run(comm, **arguments):
        # Whatever this process has initialised before; a thread that is a rank has nothing.
        none = contextlib.nullcontext() if comm.backend == "threads" else patch.object(backends, "_initialized", {})
        with none:
            communicator = dist.initialize("auto" if comm.world_size > 1 else comm.backend, timeout=60)
            try:
                return program(communicator, **arguments)
            finally:
                communicator.close()

    return run


def refused(call):
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


@on_initialized
def collectives(comm):
    backend, rank, size, checks = comm.backend, comm.rank, comm.world_size, {}
    checks["place"] = (dist.rank(backend), dist.local_rank(backend), dist.total_workers(backend)) == (rank, rank, size)
    checks["initialised"] = dist.is_initialized() and dist.is_initialized(backend) and not dist.is_initialized("nccl")
    checks["same again"] = dist.initialize(backend) is comm and dist.get_distributed_backend(backend) is comm
    checks["the communicator itself"] = dist.get_distributed_backend(comm) is comm
    checks["options come too late"] = "timeout would have no effect" in refused(
        lambda: dist.initialize(backend, timeout=3)
    )
    array = np.full(5, rank + 1.0)
    checks["allreduce"] = dist.allreduce(backend, array) is array and (array == size * (size + 1) / 2).all()
    checks["mean"] = (dist.allreduce(comm, np.full(5, rank + 1.0), "mean") == (size + 1) / 2).all()
    checks["bcast"] = (dist.bcast(backend, np.full(3, rank), size - 1) == size - 1).all()
    factor = 1 + rank % 2
    reduced = dist.reduce(backend, np.full(3, factor), "prod", 0)
    checks["reduce"] = (reduced == (2 ** (size // 2) if rank == 0 else factor)).all()
    first, second = np.full(4, rank), np.full(4, rank)
    for handle in [dist.iallreduce(backend, first, "max"), dist.ibcast(backend, second, 0)]:
        handle.wait()
    checks["handles"] = (first == size - 1).all() and (second == 0).all()
    dist.barrier(backend, timeout=30)
    checks["barrier's time-out"] = "timeout must be" in refused(lambda: dist.barrier(backend, timeout=0))
    return checks


@on_ranks(collectives, "serial", 1, 2, 3)
def test_collectives(results):
    check(results, 11)


@on_initialized
def metrics(comm):
    """Exact for unequal counts, one collective."""
    backend, rank, size, checks = comm.backend, comm.rank, comm.world_size, {}
    calls = []
    original = comm._all_gather_object
    comm._all_gather_object = lambda *args: calls.append(1) or original(*args)
    counts = shares([3, 1, 6], size)
    mine = {"loss": (0.1 * counts[rank], counts[rank]), "time": rank + 1.0, "none": (0, 0)}
    for op, expected in (("mean", (size + 1) / 2), ("sum", size * (size + 1) / 2), ("max", size), ("min", 1)):
        total = all_reduce_metrics(backend, mine, op)
        checks[op] = abs(total["loss"] - 0.1) < 1e-16 and total["time"] == expected
        checks[f"none {op}"] = total["none"] != total["none"]
    checks["one collective each"] = len(calls) == 4
    nan = all_reduce_metrics(backend, {"x": float("nan") if rank == size - 1 else 1.0}, "max")["x"]
    checks["NaN reaches all"] = nan != nan
    exact = all_reduce_metrics(backend, {"x": [1e16, 1.0, -1e16, *[0.0] * size][rank]}, "sum")["x"]
    checks["exact"] = exact == [1e16, 1e16, 1.0][min(size, 3) - 1]
    last = size - 1
    text = refused(lambda: all_reduce_metrics(backend, {"a": 1, "b" if rank == last else "c": 2}))
    checks["other names"] = size == 1 or text.startswith(
        "ValueError: metric 'c' is a number on rank 0 and nothing on rank"
    )
    text = refused(lambda: all_reduce_metrics(backend, {"a": (1, 2) if rank == last else 1.0}))
    checks["pair or number"] = size == 1 or text.endswith(f"'a' is a number on rank 0 and a pair on rank {last}")
    text = refused(lambda: all_reduce_metrics(backend, {"a": "high" if rank == last else 1.0}))
    checks["no number"] = text == f"TypeError: metric 'a' on rank {last} is str, not a number or a pair (sum, count)"
    text = refused(lambda: all_reduce_metrics(backend, {"a": 10**400 if rank == last else 1.0}))
    checks["too large"] = text.startswith(f"TypeError: metric 'a' on rank {last} is beyond float64, not a number")
    large = all_reduce_metrics(backend, {"x": 1e308, "pair": (1e308, 1)}, "sum")
    checks["a sum too large"] = list(large.values()) == ([1e308, 1e308] if size == 1 else [float("inf")] * 2)
    checks["unknown op"] = "unknown op 'median'" in refused(lambda: all_reduce_metrics(backend, {}, "median"))
    return checks


@on_ranks(metrics, "serial", 1, 2, 3, real=2)
def test_metrics(results):
    check(results, 17)


@on_initialized
def rank_zero(comm):
    backend, rank, checks = comm.backend, comm.rank, {}

    @rank_zero_only
    def place():
        return rank

    checks["rank_zero_only"] = place() == (0 if rank == 0 else None)
    checks["with a backend"] = rank_zero_only(backend=comm)(place)() == (0 if rank == 0 else None)
    with rank_zero_first(backend, timeout=20):
        if rank == 0:
            time.sleep(0.3)
        entered = time.monotonic()
    times = comm.all_gather_object(entered)
    checks["rank 0 first"] = all(times[0] <= later for later in times[1:])
    try:
        with rank_zero_first(backend):
            raise OSError("no network") if rank == 0 else AssertionError("not to be run")
    except OSError:
        checks["its error"] = rank == 0
    except RuntimeError as error:
        checks["its error elsewhere"] = "rank 0 failed" in str(error) and "OSError: no network" in str(error)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        dist.rank_zero_print("once")
    checks["rank_zero_print"] = printed.getvalue() == ("once\n" if rank == 0 else "")
    return checks


@on_ranks(rank_zero, "serial", 1, 2, 3, real=2)
def test_rank_zero(results):
    check(results, 5)


@dataclasses.dataclass(frozen=True)
class Config:
    depth: int
    table: np.ndarray


Point = namedtuple("Point", "x y")


@on_initialized
def synchronize_trees(comm):
    backend, rank, root, checks = comm.backend, comm.rank, comm.world_size - 1, {}
    array = np.full((2, 3), rank, np.float32)
    strided = np.full((4, 4), rank)[:, ::2]
    tree = {
        "array": array,
        "strided": strided,
        "half": np.full(3, rank, np.float16),
        "text": np.array([f"rank {rank}"], "U8"),
        "numbers": [rank, 1.5 * rank, 2j * rank, np.float64(rank), bool(rank), f"rank {rank}", None],
        "other type": "seven" if rank == root else None,
        "nested": (Point(rank, np.array(rank)), [], {}, OrderedDict(b=rank, a=rank)),
        "config": Config(rank, np.full(2, rank)),
    }
    got = synchronize(backend, tree, root)
    checks["array in place"] = got["array"] is array and (array == root).all()
    checks["strided in place"] = got["strided"] is strided and (strided == root).all()
    checks["half"] = (got["half"] == root).all()
    checks["text"] = got["text"][0] == f"rank {root}"
    checks["numbers"] = got["numbers"] == [root, 1.5 * root, 2j * root, root, bool(root), f"rank {root}", None]
    checks["input kept"] = tree["numbers"][0] == rank
    checks["None elsewhere"] = got["other type"] == "seven"
    point, empty, no, ordered = got["nested"]
    checks["nested"] = (point.x, empty, no, list(ordered.items())) == (root, [], {}, [("b", root), ("a", root)])
    checks["0-d"] = point.y == root
    checks["dataclass"] = isinstance(got["config"], Config) and got["config"].depth == root
    checks["array in it"] = (got["config"].table == root).all()
    checks["a number alone"] = synchronize(backend, 10 * rank) == 0
    return checks


@on_ranks(synchronize_trees, "serial", 1, 2, 3, real=2)
def test_synchronize_trees(results):
    check(results, 12)


@on_initialized
def synchronize_networks(comm):
    backend, rank, root, checks = comm.backend, comm.rank, comm.world_size - 1, {}
    manual_seed(rank)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, in_width=6, in_height=6), nn.BatchNorm2d(2), nn.ReLU(), nn.Linear(32, 3))
    net.layers[1].running_mean[:] = rank
    checks["model itself"] = synchronize(backend, {"net": net})["net"] is net
    everyone = comm.all_gather_object((net.arena.theta.tobytes(), net.arena.statistics.tobytes()))
    checks["model"] = len(set(everyone)) == 1 and (net.layers[1].running_mean == 0).all()
    net(np.full((2, 36), rank, np.float32))
    states = net.output_z_buffer
    net.set_delta_z(np.full(6, rank), np.full(6, -rank))
    synchronize(backend, [states, net.input_delta_z_buffer], root)
    bits = comm.all_gather_object((states.mu_a.tobytes(), states.var_a.tobytes()))
    checks["hidden states"] = len(set(bits)) == 1
    deltas = net.input_delta_z_buffer
    checks["delta states"] = (deltas.delta_mu == root).all() and (deltas.delta_var == -root).all()
    ddp = nn.DDPSequential(nn.Sequential(nn.Linear(2, 2)), nn.DDPConfig(backend=backend))
    ddp.model.arena.theta += rank
    synchronize(backend, ddp)
    checks["DDPSequential"] = len(set(comm.all_gather_object(ddp.model.arena.theta.tobytes()))) == 1
    return checks


@on_ranks(synchronize_networks, "serial", 1, 2, 3, real=2)
def test_synchronize_networks(results):
    check(results, 5)


@on_initialized
def synchronize_refuses(comm):
    backend, size, checks = comm.backend, comm.world_size, {}
    last = comm.rank == size - 1
    frozen = np.ones(2)
    frozen.flags.writeable = False
    looped = []
    looped.append(looped)
    for name, odd, place in [
        ("a set", {1}, "tree['x'][1] is a set"),
        ("object array", np.array([None]), "tree['x'][1] is an array of object"),
        ("read-only", frozen, "tree['x'][1] is a read-only array"),
        ("loop", looped, "tree['x'][1][0] is a container inside itself"),
    ]:
        text = refused(lambda odd=odd: synchronize(backend, {"x": [1, odd if last else 1]}))
        checks[name] = text == f"TypeError: on rank {size - 1}, {place}, which synchronize cannot take"
    for name, ours, others, message in [
        ("shape", np.ones(3), np.ones(4), "tree['x'] is an array of float64, shape (3,) on rank 0"),
        ("dtype", np.ones(3), np.ones(3, int), "an array of int64, shape (3,) on rank"),
        ("kind", 1, [1], "tree['x'] is a value on rank 0, and tree['x'] is a list of [0] on rank"),
        ("keys", {"a": 1}, {"b": 1}, "tree['x'] is a dict of ['a'] on rank 0, and tree['x'] is a dict of ['b'] on"),
        ("length", [1], [1, 2], "tree['x'] is a list of [0] on rank 0, and tree['x'] is a list of [0], [1] on rank"),
        ("layers", *(nn.Sequential(nn.Linear(2, n)) for n in (3, 4)), ".0 is Linear(input_size=2, output_size=3,"),
    ] * (size > 1):
        mine = others if last else ours
        text = refused(lambda mine=mine: synchronize(backend, {"x": mine}))
        checks[name] = text.startswith(f"ValueError: ranks 0 and {size - 1} hold different trees") and message in text
    checks["root"] = "root must be a rank" in refused(lambda: synchronize(backend, 1, size))
    return checks


@on_ranks(synchronize_refuses, "serial", 1, 2, 3, real=2)
def test_synchronize_refuses(results):
    check(results, 5 if len(results) == 1 else 11)


# Samples of each rank in each step.
SAMPLES = [[4, 2, 3], [2, 2, 2], [5, 0, 0], [0, 0, 0], [2, 0, 0], [3, 0, 4], [2, 9, 2]]
FUNCTIONAL = {"Conv2d": WITHOUT_BATCH_NORM["Conv2d"], "BatchNorm": with_batch_norm}


@on_initialized
def deltas_by_hand(comm, name, average):
    backend, rank, checks = comm.backend, comm.rank, {}
    manual_seed(rank)
    net = FUNCTIONAL[name]()
    ddp = nn.DDPSequential(copy.deepcopy(net), nn.DDPConfig(backend=backend), average)
    if name == "BatchNorm":
        checks["not synchronised"] = "call synchronize" in refused(lambda: allreduce_deltas(backend, net))
    synchronize(backend, net)
    for step, samples in enumerate(shares(samples, comm.world_size) for samples in SAMPLES):
        x, y = batch(net, max(samples[rank], 1), 10 * step + rank)
        for model in (net, ddp):
            if samples[rank]:
                backpropagate(model, x, y)
        total = allreduce_deltas(backend, net, average)
        net.step()
        ddp.step()
        checks[f"samples {step}"] = total == sum(samples)
        a, b = net.arena, ddp.model.arena
        checks[f"theta {step}"] = a.theta.tobytes() == b.theta.tobytes()
        checks[f"statistics {step}"] = a.statistics.tobytes() == b.statistics.tobytes()
    checks["ranks"] = len(set(comm.all_gather_object(net.arena.theta.tobytes()))) == 1
    theta, size = net.arena.theta.copy(), comm.world_size
    backpropagate(net, *batch(net, 4, rank))
    text = refused(lambda: allreduce_deltas(comm, net, average != (rank == 1)))
    net.step()
    refuses = f"average=True on {size - 1 if average else 1} of {size} ranks: " in text
    checks["another average"] = refuses and np.array_equal(theta, net.arena.theta) if size > 1 else text == "accepted"
    text = refused(lambda: allreduce_deltas(comm, ddp))
    checks["a DDPSequential"] = "works on a Sequential, not on DDPSequential" in text
    return checks


@on_ranks(deltas_by_hand, "serial", 1, 2, 3, real=2)
@pytest.mark.parametrize("name", FUNCTIONAL)
@pytest.mark.parametrize("average", [True, False])
def test_deltas_by_hand_give_the_bits_of_ddp_sequential(results, name, average):
    check(results, 24 + (name == "BatchNorm"))
