"""What is pickled comes back with its numbers and goes on, also where its arrays come back read-only."""

import copy
import importlib
import importlib.util
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytagi_ddp import HRCSoftmaxMetric, Normalizer, Utils, checkpoint, data, distributed, likelihoods, manual_seed, nn
from pytagi_ddp.moved import MOVED
from pytagi_ddp.nn.core.unpickled import writable
from tests import learning
from tests.likelihoods.examples import EXAMPLES
from tests.pickled import out_of_band
from tests.public_api import MODULES, names_of

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = np.linspace(-1, 1, 6, dtype=np.float32)
SKLEARN = importlib.util.find_spec("sklearn") is not None


def learn(net: nn.Sequential) -> tuple:
    """A step, and what the network predicts then."""
    learning.learn(net, X, Y, 0.1)
    return net.predict(X)


def network() -> nn.Sequential:
    manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Linear(4, 1))
    learn(net)
    return net


def average() -> nn.PosteriorAverage:
    made = nn.PosteriorAverage(network())
    made.update()
    return made


def go_on_averaging(made: nn.PosteriorAverage) -> tuple:
    learn(made.net)
    made.update()
    with made.average_parameters():
        return made.net.predict(X)


def set_means(layer: nn.BaseLayer) -> tuple:
    layer.mu_w = np.arange(12.0)
    layer.delta_var_w = np.ones(12)
    return layer.mu_w, layer.delta_var_w


def set_states(states: nn.BaseHiddenStates) -> tuple:
    states.mu_a[:] = 2
    states.var_a[0] = 3
    return states.mu_a, states.var_a, states.jcb


def set_deltas(deltas: nn.BaseDeltaStates) -> tuple:
    deltas.delta_mu[0] = 5
    deltas.delta_var = np.full(6, 2)
    return deltas.delta_mu, deltas.delta_var


def updater() -> nn.OutputUpdater:
    made = nn.OutputUpdater("cpu")
    observe(made)
    return made


def observe(made: nn.OutputUpdater) -> tuple:
    net = network()
    net(X)
    made.update(net.output_z_buffer, Y, 0.1, net.input_delta_z_buffer)
    return net.input_delta_z_buffer.delta_mu, net.input_delta_z_buffer.delta_var


def images() -> data.ImageDataset:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4), np.uint8)
    return data.ImageDataset(pixels, np.arange(10) % 3, ("a", "b", "c"), "toy")


def batches(loader: data.BatchLoader) -> tuple:
    found = list(loader)
    for x, labels in found:
        x += 1
        labels += 1
    return tuple(array for batch in found for array in batch)


def estimator(name: str) -> Any:
    from pytagi_ddp import estimators

    target = Y if name == "TAGIRegressor" else Y > 0
    made = getattr(estimators, name)(4, epochs=2, n_folds=2, n_seeds=1, random_state=0)
    return made.fit(np.where(X > 1.2, np.nan, X), target)


def serve(made: Any) -> tuple:
    before = made.predict(X)
    made.partial_fit(X, Y if before.dtype.kind == "f" else Y > 0)
    return before, made.predict(np.where(X > 1, np.nan, X))


def forecaster() -> Any:
    from pytagi_ddp.forecasting import Forecaster

    return Forecaster(2, hidden_layer_sizes=(), epochs=2, n_folds=2, n_networks=2, random_state=0).fit(
        np.sin(range(40))
    )


def serial() -> distributed.SerialCommunicator:
    return distributed.SerialCommunicator()


def splits() -> data.RegressionSplits:
    return data.RegressionSplits("toy", X, Y, np.eye(6, dtype=bool))


