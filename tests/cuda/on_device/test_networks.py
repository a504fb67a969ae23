"""Whole networks on a device: moves between devices, copies and graphs; steps of each layer: `test_battery.py`."""

import copy
import pickle
from collections import Counter
from functools import partial

import numpy as np
import pytest

from pytagi_ddp import cuda, likelihoods, manual_seed, nn, onnx
from pytagi_ddp.kernels.cuda.runtime.compile import Kernel
from pytagi_ddp.kernels.cuda.runtime.recorder import recording
from tests.nn.networks import assert_same, pass_through, random_batch, randomise
from tests.nn.own_layers import Passes


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.MixtureReLU(), nn.LayerNorm([6]), nn.Linear(6, 3), nn.Remax())


def image() -> nn.Sequential:
    conv = nn.Conv2d(2, 3, 3, padding=1, in_width=4, in_height=4, bias=False)
    tail = (nn.BatchNorm2d(3), nn.MixtureReLU(), nn.AvgPool2d(2, 2), nn.MaxPool2d(2, 1), nn.Linear(3, 2))
    return nn.Sequential(conv, nn.Tanh(), *tail)


def residual() -> nn.Sequential:
    def unit(c_in, c_out, **conv):
        return [nn.Conv2d(c_in, c_out, bias=False, **conv), nn.MixtureReLU(), nn.BatchNorm2d(c_out)]

    same = nn.ResNetBlock(nn.LayerBlock(*unit(2, 2, kernel_size=3, padding=1)))
    main = nn.LayerBlock(*unit(2, 3, kernel_size=3, stride=2, padding=1, padding_type=2))
    half = nn.ResNetBlock(main, nn.LayerBlock(*unit(2, 3, kernel_size=2, stride=2)))
    stem = unit(1, 2, kernel_size=3, padding=1, in_width=4, in_height=4)
    return nn.Sequential(*stem, same, half, nn.AvgPool2d(2), nn.Linear(3, 2))


def train(net: nn.Sequential, steps: int, batch: int = 3, seed: int = 0, ddp: nn.DDPSequential | None = None) -> None:
    """Steps of a network, by the DDPSequential that trains it if there is one."""
    rng, model = np.random.default_rng(seed), ddp or net
    updater = nn.OutputUpdater(net.device)
    for _ in range(steps):
        model(rng.standard_normal((batch, net.in_shape.size)))
        y = rng.standard_normal((batch, net.out_shape.size))
        updater.update(net.output_z_buffer, y, np.full(y.shape, 0.3), net.input_delta_z_buffer)
        model.backward()
        model.step()


def assert_equal_states(net: nn.Sequential, other: nn.Sequential, tolerance: float) -> None:
    a, b = net.state_dict(), other.state_dict()
    flat = [{f"{k} {i}": array for k, arrays in s.items() for i, array in enumerate(arrays)} for s in (a, b)]
    assert_same(*flat, tolerance)


