"""Layers that know nothing of how the library runs them: in NumPy, or derived from its own."""

import copy
import sys

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.nn.layers.fused import ActivatedNorm, Step, joined
from tests.battery import check_layer
from tests.battery.example import train
from tests.nn import reference, reference_activation
from tests.nn.networks import assert_same, expected_pass, pass_through, random_batch, randomise
from tests.nn.own_layers import KeepsItsOutput, Passes, Scale, Shifts, Sine, own_layers, scale, sine


@pytest.fixture(autouse=True)
def formulas(monkeypatch):
    monkeypatch.setitem(reference.LAYERS, Scale, scale)
    monkeypatch.setitem(reference.LAYERS, Passes, lambda layer, m, s: (m, s, lambda dm, ds, sums: (dm, ds)))

    def exponential(layer, m, s):
        out = np.exp(m)
        return out, out**2 * s, lambda dm, ds, sums: (out * dm, out**2 * ds)

    monkeypatch.setitem(reference.LAYERS, KeepsItsOutput, exponential)
    monkeypatch.setitem(reference_activation.FORMULAS, "Sine", sine)


def test_they_pass_the_battery():
    assert sys.modules[Sine.__module__].Sine is Sine  # pickles find it
    assert check_layer(own_layers) == {
        "recorded_passes_have_the_same_bits": "a layer of it says that its passes are more than calls of kernels"
    }


def test_it_learns_after_a_step_that_was_refused():
    net = own_layers()
    x = np.ones((3, 8))
    for mu in (0.1, 3e38, 0.1):
        net(x)
        net.set_delta_z(np.full(12, mu), np.full(12, -0.1))
        with np.errstate(over="ignore", invalid="ignore"):
            net.backward()
        if mu < 1:
            net.step()
        else:
            with pytest.raises(FloatingPointError, match="nothing has changed"):
                net.step()


def test_biases_alone():
    net = train(nn.Sequential(nn.Linear(2, 3), Shifts(), nn.Linear(3, 1)), 5)
    assert [tuple(part.size for part in parts) for parts in net.parameters()] == [
        (6, 6, 3, 3),
        (0, 0, 3, 3),
        (3, 3, 1, 1),
    ]
    row = net.inspect(np.ones((4, 2))).rows[1]
    assert np.isnan(row.snr).all() and 0 < row.var_ratio < 1


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
@pytest.mark.parametrize(
    "layers",
    [
        lambda: own_layers().layers,
        lambda: [nn.Linear(4, 6), nn.Tanh(), KeepsItsOutput(), nn.ReLU(), nn.Linear(6, 3)],
        lambda: [nn.Linear(4, 6), nn.ResNetBlock(nn.LayerBlock(Scale(), KeepsItsOutput())), nn.Linear(6, 3)],
        lambda: [nn.Linear(4, 6), nn.ReLU(), nn.ResNetBlock(KeepsItsOutput(), Scale()), nn.Linear(6, 3)],
        lambda: [nn.Linear(4, 6), nn.ResNetBlock(Passes(), nn.LayerBlock(Sine(), Passes())), nn.Linear(6, 3)],
        lambda: [nn.Linear(4, 6), nn.ResNetBlock(Passes(), nn.Linear(6, 6)), Scale(), nn.Linear(6, 3), Passes()],
        lambda: [nn.ResNetBlock(Scale(), nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3)],
    ],
)
def test_each_of_twelve_steps_is_that_of_float64(layers, checkpoint_blocks):
    manual_seed(1)
    net = randomise(nn.Sequential(*copy.deepcopy(layers())))
    if any(isinstance(layer, nn.ResNetBlock) for layer in net.layers):
        net.checkpoint_blocks = checkpoint_blocks
    start = net.arena.theta.copy()
    for seed in range(12):
        batch = random_batch(net, 4 + seed % 2, seed)
        expected = expected_pass(net, *batch)
        assert_same(pass_through(net, *batch), expected, 2e-5)
        net.step()
    assert np.abs(net.arena.theta - start).max() > 0.01


