"""Examples that together run every kernel: small networks for a step or two, and operations outside of networks.

An example returns its results on a device as arrays by name. `gpu` compares them between two devices.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from pytagi_ddp import cuda, likelihoods, manual_seed, nn
from pytagi_ddp.distributed.ddp import DDPConfig, DDPSequential
from pytagi_ddp.nn.layers.activation import Activation

Results = dict[str, np.ndarray]
TOLERANCE = 2e-4  # relative to the largest number of an array: float32 sums in another order
CANCELLING = 5e-3  # for small differences of large numbers
TF32 = 2e-2  # for factors of 10 bits
CANCELS = {"MixtureSigmoid", "MixtureTanh", "ClosedFormSoftmax"}


class Example(NamedTuple):
    """A function to run on each device, and the tolerance of its results, relative to the largest number of an array.

    Attributes:
        tf32: whether to run it again with `pytagi_ddp.cuda.allow_tf32`.
        tile: the only tile that products on the GPU may use, or None for any; see `kernels.cuda.products.dispatch`.
    """

    name: str
    run: Callable[[str], Results]
    tolerance: float = TOLERANCE
    tf32: bool = False
    tile: Any = None

    def on(self, device: str) -> Results:
        """The results of the example on a device."""
        with nullcontext() if self.tile is None or device == "cpu" else _only(self.tile):
            return self.run(device)


def examples() -> list[Example]:
    """All examples, including those for each tile of products, which only GPUs have."""
    from pytagi_ddp.kernels.cuda.products import dispatch  # here, as it needs numba-cuda

    made = [Example(f"activation {kind.__name__}", *_of_activation(kind)) for kind in _activations()]
    made += [Example(name, _Steps(make, **options)) for name, (make, options) in NETWORKS.items()]
    made += [Example(name, call) for name, call in CALLS.items()]
    for tile in sorted({tile for _, tile in dispatch.FP32}):
        for name, make in PRODUCTS.items():
            kind = dispatch.TRANSPOSED if name.startswith("transposed") else dispatch.FORWARD
            if (kind, tile) in dispatch.FP32:
                what, tf32 = f"{name}, tiles of {tile.rows}x{tile.columns}", (kind, tile) in dispatch.TF32
                made.append(Example(what, _Steps(make, batch=5), tf32=tf32, tile=tile))
    return made


@contextmanager
def _only(tile: Any) -> Iterator[None]:
    """Makes products use this tile, whatever their sizes."""
    from pytagi_ddp.kernels.cuda.products import dispatch, plan

    before = dispatch.SPEEDS, dispatch.TF32_SPEEDS
    dispatch.SPEEDS = dispatch.TF32_SPEEDS = {tile: plan.Speed(1, 1.0)}
    try:
        yield
    finally:
        dispatch.SPEEDS, dispatch.TF32_SPEEDS = before


# -- networks -------------------------------------------------------------------------------------------------------


class _Steps:
    """All results of two steps of a new network, one with input variances and one without."""

    def __init__(self, make: Callable[[], list[nn.BaseLayer]], batch: int = 7, classes: int = 0):
        self._make, self._batch, self._classes = make, batch, classes

    def __call__(self, device: str) -> Results:
        net = network(self._make, device)
        results: Results = {}
        net.input_state_update = True
        for uncertain in (True, False):
            results |= {f"{k}, {uncertain}": v for k, v in self._step(net, uncertain).items()}
        results["prediction"] = np.stack(net.predict(self._inputs(net), 3))
        return results

    def _inputs(self, net: nn.Sequential) -> np.ndarray:
        rng, shape = np.random.default_rng(1), (self._batch, net.in_shape.size)
        if self._classes:
            return rng.integers(0, self._classes, shape).astype(np.float32)
        return rng.standard_normal(shape, dtype=np.float32)

    def _step(self, net: nn.Sequential, uncertain: bool) -> Results:
        rng, x = np.random.default_rng(2), self._inputs(net)
        var_x = rng.uniform(0.05, 0.5, x.shape).astype(np.float32) if uncertain else None
        mu, var = net(x, var_x)
        y = rng.standard_normal(mu.shape, dtype=np.float32)
        updater = nn.OutputUpdater(net.device)
        updater.update(net.output_z_buffer, y, np.full(y.shape, 0.3), net.input_delta_z_buffer)
        net.backward()
        results = {"mean": np.asarray(mu), "variance": np.asarray(var)}
        results["deltas of the input"] = np.stack(net.get_input_states())
        for name, leaf in net.named_leaves():
            if leaf.num_weights:
                for field in ("mu_w", "var_w", "mu_b", "var_b"):
                    results[f"delta_{field} of {name}"] = np.array(getattr(leaf, f"delta_{field}"))
        net.step()
        return results | state_of(net)


def network(make: Callable[[], list[nn.BaseLayer]], device: str = "cpu") -> nn.Sequential:
    """A network on a device, with the same parameters every time, whose means and variances differ from each other."""
    manual_seed(1)
    net, rng = nn.Sequential(*make()), np.random.default_rng(0)
    mu, var = net.arena.theta
    mu += 0.3 * rng.standard_normal(mu.shape, dtype=np.float32) / np.sqrt(1 + mu.size / 1000, dtype=np.float32)
    var *= rng.uniform(0.5, 1.5, var.shape).astype(np.float32)
    net.to_device(device)
    return net


def state_of(net: nn.Sequential) -> Results:
    """The state of a network, including what it carries from step to step."""
    state = net.state_dict(carried=True)
    return {f"{key} {k}": np.array(values) for key, arrays in state.items() for k, values in enumerate(arrays)}


def _activations() -> list[type]:
    found = (getattr(nn, name) for name in nn.__all__)
    return [kind for kind in found if inspect.isclass(kind) and issubclass(kind, Activation) and kind is not Activation]


def _of_activation(kind: type) -> tuple[Callable[[str], Results], float]:
    """An activation between dense layers and (except EvenExp) once more, in place after another activation."""
    tolerance = CANCELLING if kind.__name__ in CANCELS else TOLERANCE
    end = [] if kind is nn.EvenExp else [nn.ReLU, kind]
    return _Steps(lambda: [nn.Linear(9, 6), kind(), nn.Linear(6, 4), *(last() for last in end)]), tolerance


def _conv(c_in: int, c_out: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, 3, padding=1, **options)


def _image(*layers: nn.BaseLayer) -> list[nn.BaseLayer]:
    """`layers` after a convolution from images of 2x8x6 to images of 5x8x6."""
    return [_conv(2, 5, in_width=6, in_height=8), *layers]


def _residual(*layers: nn.BaseLayer, shortcut: nn.BaseLayer | None = None) -> nn.ResNetBlock:
    return nn.ResNetBlock(nn.LayerBlock(*layers), shortcut)


NETWORKS: dict[str, tuple[Callable[[], list[nn.BaseLayer]], dict]] = {
    "batch norm": (lambda: [nn.Linear(9, 6), nn.BatchNorm2d(6), nn.ReLU(), nn.Linear(6, 3)], {"batch": 70}),
    "batch norm of images": (lambda: _image(nn.MixtureReLU(), nn.BatchNorm2d(5), nn.Linear(240, 3)), {}),
    "batch norm, deltas through its statistics": (
        lambda: _image(nn.MixtureReLU(), nn.BatchNorm2d(5, through_statistics=True), nn.Linear(240, 3)),
        {},
    ),
    "residual block on a known input": (lambda: [_residual(nn.Linear(9, 9), nn.ReLU()), nn.Linear(9, 3)], {}),
    "sum of branches": (
        lambda: [nn.Linear(9, 6), nn.Tanh(), nn.Parallel(None, nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 3)],
        {},
    ),
    "branches side by side, of parts of an image": (
        lambda: _image(
            nn.MixtureReLU(),
            nn.Parallel(_conv(2, 3), None, merge="concat", split=[2, 3]),
            nn.Linear(288, 3),
        ),
        {},
    ),
    "layer norm": (lambda: [nn.Linear(9, 6), nn.LayerNorm([6]), nn.ReLU(), nn.Linear(6, 3)], {}),
    "RMS norm": (lambda: [nn.Linear(9, 6), nn.RMSNorm([6]), nn.ReLU(), nn.Linear(6, 3)], {}),
    "average pooling": (lambda: _image(nn.ReLU(), nn.AvgPool2d(2, 2), nn.Linear(60, 3)), {}),
    "maximum pooling": (lambda: _image(nn.ReLU(), nn.MaxPool2d(3, 2, 1, 2), nn.Linear(60, 3)), {}),
    "residual blocks": (
        lambda: _image(
            nn.MixtureReLU(),
            _residual(_conv(5, 5), nn.MixtureReLU(), nn.BatchNorm2d(5)),
            _residual(
                _conv(5, 7, stride=2, padding_type=2),
                nn.BatchNorm2d(7),
                shortcut=nn.LayerBlock(nn.Conv2d(5, 7, 2, stride=2), nn.BatchNorm2d(7)),
            ),
            nn.Linear(84, 3),
        ),
        {},
    ),
    "embedding, attention": (
        lambda: [
            nn.Embedding(5, 8, 6),
            _residual(nn.RMSNorm(8), nn.MultiheadAttention(8, 4, 2)),
            nn.MultiheadAttention(8, 2, causal=False, use_rope=False),
            nn.Linear(8, 3),
        ],
        {"classes": 5},
    ),
    "bins of numbers": (
        lambda: [
            nn.PiecewiseLinearEncoding(
                [[-1, 0, 0.5, 2], None, [-0.5, 1]], [[[0, 1], [-1, 1], [0, 2]], None, [[-1, 1]]], [[0], None, [-1, 1]]
            ),
            nn.Linear(8, 4),
            nn.ReLU(),
            nn.Linear(4, 2),
        ],
        {},
    ),
    "LSTM": (lambda: [nn.LSTM(3, 5, False, 4), nn.LSTM(5, 4, True, 4), nn.Linear(4, 2)], {}),
    "long sums": (lambda: [nn.Linear(900, 20), nn.ReLU(), nn.Linear(20, 700), nn.Tanh(), nn.Linear(700, 3)], {}),
    "long sums over the batch": (lambda: [nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3)], {"batch": 1500}),
}

PRODUCTS: dict[str, Callable[[], list[nn.BaseLayer]]] = {
    "dense": lambda: [nn.Linear(37, 36), nn.Tanh(), nn.Linear(36, 70, bias=False), nn.Linear(70, 5)],
    "convolution": lambda: [
        nn.Conv2d(4, 8, 3, padding=1, in_width=6, in_height=8),
        nn.Tanh(),
        nn.Conv2d(8, 7, 3, stride=2, padding=1, padding_type=2),
        nn.Linear(84, 3),
    ],
    "transposed convolution": lambda: [
        nn.ConvTranspose2d(4, 8, 4, stride=2, padding=1, in_width=4, in_height=3),
        nn.Tanh(),
        nn.ConvTranspose2d(8, 7, 3, padding=1),
        nn.Linear(336, 3),
    ],
}


# -- operations outside of networks ---------------------------------------------------------------------------------


def _updates(device: str) -> Results:
    """Output updates from observations by index and in pairs."""
    net = network(lambda: [nn.Linear(6, 8)], device)
    rng, updater, results = np.random.default_rng(3), nn.OutputUpdater(net.device), {}
    x, y = rng.standard_normal((5, 6)), rng.standard_normal((5, 4))
    index = rng.permuted(np.tile(np.arange(1, 9), (5, 1)), axis=1)[:, :4]
    net(x)
    updater.update_using_indices(net.output_z_buffer, y, np.full(y.shape, 0.3), index, net.input_delta_z_buffer)
    results["indices"] = np.stack([net.input_delta_z_buffer.delta_mu, net.input_delta_z_buffer.delta_var])
    pairs = network(lambda: [nn.Linear(6, 8), nn.EvenExp()], device)
    pairs(x)
    updater.update_heteros(pairs.output_z_buffer, y, pairs.input_delta_z_buffer)
    results["pairs"] = np.stack([pairs.input_delta_z_buffer.delta_mu, pairs.input_delta_z_buffer.delta_var])
    return results


def _likelihoods(device: str) -> Results:
    """Deltas of every kind of likelihood at the same outputs."""
    net = network(lambda: [nn.Linear(6, 8)], device)
    rng = np.random.default_rng(4)
    x, y, counts, classes = rng.normal(size=(5, 6)), rng.normal(size=(5, 8)), rng.poisson(2.0, (5, 8)), np.arange(5)
    observed: dict[likelihoods.Likelihood, np.ndarray] = {
        likelihoods.Gaussian(0.5): y,
        likelihoods.Laplace(0.5): y,
        likelihoods.StudentT(4, 0.5): y,
        likelihoods.Censored(0.5, lower=0): np.maximum(y, 0),
        likelihoods.Bernoulli("logit"): counts > 1,
        likelihoods.Poisson(): counts,
        likelihoods.NegativeBinomial(2): counts,
        likelihoods.Gamma(2): np.exp(y),
        likelihoods.Custom(lambda m, s, y: ((y - m) / (s + 1), -1 / (s + 1))): y,
        likelihoods.Categorical(8): classes,
    }
    results = {}
    for likelihood, values in observed.items():
        net(x)
        likelihood.observe(net, values, weight=0.5)
        deltas = net.input_delta_z_buffer
        results[type(likelihood).__name__] = np.stack([deltas.delta_mu, deltas.delta_var])
    return results


def _smoother(device: str) -> Results:
    net = network(lambda: [nn.SLSTM(2, 3), nn.SLSTM(3, 4), nn.SLinear(4, 2)], device)
    for t in range(3):
        net(np.random.default_rng(t).standard_normal(2))
        net.set_delta_z([0.4, -0.2], [-0.3, -0.1])
        net.backward()
        net.step()
    return {"outputs": np.stack(net.smoother())} | state_of(net)


def _step(net: nn.Sequential | DDPSequential, seed: int = 0) -> None:
    """A training step with output deltas that are the same for every seed."""
    net(np.random.default_rng(seed).standard_normal((6, 4)))
    net.input_delta_z_buffer.delta_mu = np.linspace(-1, 1, 12)
    net.input_delta_z_buffer.delta_var = -np.linspace(0.1, 1, 12)
    net.backward()
    net.step()


def _forgetting(device: str) -> Results:
    net = network(lambda: [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)], device)
    _step(net)
    net.forget_evidence(1.01)  # enough for some variances to reach those of the prior
    return state_of(net)


def _evidence(device: str) -> Results:
    """Steps that pull towards the prior, one of them as the first and one as that of a `DDPSequential`."""
    net = network(lambda: [nn.Linear(4, 5), nn.LayerNorm([5]), nn.ReLU(), nn.Linear(5, 2)], device)
    nn.EvidenceSchedule(net, steps_per_epoch=1, epochs=3)
    for seed in range(2):
        _step(net, seed)
    _step(DDPSequential(net, DDPConfig(backend="serial")), 2)
    return state_of(net)


def _average(device: str) -> Results:
    net = network(lambda: [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)], device)
    average = nn.PosteriorAverage(net)
    for seed in range(3):
        _step(net, seed)
        average.update()
    with average.average_parameters():
        return state_of(net)


def _one_rank(device: str, **options: Any) -> Results:
    """A `DDPSequential` of one process, which runs the kernels before and after an exchange."""
    net = network(lambda: [nn.Linear(4, 5), nn.BatchNorm2d(5), nn.ReLU(), nn.Linear(5, 2)], device)
    ddp = DDPSequential(net, DDPConfig(backend="serial"), **options)
    for seed in range(4):
        _step(ddp, seed)
    return state_of(net)


CALLS: dict[str, Callable[[str], Results]] = {
    "observations by index and in pairs": _updates,
    "likelihoods": _likelihoods,
    "smoother of an SLSTM": _smoother,
    "evidence forgotten": _forgetting,
    "pull towards the prior": _evidence,
    "average of posteriors": _average,
    "exchange of deltas": _one_rank,
    "exchange of statistics": lambda device: _one_rank(device, sync_batch_norm=True),
    "merge": lambda device: _one_rank(device, every=2),
    "merge of means": lambda device: _one_rank(device, every=2, merge="mean"),
    "late merge": lambda device: _one_rank(device, every=2, max_wait=0),
}


# -- a whole step ---------------------------------------------------------------------------------------------------

WAYS = {  # ways to run a step: (replay_launches, use_graphs)
    "walked": (False, False),
    "replayed": (True, False),
    "as CUDA graphs": (True, True),
}


def steps_in_a_way(device: str, way: str, name: str = "residual blocks") -> Results:
    """Five training steps of one of `NETWORKS`, in one of `WAYS`."""
    before = cuda.replay_launches, cuda.use_graphs
    cuda.replay_launches, cuda.use_graphs = WAYS[way]
    try:
        net, rng = network(NETWORKS[name][0], device), np.random.default_rng(0)
        updater = nn.OutputUpdater(net.device)
        for _ in range(5):
            net(rng.standard_normal((4, net.in_shape.size), dtype=np.float32))
            y = rng.standard_normal((4, net.out_shape.size))
            updater.update(net.output_z_buffer, y, np.full(y.shape, 0.3), net.input_delta_z_buffer)
            net.backward()
            net.step()
        return state_of(net)
    finally:
        cuda.replay_launches, cuda.use_graphs = before