def test_an_onnx_graph_of_a_network_on_the_device(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed")
    manual_seed(0)
    net, paths = residual(), [tmp_path / "cpu.onnx", tmp_path / "cuda.onnx"]
    onnx.export(net, paths[0])
    net.to_device("cuda")
    onnx.export(net, paths[1])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_what_is_read_cannot_be_written_to():
    """It is a copy: what was written there was lost without a word."""
    net = nn.Sequential(nn.Linear(2, 3))
    net.to_device("cuda")
    net(np.ones((1, 2)))
    states, deltas = net.output_z_buffer, net.input_delta_z_buffer
    for values in (net.layers[0].mu_w, net.layers[0].var_b, states.mu_a, states.jcb, deltas.delta_mu):
        with pytest.raises(ValueError, match="read-only"):
            values[:] = 1
    net.layers[0].mu_w = np.ones(6)
    assert net.state_dict()["Linear.0"][0].sum() == 6
    net.state_dict()["Linear.0"][0][:] = 0  # a copy of the user's


def test_fresh_statistics():
    host = randomise(residual())
    train(host, 2)
    device = copy.deepcopy(host)
    device.to_device("cuda")
    for net in (host, device):
        nn.update_bn(np.random.default_rng(1).normal(1, 2, (3, 4, 16)), net)
    assert_equal_states(device, host, 2e-5)


def name_of(queued) -> str:
    """Of a kernel, or of a copy."""
    kernel = getattr(queued, "__self__", None)
    return kernel.name if isinstance(kernel, Kernel) else queued.__name__


def test_residual_blocks_launch_nothing_between_products_and_normalisations():
    """Activations, Jacobians of deltas and sums of branches are part of these."""
    net = residual()
    net.to_device("cuda")
    train(net, 1)
    with recording() as work:
        train(net, 1)
    names = Counter(name_of(function) for function, _ in work)
    products = "fp32", "tf32", "finish_sum", "convolution_pack"
    rest = {name: count for name, count in names.items() if not any(product in name for product in products)}
    expected = {"batch_norm__finish": 4, "batch_norm__forward": 2, "batch_norm__forward_both": 1}
    expected |= {"batch_norm__backward": 4, "pooling__average_forward": 1, "pooling__average_backward": 1}
    expected |= {"output_update__update": 1, "step__look": 1, "step__step": 1}
    # Statistics, which an overflow puts back: noted before the pass, kept behind the step.
    expected |= {"_copy_on_device": 2, "step__settle": 1}
    assert rest == expected


def test_blocks_that_are_run_again():
    host = randomise(residual())
    device = copy.deepcopy(host)
    device.checkpoint_blocks = True
    device.to_device("cuda")
    train(host, 2)
    train(device, 2)
    assert_equal_states(device, host, 5e-5)


def test_there_and_back():
    """Everything comes along, before and after training: the networks stay equal to the last bit where they rest."""
    host = randomise(image())
    train(host, 1)
    batch = random_batch(host, 3)
    before = pass_through(host, *batch)
    moved = copy.deepcopy(host)
    tail = moved.arena.tail.copy()
    tail[:3] = [7, 1, 0]
    moved.arena.tail[:3] = tail[:3]
    moved.to_device("cuda")
    assert moved.device == "cuda:0"
    assert moved.state_dict() == host.state_dict()
    np.testing.assert_array_equal(moved.kernels.array.to_host(moved.arena.tail), tail)
    deltas = {key: leaf.delta_mu_w for key, leaf in moved.named_leaves()}
    assert all(np.array_equal(deltas[key], leaf.delta_mu_w) for key, leaf in host.named_leaves())
    np.testing.assert_array_equal(moved.get_outputs()[0], before["output mean"])
    with pytest.raises(RuntimeError, match="forward pass"):
        moved.backward()
    train(moved, 1, seed=1)
    on_device = moved.state_dict()
    moved.to_device("cpu")
    assert moved.device == "cpu" and moved.state_dict() == on_device
    train(moved, 1, seed=2)
    train(host, 1, seed=1)
    train(host, 1, seed=2)
    assert_equal_states(moved, host, 5e-5)


def test_deltas_that_wait_for_a_step_move_along_both_ways():
    def kept(net):
        return [net.kernels.array.to_host(a) for a in (net.arena.theta, net.arena.buffer, net.arena.statistics)]

    host = randomise(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm2d(5), nn.ReLU(), nn.Linear(5, 3)))
    batch, y = random_batch(host, 3)[0], np.linspace(-1, 1, 9)
    train(host, 1)
    moved = copy.deepcopy(host)
    for start, end in (("cpu", "cuda"), ("cuda:0", "cpu")):
        assert moved.device == start
        for net in (host, moved):
            net(batch)
            nn.OutputUpdater(net.device).update(net.output_z_buffer, y, 0.3, net.input_delta_z_buffer)
            net.backward()
        before = kept(moved)
        assert all(a.any() for a in before)
        moved.to_device(end)
        assert all(map(np.array_equal, before, kept(moved)))
        for net in (host, moved):
            net.step()
        assert_same(dict(enumerate(kept(moved))), dict(enumerate(kept(host))), 2e-5)
    assert moved.device == "cpu"


def test_copies_of_a_network_on_a_device():
    net = randomise(dense())
    net.to_device("cuda:0")
    train(net, 1)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin.device == "cuda:0"
        assert twin.state_dict() == net.state_dict()
        np.testing.assert_array_equal(twin.get_outputs()[1], net.get_outputs()[1])
        train(twin, 1)
        assert twin.state_dict() != net.state_dict()


