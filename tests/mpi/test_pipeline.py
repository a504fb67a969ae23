"""Pipelines on real ranks, and on ranks that are threads: the bits of one process with the same micro-batches."""

from contextlib import nullcontext
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.distributed import DDPConfig, DDPSequential, PipelineSequential, SerialCommunicator, init_device_mesh
from pytagi_ddp.distributed.pipeline.schedule import SCHEDULES, bubble, micro_batch_rows
from tests.learning import backpropagate
from tests.mpi import ddp_networks
from tests.mpi.ddp_networks import batch, error_of
from tests.mpi.rank import job_folder
from tests.mpi.shared import on_ranks

SIZES = [(1, 16), (2, 7), (5, 16), (5, 7), (8, 16), (8, 7), (8, 1)]  # micro-batches, samples
NETWORKS = ddp_networks.WITHOUT_BATCH_NORM | {"BatchNorm2d": lambda: ddp_networks.with_batch_norm(2)}
DEEP = {"32 blocks": lambda: ddp_networks.with_batch_norm(32)}  # for more stages than the others have layers
STEPS = 2


def network(name: str = "BatchNorm2d", seed: int = 3) -> nn.Sequential:
    manual_seed(seed)
    return (NETWORKS | DEEP)[name]()


@cache
def steps_of(name: str, samples: int) -> list:
    """The batches of all steps."""
    return [batch(network(name), samples, seed) for seed in range(STEPS)]


def observer(y: np.ndarray):
    updater = nn.OutputUpdater("cpu")
    return lambda states, rows, deltas: updater.update(states, y[rows], np.full(y[rows].size, 1.0), deltas)


@cache
def of_one_process(name: str, micro_batches: int, samples: int) -> tuple:
    """(outputs of each step, state dict) of one process that accumulates the same micro-batches."""
    net = DDPSequential(network(name), DDPConfig(backend="serial"))
    outputs = []
    for x, y in steps_of(name, samples):
        *rows, last = micro_batch_rows(samples, micro_batches)
        moments = []
        for part in rows:
            with net.no_sync():
                backpropagate(net, x[part], y[part])
            moments.append(net.get_outputs())
        backpropagate(net, x[last], y[last])
        moments.append(net.get_outputs())
        outputs.append([np.concatenate(parts) for parts in zip(*moments, strict=True)])
        net.step()
    return outputs, net.state_dict()


def pipeline(comm, name: str = "BatchNorm2d", config: dict | None = None, **options) -> PipelineSequential:
    """Of the network of rank 0; the others have drawn another one."""
    settings = DDPConfig(backend=comm.backend, **(config or {}))
    return PipelineSequential(network(name, 3 + comm.rank), settings, **options)


def learn(net: PipelineSequential, x: np.ndarray, y: np.ndarray) -> tuple:
    return net.forward_backward(x if net.is_first else None, observer(y))


def differences(comm, name: str, micro_batches: int, samples: int, **options) -> str:
    """What of a pipeline is other than of one process."""
    outputs, expected = of_one_process(name, micro_batches, samples)
    net = pipeline(comm, name, n_microbatches=micro_batches, **options)
    found = []
    for step, (x, y) in enumerate(steps_of(name, samples)):
        moments = learn(net, x, y)
        if net.is_last and not all(map(np.array_equal, moments, outputs[step])):
            found.append(f"outputs of step {step}")
        if not net.is_last and any(a.size for a in moments):
            found.append("outputs where there are none")
        net.step()
    if net.state_dict() != expected:
        found.append("parameters")
    return f"{found} of {name}, {options}, M={micro_batches}, n={samples}" if found else ""


def bits(comm, schedule, recompute):
    options = {"schedule": schedule, "recompute": recompute}
    name = "BatchNorm2d" if comm.world_size <= 4 else "32 blocks"
    return [differences(comm, name, m, n, **options) for m, n in SIZES]


@on_ranks(bits, "serial", 2, 3, 4, real=3)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", [False, True])
def test_bits_of_one_process(results, schedule, recompute):
    for result in results:
        assert result == [""] * len(SIZES)


def bits_of_networks(comm):
    names = [name for name in NETWORKS if len(network(name).layers) >= comm.world_size]
    return {name: differences(comm, name, 3, 7) for name in names}