def test_first_in_a_network_nobody_reads_what_backward_gives():
    blocks = nn.ResNetBlock(Scale(), nn.Linear(4, 4)), nn.ResNetBlock(Passes(), nn.Linear(4, 4))
    net = nn.Sequential(*blocks, nn.Linear(4, 2))
    twin = copy.deepcopy(net)
    twin.input_state_update = True
    rng = np.random.default_rng(0)
    for _ in range(6):
        x, *deltas = rng.normal(size=(3, 5, 4)).astype(np.float32)
        for one in (net, twin):
            one(x)  # known: without variances
            one.set_delta_z(*(delta[:, :2] for delta in deltas))
            one.backward()
            one.step()
    assert net.state_dict() == twin.state_dict() and np.isfinite(twin.get_input_states()).all()


def test_the_prior_comes_back():
    net = own_layers()
    before = [np.array(leaf.var_w) for leaf in net.arena.leaves]
    for seed in range(5):
        train(net, 20, seed=seed)
    net.forget_evidence(1e6)
    after = [leaf.var_w for leaf in net.arena.leaves]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    with nn.deferred_init():
        deferred = own_layers()
    deferred.materialize()
    assert np.array_equal(deferred.layers[2].var_w, np.float32([0.1] * 12))
    with pytest.raises(ValueError, match=r"means of biases are of \(2,\), their variances of \(3,\)"):
        Scale().set_prior([1], [1], [0, 0], [1, 1, 1])