def test_files(tmp_path):
    net, host = randomise(image()), image()
    net.to_device("cuda")
    net.save(tmp_path / "net")
    host.load(tmp_path / "net")
    assert host.state_dict() == net.state_dict()
    other = randomise(image(), seed=5)
    net.params_from(other)
    assert net.state_dict() == other.state_dict()


def test_networks_in_a_row():
    """An output on one device is the input of a network on another."""
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)  # a mean near 0 is a sum of numbers near 1
    first, second = randomise(dense()), randomise(nn.Sequential(nn.Linear(3, 2)), seed=3)
    x = random_batch(first, 3)[0]
    first(x)
    expected = second(first.output_z_buffer)
    second.to_device("cuda")
    close(second(first.output_z_buffer), expected)
    first.to_device("cuda")
    first(x)
    second.to_device("cpu")
    close(second(first.output_z_buffer), expected)


def test_what_is_read_can_be_assigned():
    net = dense()
    net.to_device("cuda")
    train(net, 1)
    z, layer = net.output_z_buffer, net.layers[0]
    z.mu_a = np.full(z.size, 7)
    assert (z.mu_a == 7).all()
    layer.mu_w = np.arange(30)
    np.testing.assert_array_equal(layer.mu_w, np.arange(30))
    layer.delta_mu_w = np.ones(30)
    np.testing.assert_allclose(layer.delta_mu_w, 1, 1e-6)


@pytest.mark.parametrize("mode", ["indices", "heteros"])
def test_other_updates(mode):
    net, results = randomise(nn.Sequential(nn.Linear(3, 4), nn.EvenExp())), []
    for device in ("cpu", "cuda"):
        net.to_device(device)
        net(random_batch(net, 2)[0])
        states, deltas = net.output_z_buffer, net.input_delta_z_buffer
        updater = nn.OutputUpdater(device)
        if mode == "indices":
            updater.update_using_indices(states, [1, np.nan, 3, 4], [0.1] * 4, [1, 4, 2, 2], deltas)
        else:
            updater.update_heteros(states, [1, 2, np.nan, 4], deltas)
        results.append({"mean": deltas.delta_mu, "variance": deltas.delta_var})
    assert_same(*reversed(results), 1e-5)


def test_noise_variances_are_looked_at_only_where_they_may_be_negative(monkeypatch):
    """A look copies them to the host, which waits for the GPU."""
    net = nn.Sequential(nn.Linear(3, 4), nn.EvenExp())
    net.to_device("cuda")
    arrays, looks = type(net.kernels.array), []
    visible = arrays.visible
    monkeypatch.setattr(arrays, "visible", lambda *a: (looks.append(1), visible(*a))[1])
    updater, states, deltas = nn.OutputUpdater(net.device), net.output_z_buffer, net.input_delta_z_buffer
    for _ in range(2):
        net(np.ones((2, 3)))
        updater.update_heteros(states, np.zeros(4), deltas)
        assert not looks
        states.mu_a = -np.ones(8)
        with pytest.raises(ValueError, match="4 of 4 are negative: end the network with EvenExp"):
            updater.update_heteros(states, np.zeros(4), deltas)
        looks.clear()
    plain = nn.Sequential(nn.Linear(3, 4))
    plain.layers[0].mu_w, plain.layers[0].mu_b = -np.ones(12), np.zeros(4)
    plain.to_device("cuda")
    plain(np.ones((2, 3)))
    with pytest.raises(ValueError, match="4 of 4 are negative"):
        updater.update_heteros(plain.output_z_buffer, np.zeros(4), plain.input_delta_z_buffer)


@pytest.mark.filterwarnings("ignore:.*invalid value:RuntimeWarning")
def test_a_delta_that_is_not_finite_is_reported_with_the_next_step():
    net = nn.Sequential(nn.Linear(2, 2))
    net.to_device("cuda")
    for look in (net.step, net.eval, net.state_dict):
        net.train()
        before = np.array(net.layers[0].mu_w)
        net([[1.0, 2.0]])
        net.set_delta_z([np.inf, 0], [0, 0])
        net.backward()
        net.step()
        np.testing.assert_array_equal(net.layers[0].mu_w[:2], before[:2])
        with pytest.raises(FloatingPointError, match=r"3 of 6 parameters .* layer 0 \(Linear\(2,2\)\)"):
            look()