@on_ranks(bits_of_networks, "2 threads", "3 threads", once_a_week=(2, 3))
def test_bits_of_all_networks(results):
    for result in results:
        assert len(result) > 15
        assert set(result.values()) == {""}


def cuts(comm):
    """Two stages, cut between any layers: behind activations too, and with a stage that learns nothing."""
    layers = len(network().layers)
    found = {str(k): differences(comm, "BatchNorm2d", 2, 7, balance=[k, layers - k]) for k in range(1, layers)}
    found["without replicas"] = differences(comm, "BatchNorm2d", 2, 7, config={"wire_dtype": "bfloat16"})
    return found | {"Remax alone": differences(comm, "Remax", 2, 7, balance=[1, 2])}


@on_ranks(cuts, 2)
def test_bits_of_all_cuts(results):
    for result in results:
        assert len(result) == 7
        assert set(result.values()) == {""}


def ordinary_loop(comm):
    """The loop of any network is GPipe: every rank runs the same lines."""
    outputs, expected = of_one_process("BatchNorm2d", 5, 7)
    net, same = pipeline(comm, n_microbatches=5, schedule="GPipe"), True
    for step, (x, y) in enumerate(steps_of("BatchNorm2d", 7)):
        moments = backpropagate(net, x, y)
        same = same and (not net.is_last or all(map(np.array_equal, moments, outputs[step])))
        net.step()
    twice = error_of(net.backward, RuntimeError)
    return same and net.state_dict() == expected, twice


@on_ranks(ordinary_loop, "serial", 2, 3, real=2)
def test_ordinary_loop(results):
    for same, twice in results:
        assert same
        assert "needs a forward pass in training mode" in twice


def empty_share(comm, schedule):
    """Two stages, and as many replicas as there are ranks for: in the second of three steps, one has no samples."""
    mesh = init_device_mesh((-1, 2), ("data", "pipe"), comm)
    replicas, replica = mesh["data"].world_size, mesh["data"].rank
    reference = network("ReLU")
    options = {"average": False, "n_microbatches": 2, "schedule": schedule, "mesh": mesh}
    net = pipeline(comm, "ReLU", **options)
    for step in range(3):
        x, y = batch(reference, 3 * replicas, step)
        backpropagate(reference, *((x[3:], y[3:]) if step == 1 else (x, y)))
        reference.step()
        rows = slice(3 * replica, 3 * replica + (0 if step == 1 and replica == 0 else 3))
        if schedule == "GPipe":
            mu, var = backpropagate(net, x[rows], y[rows])
        else:
            mu, var = learn(net, x[rows], y[rows])
        assert mu.shape == var.shape == ((rows.stop - rows.start) * y.shape[1] * net.is_last,)
        net.step()
    state = net.state_dict()
    mesh.close()
    return ddp_networks.difference(reference.state_dict(), state) if comm.rank == 0 else 0.0


@on_ranks(empty_share, 2, 4, real=2)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_batch_without_samples_counts_as_none(results, schedule):
    assert max(results) < 2e-5


def accumulation(comm):
    """Batches that add up inside no_sync; else one replaces those that wait."""
    x, y = steps_of("BatchNorm2d", 6)[0]
    parts = [slice(0, 4), slice(2, 6), slice(3, 5)]
    reference, net = DDPSequential(network(), DDPConfig(backend="serial")), pipeline(comm, n_microbatches=1)
    equal = []
    for one, learn_from in ((reference, backpropagate), (net, learn)):
        with one.no_sync():
            learn_from(one, x[parts[0]], y[parts[0]])
            learn_from(one, x[parts[1]], y[parts[1]])
            inside = error_of(one.step, RuntimeError)
        learn_from(one, x[parts[2]], y[parts[2]])
        one.step()
    equal.append(net.state_dict() == reference.state_dict())
    for one, learn_from in ((reference, backpropagate), (net, learn)):
        learn_from(one, x[parts[0]], y[parts[0]])
        learn_from(one, x[parts[1]], y[parts[1]])
        one.step()
    equal.append(net.state_dict() == reference.state_dict())
    return equal, inside