class Pools(nn.BaseLayer):
    """`AvgPool2d(2, 2)`, of images with channels first."""

    name = "Pools"

    def infer_output(self, shape):
        return nn.Shape.of_image(shape.channels, shape.height // 2, shape.width // 2)

    def forward(self, x, saved):
        channels, height, width = self.in_shape.image
        windows = (len(x.mu), channels, height // 2, 2, width // 2, 2)
        saved.slope, mu, var = (part.reshape(windows) for part in (x.jcb, x.mu, x.var))
        return nn.State(*(part.reshape(len(part), -1) for part in (mu.mean((3, 5)), var.mean((3, 5)) / 4)))

    def backward(self, delta, saved):
        channels, height, width = self.out_shape.image
        mu, var = (part.reshape(-1, channels, height, 1, width, 1) for part in delta[:2])
        into = saved.slope / 4 * mu, (saved.slope / 4) ** 2 * var
        return nn.Delta(*(part.reshape(len(part), -1) for part in into))


def test_images_have_channels_first():
    """After a convolution, they had channels last."""

    def network(pool, activation):
        manual_seed(0)
        first = nn.Conv2d(2, 4, 3, padding=1, in_width=8, in_height=4)
        block = nn.Parallel([pool(), nn.Tanh(), nn.Conv2d(4, 3, 1)], [nn.MaxPool2d(2, 2), activation()], merge="concat")
        return nn.Sequential(first, nn.Tanh(), block, nn.BatchNorm2d(7), activation(), pool(), nn.Linear(14, 2))

    seen = []

    class Looks(nn.Activation):
        name = "Tanh"

        def forward(self, x, saved):
            seen.append(x.mu.copy())
            slope = 1 - np.tanh(x.mu) ** 2
            return nn.State(np.tanh(x.mu), slope**2 * x.var, slope if x.jcb is None else slope * x.jcb)

    own, twin = network(Pools, Looks), network(lambda: nn.AvgPool2d(2, 2), nn.Tanh)
    for seed in range(5):
        for net in (own, twin):
            train(net, 6, seed=seed)
    np.testing.assert_allclose(own.arena.theta, twin.arena.theta, rtol=1e-4, atol=1e-5)
    x = np.random.default_rng(0).normal(size=(3, 2, 4, 8))
    own.predict(x)
    last = seen[-1]
    features, _ = nn.Sequential(*copy.deepcopy(own.layers[:4])).predict(x)
    np.testing.assert_array_equal(last, features.reshape(3, -1))


# Classes that are derived from the library's. Each of them computes twice what its base does, in its own Python.


class Linear(nn.Linear):
    """Reads variances of its input, and changes deltas in place."""

    def forward(self, state, saved):
        out = super().forward(state, saved)
        saved.factor = 1 + float(np.abs(state.var).max())
        return out

    def backward(self, delta, saved):
        delta.mu[...] *= 1 + float(np.abs(saved.input.var).max()) - saved.factor + 2
        return super().backward(delta, saved)


def doubled(kind: type) -> type:
    """A class derived from one whose output is without a Jacobian."""

    class Doubled(kind):
        def forward(self, state, saved):
            out = super().forward(state, saved)
            return nn.State(2 * out.mu, 4 * out.var)

        def backward(self, delta, saved):
            delta.mu[...] *= 2
            delta.var[...] *= 4
            return super().backward(delta, saved)

    return Doubled


Conv2d, BatchNorm2d, Block = map(doubled, (nn.Conv2d, nn.BatchNorm2d, nn.LayerBlock))


class Tanh(nn.Tanh):
    def forward(self, state, saved):
        out = super().forward(state, saved)
        return nn.State(2 * out.mu, 4 * out.var, 2 * out.jcb)


class Double(nn.BaseLayer):
    """What the classes above do after the library's layer."""

    def forward(self, state, saved):
        return nn.State(2 * state.mu, 4 * state.var, None if state.jcb is None else 2 * state.jcb)

    def backward(self, delta, saved):
        if isinstance(self.behind, nn.Tanh):  # it has given the Jacobian
            return delta
        return nn.Delta(2 * delta.mu, 4 * delta.var)


def after(layer: nn.BaseLayer) -> nn.LayerBlock:
    double = Double()
    double.behind = layer
    return nn.LayerBlock(layer, double)


def image_network(conv, norm, tanh, block) -> nn.Sequential:
    """Where the library joins operations, writes in place and adds to what is there: each layer in each such place."""
    main = nn.LayerBlock(conv(2, 2, 3, padding=1), nn.ReLU(), norm(2))
    short = nn.LayerBlock(conv(2, 2, 1), tanh())
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3, padding=1, in_width=4, in_height=4), nn.ReLU(), norm(2), tanh(), norm(2), nn.ReLU()),
        *(nn.ResNetBlock(main, short), nn.ResNetBlock(block(conv(2, 2, 3, padding=1)), norm(2))),
        nn.ResNetBlock(nn.LayerBlock(tanh(), conv(2, 2, 1), tanh()), block(nn.Conv2d(2, 2, 1))),
        nn.Linear(32, 3),
    )


def test_the_python_of_derived_layers_counts_in_every_step():
    def followed(kind):
        return lambda *args, **kwargs: after(kind(*args, **kwargs))

    manual_seed(1)
    own = image_network(Conv2d, BatchNorm2d, Tanh, Block)
    twin = image_network(*map(followed, (nn.Conv2d, nn.BatchNorm2d, nn.Tanh, nn.LayerBlock)))
    own.arena.theta[...] *= 1 + 0.2 * np.random.default_rng(0).normal(size=own.arena.theta.shape)
    own.parameters_changed()
    twin.arena.theta[...] = own.arena.theta
    twin.parameters_changed()
    for net in (own, twin):
        for seed in range(12):
            train(net, 6, seed=seed)
    assert_same(vars_of(own), vars_of(twin), 1e-4)


def vars_of(net: nn.Sequential) -> dict[str, np.ndarray]:
    return {"theta": net.arena.theta, "statistics": net.arena.statistics}