@pytest.mark.parametrize(("replay", "graphs"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("average", [None, True, False])
def test_pull_towards_the_prior(replay, graphs, average, monkeypatch):
    """Each step reads the rate, also one that is replayed; with ranks, a schedule learns later of its samples."""
    monkeypatch.setattr(cuda, "replay_launches", replay)
    monkeypatch.setattr(cuda, "use_graphs", graphs)
    on_host = randomise(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm([4]), nn.ReLU(), nn.Linear(4, 2)))
    net = copy.deepcopy(on_host)
    net.to_device("cuda")
    for each in (net, on_host):
        nn.EvidenceSchedule(each, steps_per_epoch=2, epochs=3)
        ddp = None if average is None else nn.DDPSequential(each, nn.DDPConfig(backend="serial"), average=average)
        train(each, 4, ddp=ddp)
        if ddp is not None:
            ddp.step()  # without samples
        train(each, 3, ddp=ddp)
        each.schedule.epochs = 5
        train(each, 1, ddp=ddp)
    assert net.schedule.state_dict() == on_host.schedule.state_dict()
    assert net.schedule.steps == 8
    assert_equal_states(net, on_host, 1e-4)


@pytest.mark.parametrize(("replay", "graphs"), [(False, False), (True, False), (False, True)])
def test_frozen_layers(replay, graphs, monkeypatch):
    monkeypatch.setattr(cuda, "replay_launches", replay)
    monkeypatch.setattr(cuda, "use_graphs", graphs)
    start = randomise(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    start.layers[2].freeze()
    net, on_host = copy.deepcopy(start), copy.deepcopy(start)
    net.to_device("cuda")
    for freeze in (True, False):
        before = net.state_dict()
        for each in (net, on_host):
            each.layers[2].freeze() if freeze else each.layers[2].unfreeze()
            train(each, 3)
            each.forget_evidence(1.5)
            train(each, 1)
        same = [all(map(np.array_equal, before[key], values)) for key, values in net.state_dict().items()]
        assert same == [False, freeze, False]
        for values, expected in zip(net.state_dict().values(), on_host.state_dict().values(), strict=True):
            for a, b in zip(values, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for layer in net.layers:
        layer.freeze()
    before = net.state_dict()
    train(net, 3)
    assert net.state_dict() == before


def test_a_noise_that_overflows_is_reported_with_the_next_step():
    net = nn.Sequential(nn.Linear(1, 2), nn.EvenExp())
    net.layers[0].mu_w = [1, 1]
    net.to_device("cuda")
    net([[100.0]])
    nn.OutputUpdater("cuda").update_heteros(net.output_z_buffer, [0.0], net.input_delta_z_buffer)
    net.backward()
    net.step()
    with pytest.raises(FloatingPointError, match="standardise the inputs"):
        net.eval()


def test_replays_and_graphs_do_what_was_recorded(monkeypatch):
    """The same steps walked, replayed and as graphs give the same bits; batch sizes and modes change in between."""
    start, states = randomise(image()), []
    for replay, graphs in ((False, False), (True, False), (False, True)):
        monkeypatch.setattr(cuda, "replay_launches", replay)
        monkeypatch.setattr(cuda, "use_graphs", graphs)
        net = copy.deepcopy(start)
        net.to_device("cuda")
        kernel = net.kernels.conv2d.forward
        seen = []
        monkeypatch.setattr(net.kernels.conv2d, "forward", lambda *a, k=kernel, s=seen: (s.append(1), k(*a)))
        train(net, 4)
        train(net, 1, batch=2)
        net.predict(np.ones((3, 32)))
        train(net, 3)
        monkeypatch.setattr(net.kernels.conv2d, "forward", kernel)
        states.append(net.state_dict())
        # As Python, recorded; other batch; evaluation; as Python, recorded
        assert len(seen) == (2 + 1 + 1 + 2 if replay or graphs else 4 + 1 + 1 + 3)
    assert states[0] == states[1] == states[2]


def test_memory_and_smoother():
    """One sample at a time: states, their smoothed moments and the outputs as on the CPU."""
    host = randomise(nn.Sequential(nn.SLSTM(2, 3), nn.SLSTM(3, 4), nn.SLinear(4, 2)))
    device = copy.deepcopy(host)
    device.to_device("cuda")
    found = []
    for net in (host, device):
        train(net, 3, batch=1)
        states = net.get_lstm_states()
        outputs = dict(zip(("mean", "variance"), net.smoother(), strict=True))
        smoothed = [net.get_lstm_states(t) for t in range(3)]
        moments = {(t, k): np.stack(s[k]) for t, s in enumerate([states, *smoothed]) for k in s}
        found.append(outputs | moments)
        net.set_lstm_states(states)
        assert all(np.array_equal(np.stack(net.get_lstm_states()[k]), np.stack(states[k])) for k in states)
    assert_same(found[1], found[0], 2e-5)


class OnHost(nn.BaseLayer):
    """Doubles its input, in NumPy on the host."""

    name = "OnHost"

    def forward(self, state, saved):
        host = self.kernels.array.to_host
        saved.jcb = 1 if state.jcb is None else host(state.jcb)
        return nn.State(2 * host(state.mu), 4 * host(state.var))

    def backward(self, delta, saved):
        host = self.kernels.array.to_host
        return nn.Delta(2 * saved.jcb * host(delta.mu), (2 * saved.jcb) ** 2 * host(delta.var))


class Norm(nn.BatchNorm2d):
    """Doubles on the host what it is given, and what it gives."""

    def forward(self, state, saved):
        host = self.kernels.array.to_host
        var, jcb = (np.ones(state.mu.shape) if a is None else host(a) for a in (state.var, state.jcb))
        moments = (self.kernels.array.place(np.float32(a)) for a in (2 * host(state.mu), 4 * var, jcb))
        out = super().forward(nn.State(*moments), saved)
        return nn.State(2 * host(out.mu), 4 * host(out.var))


class Conv(nn.Conv2d):
    def forward(self, state, saved):
        out = super().forward(state, saved)
        return nn.State(2 * self.kernels.array.to_host(out.mu), out.var)


def test_layers_that_know_nothing_of_the_device():
    """Where kernels would join a normalisation with the convolution and the activation in front."""
    block = nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(2, 2, 1), nn.ReLU(), Norm(2)))
    stem = Conv(1, 2, 1, in_width=2, in_height=2), nn.ReLU(), nn.BatchNorm2d(2), nn.Tanh(), OnHost()
    host = randomise(nn.Sequential(*stem, block, Passes(), nn.Linear(8, 2)))
    device = copy.deepcopy(host)
    device.to_device("cuda")
    train(host, 2)
    train(device, 2)
    assert_equal_states(device, host, 1e-4)


def test_likelihoods_of_every_kind():
    """Observations of a network on a GPU give the deltas and the step that they give on the CPU."""
    likelihood = likelihoods.Joint(
        likelihoods.Categorical(3),
        likelihoods.Poisson(),
        likelihoods.StudentT(3, 0.5),
        likelihoods.Censored(0.5, lower=0),
        likelihoods.Custom(lambda m, s, y: ((y - m) / (s + 1), -1 / (s + 1))),
    )
    y = [[0, 2, -1], [1, np.nan, 3], [0.5, 0, 9], [-1, 0.2, np.nan], [1, 2, 3]]
    x, results = np.linspace(-1, 1, 6).reshape(3, 2), []
    for device in ("cpu", "cuda:0"):
        manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 7))
        net.to_device(device)
        net(x)
        likelihood.observe(net, y, weight=[1, 2, 0.5])
        deltas = [np.array(net.input_delta_z_buffer.delta_mu), np.array(net.input_delta_z_buffer.delta_var)]
        net.backward()
        net.step()
        results.append((*deltas, *net.predict(x)))
    for on_cpu, on_gpu in zip(*results, strict=True):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-4, atol=1e-5)