@on_ranks(accumulation, "serial", 2, 3, real=2)
def test_accumulation(results):
    for equal, inside in results:
        assert equal == [True, True]
        assert "inside no_sync" in inside


def passes_between(comm):
    """No backward pass after another pass in between; what is refused does not bring the stages out of step."""
    (x, y), _ = steps_of("BatchNorm2d", 7)
    net, said = pipeline(comm, n_microbatches=3, schedule="GPipe"), []
    none = network().predict(x[:0])
    shapes = [a.shape for a in net.predict(x[:0])] == [a.shape for a in none]
    for between in (lambda: net.predict(x[:2]), lambda: learn(net, x, y), lambda: net.update_bn([x])):
        net(x)
        between()
        said.append(error_of(net.backward, RuntimeError))
    return said, shapes


@on_ranks(passes_between, "serial", 2)
def test_no_backward_behind_another_pass(results):
    for said, shapes in results:
        assert all("needs a forward pass in training mode" in text for text in said)
        assert shapes


def results_of_a_network(comm):
    """predict, state_dict, save and load; and what is learned after them."""
    _, expected = of_one_process("BatchNorm2d", 2, 7)
    net = pipeline(comm, n_microbatches=2)
    for x, y in steps_of("BatchNorm2d", 7):
        learn(net, x, y)
        net.step()
    plain = network()
    plain.load_state_dict(expected)
    x = steps_of("BatchNorm2d", 7)[0][0]
    found = {"predict": all(map(np.array_equal, net.predict(x, 3), plain.predict(x, 3)))}
    net.eval()
    moments = net(x)
    plain.eval()
    found["eval"] = not net.is_last or all(map(np.array_equal, moments, plain(x)))
    net.train()
    own, other = job_folder() / "pipeline", job_folder() / "plain"
    net.save(own)
    if comm.rank == 0:
        plain.save(other)
    net.barrier()
    found["bytes of a file"] = own.read_bytes() == other.read_bytes()
    fresh = pipeline(comm, n_microbatches=2)
    fresh.load(other)
    found["load"] = fresh.state_dict() == expected
    fresh = pipeline(comm, n_microbatches=2)
    fresh.load_state_dict({key.replace("Conv2d.", "Conv2dCuda."): values for key, values in expected.items()})
    found["load_state_dict"] = fresh.state_dict() == expected
    found["keys"] = set(net.stage.state_dict()) <= set(expected)
    unknown = error_of(lambda: fresh.load_state_dict(expected | {"Linear.77": expected["Linear.5"]}), KeyError)
    found["unknown"] = "Linear.77" in unknown
    network("ReLU").save(job_folder() / f"other{comm.rank}")
    if net.is_last:
        net.stage.arena.theta[0, 0] = np.nan
    found["NaN"] = "could not be loaded again" in error_of(lambda: net.save(own), ValueError)
    foreign = error_of(lambda: fresh.load(job_folder() / f"other{comm.rank}"), ValueError)
    found["foreign"] = "another architecture: layer 0 is Linear.0 there and Conv2d.0 here" in foreign
    return found


@on_ranks(results_of_a_network, 2, 3, real=3)
def test_results_and_files(results):
    for result in results:
        assert result == dict.fromkeys(result, True)


def fresh_statistics(comm):
    """Those of one process with the same micro-batches; the last stage has no BatchNorm2d."""
    x = [x for x, _ in steps_of("BatchNorm2d", 8)]
    plain = network()
    expected = plain.update_bn([part for batch in x for part in (batch[:4], batch[4:])])
    layers = len(plain.layers)
    middle = [1] * (comm.world_size - 2)
    counts = [layers - 1 - sum(middle), *middle, 1] if comm.world_size > 1 else [layers]
    net = pipeline(comm, n_microbatches=2, balance=counts)
    net.eval()
    batches = ((batch, None) for batch in [*x, np.empty((0, 2)), x[0]])  # the others read nothing, and need no batches
    changes = net.update_bn(batches if net.is_first else None, num_batches=3)
    net.train()
    same = net.state_dict() == plain.state_dict()
    said = error_of(net.backward, RuntimeError), error_of(lambda: net.update_bn([]), ValueError)
    return same and net.state_dict() == plain.state_dict(), changes == expected, len(changes), *said