# Makes a thing, and lets it work: the arrays that come out.
THINGS: dict[type, tuple[Callable[[], Any], Callable[[Any], tuple]]] = {
    nn.Sequential: (network, learn),
    nn.Linear: (lambda: network().layers[0], set_means),
    nn.PosteriorAverage: (average, go_on_averaging),
    nn.FeatureDensity: (
        lambda: nn.FeatureDensity(network()).fit(X, np.arange(6) % 2),
        lambda made: (made.distance(X),),
    ),
    nn.EvidenceSchedule: (
        lambda: nn.EvidenceSchedule(network(), 2, 3),
        lambda made: (made.weight, made.moves_on(), made.weight, repr(made)),
    ),
    nn.BaseHiddenStates: (lambda: network().output_z_buffer, set_states),
    nn.BaseDeltaStates: (lambda: network().input_delta_z_buffer, set_deltas),
    nn.OutputUpdater: (updater, observe),
    nn.DDPConfig: (nn.DDPConfig, lambda made: (repr(made),)),
    data.ImageDataset: (images, lambda made: (made.images[::2], made.labels, made.mean(), made.std())),
    data.ArrayLoader: (lambda: data.ArrayLoader(np.eye(10), np.arange(10), 4), batches),
    data.BatchLoader: (lambda: data.BatchLoader(images(), 4, transform=data.random_crop_flip), batches),
    data.ShardedSampler: (lambda: data.ShardedSampler(9), lambda made: tuple(b.indices for b in made.batches(4))),
    data.EvaluationSampler: (lambda: data.EvaluationSampler(9), lambda made: tuple(b.indices for b in made.batches(4))),
    data.DistributedSampler: (lambda: data.DistributedSampler(9), lambda made: tuple(made)),
    data.IndexBatch: (lambda: data.IndexBatch(np.arange(3), 0, 0, 3), tuple),
    data.ShardRandom: (lambda: data.ShardRandom([1, 2], 4, 0, 4), lambda made: (made.random((4, 2)),)),
    data.RegressionSplits: (splits, lambda made: made.split(2)),
    distributed.SerialCommunicator: (serial, lambda made: (made.rank, made.world_size)),
    distributed.DeviceMesh: (lambda: distributed.DeviceMesh(serial(), (1,), ("a",)), lambda made: (made["a"].rank,)),
    distributed.DistributedDataContainer: (
        lambda: distributed.DistributedDataContainer(serial(), X),
        lambda made: (made[1:], made[0]),
    ),
    checkpoint.TrainingPosition: (checkpoint.TrainingPosition, lambda made: (made.epoch, made.step)),
    checkpoint.CheckpointManager: (lambda: checkpoint.CheckpointManager("never_made"), lambda made: ()),
    HRCSoftmaxMetric: (lambda: HRCSoftmaxMetric(3), lambda made: (made.error_rate(X, X**2, np.arange(6) % 3),)),
    type(HRCSoftmaxMetric(3).hrc_softmax): (
        lambda: HRCSoftmaxMetric(3).hrc_softmax,
        lambda made: (Utils().get_labels(X, X**2, made, 3, 6)[0],),
    ),
    Normalizer: (Normalizer, lambda made: (made.standardize(Y, 0.5, 2.0),)),
    Utils: (Utils, lambda made: (made.get_hierarchical_softmax(3).len,)),
}
ESTIMATORS = ["TAGIRegressor", "TAGIClassifier"] if SKLEARN else []
FORECASTS = {
    "Forecaster": (forecaster, lambda made: (made.predict().mean, made.predict().std)),
    "Forecast": (lambda: forecaster().predict(), lambda made: (made.mean, made.crps([0, 1]), made.sample(3, seed=0))),
    "Backtest": (lambda: forecaster().backtest(np.cos(range(40))), lambda made: (made.truth, made.crps("step"))),
}
FORECASTS |= {
    "EnsemblePrediction": (
        lambda: estimator("TAGIRegressor").predict_distribution(X),
        lambda made: (made.mean, made.std, made.quantile(0.9), made.sample(2, seed=0)),
    ),
}
FORECASTS = FORECASTS if SKLEARN else {}
LIKELIHOODS = {
    **{name: (made, np.full(6, y)) for name, (made, y) in EXAMPLES.items()},
    "HeteroscedasticGaussian": (likelihoods.HeteroscedasticGaussian(), Y[:3]),
    "Categorical": (likelihoods.Categorical(6), [2]),
    "HierarchicalCategorical": (likelihoods.HierarchicalCategorical(5), [2]),
    "Joint": (likelihoods.Joint(likelihoods.Categorical(5), likelihoods.Poisson()), [[2], [1]]),
}