def test_nothing_is_joined_with_a_derived_layer():
    def steps(norm, convolution):
        net = nn.Sequential(convolution(1, 2, 3, in_width=4, in_height=4), norm(2))
        return [type(step) for step in joined(net.layers)]

    assert steps(nn.BatchNorm2d, nn.Conv2d) == steps(nn.BatchNorm2d, Conv2d) == [Step, ActivatedNorm]
    assert steps(BatchNorm2d, nn.Conv2d) == [Step, Step]


def test_a_derived_layer_may_read_variances_and_change_deltas():
    def network(kind):
        manual_seed(1)
        block = nn.ResNetBlock(nn.LayerBlock(nn.ReLU(), kind(6, 6)), nn.Linear(6, 6))
        return randomise(nn.Sequential(nn.Linear(4, 6), block, kind(6, 3)))

    class Doubles(nn.Linear):
        """As `Linear`, where all that it reads is in place."""

        def backward(self, delta, saved):
            mine = nn.Delta(2 * delta.mu, delta.var, delta.memory)
            return super().backward(mine, saved)

    nets = network(Linear), network(Doubles)
    for net in nets:
        for seed in range(12):
            train(net, 5, seed=seed)
    assert np.array_equal(nets[0].arena.theta, nets[1].arena.theta)


def test_who_is_replayed():
    class Says(nn.ReLU):
        replayable = True

        def forward(self, state, saved):
            return super().forward(state, saved)

    class SaysNothing(Says):
        def forward(self, state, saved):
            return super().forward(state, saved)

    class Inherits(Says):
        pass

    class Describes(nn.Linear):
        """Nothing here computes."""

        name = "Describes"

        def __init__(self, size):
            super().__init__(size, size)

        def settings(self):
            return {"size": self.input_size}

    class Mixin:
        def forward(self, state, saved):
            return super().forward(state, saved)

    class Mixed(Mixin, nn.ReLU):
        pass

    layers = [kind for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, nn.BaseLayer)]
    assert len(layers) > 25
    assert [kind for kind in layers if not kind.replayable] == [nn.BaseLayer]
    assert Says.replayable and Describes.replayable and not Describes.needs_variances
    assert not (SaysNothing.replayable or Inherits.replayable or Mixed.replayable or Sine.replayable)


@pytest.mark.parametrize(
    ("method", "result", "error", "words"),
    [
        ("forward", None, TypeError, r"forward\(\) of Passes\(\) has to give a State, got NoneType"),
        ("forward", nn.State(np.ones((2, 5)), None), ValueError, r"arrays of \(2, 6\), got \(2, 5\)"),
        ("forward", nn.State(np.ones((2, 6)), np.full((2, 6), -0.5)), ValueError, r"variances .* smallest is -0\.5"),
        ("backward", None, TypeError, r"backward\(\) of Passes\(\) has to give the Delta of its input"),
        ("backward", nn.Delta(np.ones(3), np.ones(3)), ValueError, r"arrays of \(2, 6\), got \(3,\)"),
    ],
)
def test_what_no_layer_may_give_is_named(method, result, error, words, monkeypatch):
    monkeypatch.setattr(Passes, method, lambda *_: result)
    net = nn.Sequential(nn.Linear(4, 6), Passes(), nn.Linear(6, 3))
    with pytest.raises(error, match=words):
        train(net, 2)


def test_an_activation_without_a_jacobian_is_named():
    """Deltas went back as if its slope were 1."""

    class Shifts(nn.Activation):
        name = "Shifts"

        def forward(self, x, saved):
            return nn.State(x.mu + 1, x.var, x.jcb)

    class Forgets(Sine):
        def forward(self, x, saved):
            return super().forward(x, saved)._replace(jcb=None)

    class Own(Forgets):
        def backward(self, delta, saved):
            return delta

    for before in ([], [nn.Tanh()]):
        train(nn.Sequential(nn.Linear(4, 6), *before, Shifts(), nn.Linear(6, 3)), 2)
        train(nn.Sequential(nn.Linear(4, 6), *before, Own(), nn.Linear(6, 3)), 2)
        with pytest.raises(ValueError, match=r"forward\(\) of Sine\(\) has to give the Jacobian jcb: its slope"):
            train(nn.Sequential(nn.Linear(4, 6), *before, Forgets(), nn.Linear(6, 3)), 2)