@on_ranks(fresh_statistics, "serial", 2, 3, real=3)
def test_update_bn(results):
    for statistics, changes, count, forgotten, nothing in results:
        assert statistics
        assert changes
        assert count == 3
        assert "needs a forward pass" in forgotten
        assert "at least two values for each feature, " in nothing and "was given 0" in nothing


def forgetting(comm):
    """The stages forget what one process with the same micro-batches does."""
    ddp, net = DDPSequential(network(), DDPConfig(backend="serial")), pipeline(comm, n_microbatches=2)
    for x, y in steps_of("BatchNorm2d", 8):
        backpropagate_in_parts(ddp, x, y, 2)
        net.forward_backward(x, observer(y))
        waiting = error_of(lambda: net.forget_evidence(1.5), RuntimeError)
        for each in (ddp, net):
            each.step()
            each.forget_evidence(1.5)
    return net.state_dict() == ddp.state_dict(), waiting


@on_ranks(forgetting, "serial", 2, 3, real=2)
def test_forgetting(results):
    for equal, waiting in results:
        assert equal
        assert "call step() first" in waiting


def unusual(comm):
    """Inputs with variances, some missing or passed on; blocks that are run again, in stages that run again, too."""
    x, y = steps_of("BatchNorm2d", 7)[0]
    var_x = np.full_like(x, 0.2)
    x = x.copy()
    x[2, 5] = np.nan
    equal = []
    for recompute in (False, True):
        ddp = DDPSequential(network(), DDPConfig(backend="serial"))
        net = pipeline(comm, n_microbatches=3, recompute=recompute, mesh=None)
        for one in (ddp.model, net.stage):
            one.missing_inputs = "standard normal"
            one.checkpoint_blocks = any("ResNetBlock" in name for name, _ in one.named_layers())
        *rows, last = micro_batch_rows(7, 3)
        for part in (*rows, last):
            with ddp.no_sync() if part is not last else nullcontext():
                ddp(x[part], var_x[part])
                observer(y)(ddp.output_z_buffer, part, ddp.input_delta_z_buffer)
                ddp.backward()
        net.forward_backward(x, observer(y), var_x)
        for one in (ddp, net):
            one.step()
        equal.append(net.state_dict() == ddp.state_dict())
    ddp.model.missing_inputs = net.stage.missing_inputs = "pass"
    pairs = zip(ddp.predict(x), net.predict(x), strict=True)
    return [*equal, all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)]


@on_ranks(unusual, "serial", 3)
def test_unusual_inputs_and_blocks(results):
    assert results == [[True] * 3] * len(results)


def backpropagate_in_parts(net, x, y, micro_batches):
    *rows, last = micro_batch_rows(len(x), micro_batches)
    for part in rows:
        with net.no_sync():
            backpropagate(net, x[part], y[part])
    backpropagate(net, x[last], y[last])


def replicas(comm, average, wire_dtype):
    """Two pipelines of two stages, with 5 and 4 samples: DDPSequential on two ranks, with the same micro-batches."""
    mesh = init_device_mesh((2, 2), ("pipe", "data"), comm)
    net = pipeline(comm, config={"wire_dtype": wire_dtype}, average=average, mesh=mesh, n_microbatches=2)
    ddp = DDPSequential(network(), DDPConfig(wire_dtype=wire_dtype), average=average, communicator=mesh["data"])
    one = DDPSequential(network(), DDPConfig(backend="serial"), average=average)
    everyone = [micro_batch_rows(9, 2)[k] for k in (0, 1)]
    mine = everyone[net.data_group.rank]
    for x, y in steps_of("BatchNorm2d", 9):
        learn(net, x[mine], y[mine])
        backpropagate_in_parts(ddp, x[mine], y[mine], 2)
        with one.no_sync():
            for part in everyone:
                backpropagate_in_parts(one, x[part], y[part], 2)
        for each in (net, ddp, one):
            each.step()
    state = net.state_dict()
    both = (net.pipe_group.rank, net.data_group.rank) == divmod(comm.rank, 2)
    return both, state == ddp.state_dict(), ddp_networks.difference(one.state_dict(), state)