def tell(likelihood: likelihoods.Likelihood, y: Any) -> tuple:
    """The deltas that it gives to six outputs, or to as many as it takes."""
    outputs = likelihood.outputs or 6
    states, deltas = nn.BaseHiddenStates(outputs, 1), nn.BaseDeltaStates(outputs, 1)
    states.mu_a, states.var_a = np.linspace(0.1, 1, outputs), np.ones(outputs)
    likelihood.update(states, y, deltas)
    return deltas.delta_mu.copy(), deltas.delta_var.copy()


CASES = {kind.__name__: case for kind, case in THINGS.items()}
CASES |= {name: (lambda made=made: made, lambda made, y=y: tell(made, y)) for name, (made, y) in LIKELIHOODS.items()}
CASES |= {name: (lambda name=name: estimator(name), serve) for name in ESTIMATORS}
CASES |= FORECASTS

# Public classes whose things have no arrays of their own, or are not pickled.
NOT_PICKLED = {
    "Communicator": "an interface",
    "Likelihood": "an interface",
    "Prediction": "an interface; what it refers to are functions",
    "JointPrediction": "made of predictions",
    "Custom": "as its function is",
    "Handle": "a collective under way",
    "Saved": "refused",
    "Passes": "each copy of a network makes its own",
    "Change": "an enumeration",
    "FederatedPosterior": "sends its network as a message of its own",
    "PosteriorUpdate": "a message of its own, in bytes",
    "MergedRound": "names and texts",
    "DDPSequential": "refused",
    "FSDPSequential": "refused",
    "PipelineSequential": "refused",
    "DataParallel": "refused",
    "StopOnSignal": "refers to a refused network",
    "Checkpoint": "paths and numbers",
    "ImageFolder": "tests/data/test_image_folder.py",
    "FolderLoader": "tests/data/test_image_folder.py",
    "Trainer": "refers to a network and its ranks",
    "Callback": "an interface",
    "Tracker": "an interface",
    "Checkpoints": "belongs to a training",
    "EarlyStopping": "belongs to a training",
    "Log": "belongs to a training",
    "Progress": "belongs to a training",
    "Shape": "a tuple of numbers",
    "State": "a tuple of arrays",
    "Delta": "a tuple of arrays",
}


def same(actual: tuple, expected: tuple) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, out_of_band])
@pytest.mark.parametrize("name", CASES)
def test_what_was_pickled_goes_on(name, duplicate):
    make, use = CASES[name]
    thing = make()
    twin = duplicate(thing)
    same(use(twin), use(thing))
    same(use(duplicate(twin)), use(thing))


def test_every_public_class_is_tried():
    """Layers are tried inside networks, by `tests/battery`."""
    paths = [
        f"pytagi_ddp.{name}".rstrip(".")
        for name in ("", *MODULES)
        if name not in ("estimators", "forecasting") or SKLEARN
    ]
    modules = [importlib.import_module(path) for path in paths]
    public = [getattr(module, name) for module in modules for name in names_of(module)]
    kinds = [thing for thing in public if isinstance(thing, type) and not issubclass(thing, BaseException)]
    others = {kind.__name__ for kind in kinds if not issubclass(kind, nn.BaseLayer)}
    assert len(others) > 30
    missing = others - CASES.keys() - NOT_PICKLED.keys()
    assert not missing, f"add {', '.join(missing)} to a table of CASES, or with the reason to NOT_PICKLED"