def test_a_layer_without_a_name_has_that_of_its_class(tmp_path):
    """All of them were BaseLayer, so that a file of one could be loaded into another."""
    plain, second = (type(name, (nn.Activation,), {"forward": Sine.forward}) for name in ("Plain", "Second"))
    derived = type("Derived", (nn.ReLU,), {"forward": nn.ReLU.forward})
    names = [kind().name for kind in (plain, type("Inner", (plain,), {}), derived, Sine)]
    assert names == ["Plain", "Plain", "ReLU", "Sine"]
    nn.Sequential(nn.Linear(2, 3), plain()).save(tmp_path / "net")
    with pytest.raises(ValueError, match=r"layer 1 is Plain\.1 there and Second\.1 here"):
        nn.Sequential(nn.Linear(2, 3), second()).load(tmp_path / "net")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1], r"settings\(\) of Set\.1 has to give a dict of arguments, got \[1\]"),
        ({"a": {1}}, r"a of Set\.1: settings\(\) gives numbers, strings, .*, got set"),
    ],
)
def test_settings_that_files_cannot_hold_are_named(given, words, tmp_path):
    class Set(Passes):
        name = "Set"

        def settings(self):
            return given

    with pytest.raises(TypeError, match=words):
        nn.Sequential(nn.Linear(2, 2), Set()).save(tmp_path / "net")


def test_arrays_may_be_settings(tmp_path):
    class Set(Passes):
        name = "Set"

        def __init__(self, values):
            super().__init__()
            self.values = values

        def settings(self):
            return {"values": self.values}

    nets = [nn.Sequential(nn.Linear(2, 2), Set(np.array([1.0, third], np.float32))) for third in (2, 2, 3)]
    nets[0].save(tmp_path / "net")
    nets[1].load(tmp_path / "net")
    with pytest.raises(ValueError, match=r"values of Set\.1 is \[1\.0, 2\.0\] there and \[1\.0, 3\.0\] here"):
        nets[2].load(tmp_path / "net")


def test_a_layer_that_does_not_call_the_constructor_of_its_base_is_named():
    class Bare(Passes):
        def __init__(self, factor):
            self.factor = factor

    with pytest.raises(TypeError, match=r"__init__ of Bare has to call super\(\).__init__\(\)"):
        nn.Parallel(Bare(2), None)


def test_the_prior_of_a_layer_is_found_without_draws_from_the_users_generator():
    class Draws(Scale):
        def init_weight_bias(self):
            self.set_prior(np.random.normal(size=4), np.ones(4))  # noqa: NPY002

    net = nn.Sequential(nn.Linear(2, 4), Draws(), nn.Linear(4, 1))
    before = np.random.get_state()  # noqa: NPY002
    nn.EvidenceSchedule(net, 3, 2)
    net.forget_evidence(2)
    net([[1.0, 2.0]])
    after = np.random.get_state()  # noqa: NPY002
    assert before[2] == after[2]
    np.testing.assert_array_equal(before[1], after[1])


def test_a_layer_that_sets_its_prior_elsewhere_is_told_where():
    """`fit` raised an IndexError."""

    class Elsewhere(Scale):
        init_weight_bias = nn.BaseLayer.init_weight_bias

        def __init__(self):
            super().__init__()
            self.set_prior(np.ones(4), np.ones(4))

    net = nn.Sequential(nn.Linear(2, 4), Elsewhere(), nn.Linear(4, 1))
    for call in (lambda: nn.EvidenceSchedule(net, 3, 2) and train(net, 2), lambda: net.inspect(np.ones((2, 2)))):
        with pytest.raises(TypeError, match=r"the prior of Scale\(\) is not known: call set_prior\(\)"):
            call()