@on_ranks(replicas, 4)
@pytest.mark.parametrize(("average", "wire_dtype"), [(False, "float32"), (True, "float32"), (False, "bfloat16")])
def test_replicas_of_a_pipeline(results, average, wire_dtype):
    for places, same, difference in results:
        assert places
        assert same
        assert average or difference < (1e-6 if wire_dtype == "float32" else 1e-2)


def pipelines_in_groups(comm):
    """Two pipelines beside each other, of two ranks each, with data and schedules of their own."""
    group = comm.split(comm.rank // 2)
    mesh = init_device_mesh((2,), ("pipe",), group)
    half = comm.rank // 2
    found = differences(group, "BatchNorm2d", 2 + half, 7, mesh=mesh, schedule=SCHEDULES[half])
    mesh.close()
    group.close()
    comm.barrier()
    return found


@on_ranks(pipelines_in_groups, 4)
def test_pipelines_beside_each_other(results):
    assert results == [""] * 4


def unequal_pipelines(comm):
    """Three batches in one pipeline, one in the other, which steps along; a checkpoint; NaN in one replica of one."""
    mesh = init_device_mesh((2, 2), ("pipe", "data"), comm)
    net = pipeline(comm, mesh=mesh, n_microbatches=2)
    with net.join():
        for x, y in steps_of("BatchNorm2d", 6)[:1] * (3 if net.data_group.rank else 1):
            learn(net, x, y)
            net.step()
    states = comm.all_gather_object({key: [a.tobytes() for a in arrays] for key, arrays in net.state_dict().items()})
    manager = CheckpointManager(job_folder() / "checkpoints")
    manager.save(net, TrainingPosition())
    other = pipeline(comm, mesh=mesh)
    manager.load(other)
    one_file = manager.save(net, TrainingPosition(step=1), gather=True)
    plain = network(seed=9)
    plain.load(one_file)
    x, y = steps_of("BatchNorm2d", 6)[0]
    learn(net, x, y)
    if comm.rank == 1:
        net.stage.arena.delta[1, 2] = np.inf
    taken = plain.state_dict() == other.state_dict() == net.state_dict()
    return all(state == states[0] for state in states), taken, error_of(net.step, FloatingPointError)


@on_ranks(unequal_pipelines, 4)
def test_pipelines_that_differ(results):
    for equal, taken, message in results:
        assert equal
        assert taken
        assert message.startswith("rank 0, stage 0: 1 of ")


def bad_delta(comm):
    """A NaN on the first stage alone; and a rank that asks to stop."""
    net = pipeline(comm)
    (x, y), _ = steps_of("BatchNorm2d", 8)
    learn(net, x, y)
    if net.is_first:
        net.stage.arena.delta[0, 0] = np.nan
    before = net.stage.arena.theta.copy()
    message = error_of(net.step, FloatingPointError)
    assert np.array_equal(net.stage.arena.theta, before)
    learn(net, x, y)
    if comm.rank == comm.world_size - 1:
        net.request_stop()
    net.step()
    finite = all(np.isfinite(a).all() for values in net.state_dict().values() for a in values)
    return message, net.stop_requested, finite


@on_ranks(bad_delta, "serial", 2, 3, real=2)
def test_a_delta_that_is_not_finite_is_everybodys_error(results):
    for message, stop, finite in results:
        assert message.startswith("rank 0, stage 0: 1 of ")
        assert "layer 0 (Conv2d" in message
        assert stop
        assert finite


def times(comm):
    net = pipeline(comm, n_microbatches=4)
    (x, y), _ = steps_of("BatchNorm2d", 8)
    learn(net, x, y)
    timelines = net.timelines()
    ordered = all(a.stop <= b.start for line in timelines for a, b in pairwise(line))
    return [len({span.action for span in line}) for line in timelines], ordered, bubble(timelines)


@on_ranks(times, "serial", 3)
def test_timelines(results):
    for lengths, ordered, idle in results:
        assert lengths == [8] * len(results)
        assert ordered
        assert 0 <= idle < 1


def deferred(comm):
    """A network that is drawn in its stages is the one that would have been drawn whole."""
    manual_seed(3 + comm.rank)
    with nn.deferred_init():
        model = NETWORKS["BatchNorm2d"]()
    net = PipelineSequential(model, DDPConfig(backend=comm.backend))
    sizes = comm.all_gather_object(net.stage.num_parameters)
    return net.state_dict() == network().state_dict(), sum(sizes) == net.num_parameters == network().num_parameters


@on_ranks(deferred, "serial", 3)
def test_deferred_init(results):
    assert results == [[True, True]] * len(results)


def deferred_on_some(comm):
    with nn.deferred_init() if comm.rank else nullcontext():
        model = network()
    return PipelineSequential(model, DDPConfig(backend=comm.backend))


def refusals(comm):
    """What every rank refuses, without having waited for anybody: what it says, and what that has to hold."""
    x, y = steps_of("BatchNorm2d", 7)[0]
    ranks, net, given_away, evaluated = comm.world_size, pipeline(comm), pipeline(comm), pipeline(comm)
    PipelineSequential(given_away.stage, DDPConfig(backend="serial"))
    evaluated.eval()
    one = init_device_mesh((1, 1), ("pipe", "data"), SerialCommunicator())
    other_names = init_device_mesh((-1, 1), ("pipe", "model"), comm)
    refused = {
        ValueError: [
            (lambda: pipeline(comm, schedule="2F2B"), "'1F1B', 'GPipe', got '2F2B'"),
            (lambda: pipeline(comm, n_microbatches=0), "micro_batches must be at least 1, got 0"),
            (lambda: pipeline(comm, balance=[6, *[0] * (ranks - 1)]), "must be at least 1, got 0"),
            (lambda: pipeline(comm, balance=[6, *[1] * ranks]), f"is for {ranks + 1} stages, there are {ranks}"),
            (lambda: pipeline(comm, balance=[1] * ranks), f"is for {ranks} layers, the network has 6"),
            (lambda: pipeline(comm, "Linear"), f"a network of 1 layers cannot be cut into {ranks} stages"),
            (lambda: pipeline(comm, recompute=comm.rank > 0), "recompute is False on rank 0 and True on rank 1"),
            (lambda: deferred_on_some(comm), "deferred_init is False on rank 0 and True on rank 1"),
            (
                lambda: pipeline(comm, "ReLU" if comm.rank else "Tanh"),
                "layer 1 is Tanh.1 on rank 0 and ReLU.1 on rank 1",
            ),
            (lambda: PipelineSequential(network(), DDPConfig(buckets=2)), "buckets=2 is for DDPSequential"),
            (lambda: PipelineSequential(nn.Sequential(nn.LSTM(2, 3))), "LSTM.0 carries a memory"),
            (lambda: net.predict(x, 0), "batch_size must be at least 1"),
            (lambda: pipeline(comm, mesh=one), f"asks for backend='{comm.backend}', the communicator has 'serial'"),
            (
                lambda: pipeline(comm, mesh=other_names),
                "has the dimensions 'pipe' and 'data', or 'pipe' alone, got ('pipe', 'model')",
            ),
        ],
        TypeError: [
            (lambda: PipelineSequential([network()]), "takes a Sequential and a DDPConfig, got list"),
            (lambda: net.__reduce_ex__(4), "copy or pickle its `model`"),
            (lambda: net.load_state_dict([x]), "a state dict is a dictionary"),
            (lambda: pipeline(comm, mesh=(2, 1)), "has to be one of init_device_mesh, got tuple"),
        ],
        RuntimeError: [
            (lambda: net(x), "is for schedule='GPipe', this one is '1F1B'"),
            (given_away.step, "now belongs to another one"),
            (lambda: learn(evaluated, x, y), "call train() first"),
        ],
        AttributeError: [
            (lambda: setattr(net, "n_microbatches", 2), "'n_microbatches' of a PipelineSequential is settled"),
            (lambda: setattr(net, "schedule", 2), "'schedule' of a PipelineSequential is settled"),
            (lambda: setattr(net, "balance", 2), "'balance' of a PipelineSequential is settled"),
        ],
    }
    return [[error_of(call, kind), said] for kind, rows in refused.items() for call, said in rows]


@on_ranks(refusals, 2, 3, real=2)
def test_refusals(results):
    for found in results:
        assert [(text, said) for text, said in found if said not in text] == []