@contextmanager
def as_joblib_maps(thing: Any, folder: Any, mode: str) -> Iterator[Any]:
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    joblib.dump(thing, folder / "thing")
    before = (folder / "thing").read_bytes()
    yield joblib.load(folder / "thing", mmap_mode=mode)
    assert (folder / "thing").read_bytes() == before


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize(
    "name", ["Sequential", "Linear", "PosteriorAverage", "BaseDeltaStates", *ESTIMATORS, *FORECASTS]
)
def test_what_joblib_maps_goes_on_and_the_file_stays(name, mode, tmp_path):
    make, use = CASES[name]
    with as_joblib_maps(make(), tmp_path, mode) as twin:
        same(use(twin), use(make()))


@pytest.mark.slow
def test_processes_of_joblib_train_a_network_of_more_than_1_mb():
    """Their arguments are mapped read-only from that size on."""
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 1 << 18), nn.ReLU(), nn.Linear(1 << 18, 1))
    twins = joblib.Parallel(2)(joblib.delayed(learn)(one) for one in [net, net])
    same(twins[1], twins[0])
    same(twins[0], learn(net))


def test_only_what_has_to_be_is_copied():
    inside, locked = np.zeros(3), np.zeros(3)
    locked.flags.writeable = False
    kept = {"a": [inside, (inside, 1)]}
    kept["itself"] = kept
    assert writable(kept) is kept
    state = nn.state.State(locked, None)
    found = writable({"a": [inside, (locked, 1)], "b": state, "itself": kept})
    assert found["a"][0] is inside and found["itself"] is kept
    assert found["a"][1][0].flags.writeable and found["b"].mu.flags.writeable and type(found["b"]) is type(state)
    assert not locked.flags.writeable


@pytest.mark.parametrize("old", MOVED)
def test_pickles_may_name_a_module_by_its_old_place(old):
    if "cuda.output" in old:
        pytest.importorskip("numba_cuda")
    new = importlib.import_module(MOVED[old])
    name = next(name for name, thing in vars(new).items() if getattr(thing, "__module__", "") == new.__name__)
    assert pickle.loads(f"c{old}\n{name}\n.".encode()) is getattr(new, name)
    assert new.__spec__.name == MOVED[old]


def test_an_output_updater_of_version_0_2_0_goes_on():
    earlier = pickle.loads(
        b"ccopyreg\n_reconstructor\n(cpytagi_ddp.nn.output_updater\nOutputUpdater\nc__builtin__\nobject\nNtR"
        b"(dV_express\ncpytagi_ddp.kernels.cpu.output_update\nexpress_update\nsVdevice\nVcpu\nsb."
    )
    for given, expected in zip(observe(earlier), observe(updater()), strict=True):
        np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize("name", ["images", "sequences", "tables"])
def test_networks_that_version_020_pickled_go_on(name):
    """`pickles_0.2.0.npz` was written by that version: each network after two steps, inputs, and what it predicts."""
    with np.load(Path(__file__).with_name("pickles_0.2.0.npz")) as kept:
        net, x = pickle.loads(kept[f"{name}.pickle"].tobytes()), kept[f"{name}.x"]
        for actual, expected in zip(net.predict(x), (kept[f"{name}.out0"], kept[f"{name}.out1"]), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    net(x)
    net.set_delta_z(np.full(expected.size, 0.1), np.full(expected.size, -0.1))
    net.backward()
    net.step()
    assert np.isfinite(net.predict(x)).all()


@pytest.mark.parametrize(
    ("held", "samples", "waiting"), [((5, False), 5, 5), ((5, True), 5, 0), ((-1, True), None, 0), ((0, True), 0, 0)]
)
def test_batch_sums_that_version_020_pickled_wait_as_they_did(held, samples, waiting):
    """-1 stood for a pass that was cut short."""
    state = dict(zip(("samples", "applied"), held, strict=True)) | {"accumulating": False, "average": None}
    written = b"\x80\x02cpytagi_ddp.nn.pending\nPendingDeltas\n)\x81" + pickle.dumps(state, 2)[2:-1] + b"b."
    net = network()
    net.passes.continue_as(pickle.loads(written))
    assert (net.passes.samples, net.passes.waiting) == (samples, waiting)
    if samples is None:
        with pytest.raises(RuntimeError, match="cut short"):
            net.step()
