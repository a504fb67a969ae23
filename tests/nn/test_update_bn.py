"""Fresh statistics of BatchNorm2d: exact, of the network as it is, and nothing else changes."""

import copy

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.data import BatchLoader, ImageDataset
from pytagi_ddp.distributed import DataParallel
from pytagi_ddp.nn import update_bn
from pytagi_ddp.nn.core.tensors import TensorSpec
from tests.learning import learn
from tests.nn.networks import random_batch, randomise


def image(**options) -> nn.Sequential:
    def unit(channels, **conv):
        return nn.Conv2d(channels, 4, 3, padding=1, bias=False, **conv), nn.MixtureReLU(), nn.BatchNorm2d(4)

    block = nn.ResNetBlock(nn.LayerBlock(*unit(4)))
    return nn.Sequential(*unit(2, in_width=6, in_height=6), block, nn.AvgPool2d(2), nn.Linear(36, 3), **options)


def train(net: nn.Sequential, steps: int = 3) -> nn.Sequential:
    """Steps large enough to leave the running statistics behind."""
    for step in range(steps):
        x, _, y, _ = random_batch(net, 20, step)
        learn(net, x, y, 0.01)
    return net


def batches(net: nn.Sequential, *sizes: int, seed: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [3 * rng.normal(size=(size, net.in_shape.size)).astype(np.float32) + 1 for size in sizes]


def statistics(net: nn.Sequential) -> list[tuple[np.ndarray, np.ndarray]]:
    norms = (leaf for _, leaf in net.named_leaves() if isinstance(leaf, nn.BatchNorm2d))
    return [(norm.running_mean.copy(), norm.running_var.copy()) for norm in norms]


@pytest.mark.parametrize("offset", [0, 100])
def test_moments_of_all_batches_in_float64(offset):
    """The input of the first BatchNorm2d does not depend on how batches are cut: any cut gives the exact moments."""
    norm = nn.BatchNorm2d(7, eps=1e-3)
    net = randomise(nn.Sequential(nn.Linear(5, 7), norm, nn.Linear(7, 2)))
    before = nn.Sequential(nn.Linear(5, 7))
    before.layers[0].mu_b[...] = net.layers[0].mu_b[...] = offset * np.arange(7)
    for name in ("mu_w", "var_w", "var_b"):
        getattr(before.layers[0], name)[...] = getattr(net.layers[0], name)
    whole = batches(net, 1000)[0]
    mu, var = (moments.reshape(-1, 7).astype(np.float64) for moments in before(whole))
    mean = mu.mean(axis=0)
    variance = (((mu - mean) ** 2).sum(axis=0) + var.sum(axis=0)) / (len(mu) - 1)
    for cuts in ([], [2], [2, 400, 402], range(10, 1000, 10)):
        update_bn(np.split(whole, cuts), net)
        np.testing.assert_allclose(norm.running_mean, mean, rtol=3e-6, atol=1e-6)
        np.testing.assert_allclose(norm.running_var, variance, rtol=3e-6)
    # Evaluation normalises by them: r t w + b and r^2 (s (w^2 + s_w) + s_w t^2) + s_b in float64.
    head = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm2d(7, eps=1e-3))
    head.load_state_dict({key: value for key, value in net.state_dict().items() if key != "Linear.2"})
    out_mu, out_var = head.predict(whole)
    r, t = 1 / np.sqrt(variance + 1e-3), mu - mean
    w, s_w, b, s_b = (getattr(norm, name).astype(np.float64) for name in ("mu_w", "var_w", "mu_b", "var_b"))
    np.testing.assert_allclose(out_mu, r * t * w + b, rtol=0, atol=3e-6 * max(1, 3 * offset))
    np.testing.assert_allclose(out_var, r**2 * (var * (w**2 + s_w) + s_w * t**2) + s_b, rtol=1e-4)


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_one_batch_is_evaluated_as_in_training(checkpoint_blocks):
    """In every layer of a deep network: with the statistics of one batch, evaluation is training mode for it."""
    net = train(image(checkpoint_blocks=checkpoint_blocks))
    x = batches(net, 50)[0]
    mu, var = net(x)
    net.eval()
    stale = net(x)[0]
    net.train()
    changes = update_bn([x], net)
    net.eval()
    for now, training in zip(net(x), (mu, var), strict=True):
        np.testing.assert_allclose(now, training, rtol=2e-4, atol=2e-5)
    assert np.abs(stale - mu).max() > 0.05
    assert [change.layer for change in changes] == ["BatchNorm2d.2", "BatchNorm2d.main.3.2"]
    assert all(change.mean_shift > 0.05 for change in changes)


def test_how_far_the_old_statistics_were_is_told():
    norm = nn.BatchNorm2d(3, eps=0)
    net = nn.Sequential(norm)
    x = np.random.default_rng(0).normal(2, 0.5, (4000, 3))
    update_bn([x], net)
    exact = statistics(net)[0]
    norm.running_mean[...] += 2 * np.sqrt(norm.running_var)
    norm.running_var[...] *= 9
    (change,) = update_bn([x], net)
    assert change == ("BatchNorm2d.0", pytest.approx(2, rel=1e-5), pytest.approx(9, rel=1e-5))
    assert np.array_equal(statistics(net)[0], exact)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("pool_at_step", [True, False])
def test_nothing_else_changes(training, pool_at_step):
    """Deltas that wait for a step stay: the step gives the bits that it gives without."""
    manual_seed(3)
    net = train(image())
    for norm in net.arena.running:
        norm.pool_at_step = pool_at_step
    x, _, y, _ = random_batch(net, 20, 9)
    net(x)
    net.set_delta_z(y, -np.ones(y.shape))
    net.backward()
    twin = copy.deepcopy(net)
    kept = [array.copy() for array in (net.arena.theta, net.arena.buffer)]
    if not training:
        net.eval()
    update_bn(batches(net, 30, 20), net)
    assert all(map(np.array_equal, kept, (net.arena.theta, net.arena.buffer)))
    assert net.training is training and all(leaf.training is training for _, leaf in net.named_leaves())
    assert [norm.pool_at_step for norm in net.arena.running] == [pool_at_step] * 2
    with pytest.raises(RuntimeError, match="needs a forward pass"):
        net.backward()
    net.step()
    twin.step()
    assert np.array_equal(net.arena.theta, twin.arena.theta)
    # The generator of priors has not moved either.
    prior = nn.Linear(4, 4).mu_w.copy()
    manual_seed(3)
    train(image())
    assert np.array_equal(nn.Linear(4, 4).mu_w, prior)


def test_the_first_batches_of_a_loader_and_what_stands_first_in_them():
    net = train(image())
    given = batches(net, 30, 20, 10)
    update_bn(given[:2], net)
    expected = statistics(net)
    for loader in ([(x, "labels", 3) for x in given], [[x] for x in given], iter(given)):
        train(net, 1)
        before = copy.deepcopy(net)
        update_bn(loader, net, num_batches=2)
        update_bn(given, before, 2)
        assert all(map(np.array_equal, statistics(net), statistics(before)))
    assert not np.array_equal(expected, statistics(net))


WAYS = {
    "Sequential": lambda net: net,
    "DDPSequential": lambda net: nn.DDPSequential(net, nn.DDPConfig(backend="serial")),
    "PipelineSequential": lambda net: nn.PipelineSequential(net, nn.DDPConfig(backend="serial"), n_microbatches=1),
    "DataParallel": lambda net: DataParallel(net, ["cpu"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_loader_stays_where_it_is(way):
    """Else a checkpoint of an epoch under way, or the next iteration, would begin with another batch."""
    net = image()
    images = np.random.default_rng(0).integers(0, 256, (40, 2, 6, 6), np.uint8)
    loader = BatchLoader(ImageDataset(images, np.zeros(40, int), ("a",), "toy"), 4)
    expected = copy.deepcopy(net).update_bn([x for x, _ in loader][:2])
    loader.set_epoch(0, 7)
    wrapped = WAYS[way](net)
    assert update_bn(loader, wrapped, 2) == expected
    assert loader.state_dict()["batch"] == 7
    assert len(list(loader)) == 3
    if way == "DataParallel":
        wrapped.close()


def test_a_network_without_batch_norm_is_left_alone():
    def unread():
        pytest.fail("the loader was read")
        yield

    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm([4]))
    state = net.state_dict()
    assert update_bn(unread(), net) == []
    assert all(np.array_equal(a, b) for key in state for a, b in zip(state[key], net.state_dict()[key], strict=True))


def test_no_output_is_left_that_was_none_of_the_user_s():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm2d(5))
    for _ in range(3):
        net(np.ones((2, 4)))
    net.update_bn([np.arange(8.0).reshape(2, 4)])
    assert net.output_z_buffer.size == 0
    with pytest.raises(RuntimeError, match="no output to observe yet"):
        nn.OutputUpdater("cpu").update(net.output_z_buffer, np.ones(10), np.ones(10), net.input_delta_z_buffer)


@pytest.mark.parametrize(
    ("loader", "arguments", "error", "message"),
    [
        ([], (), ValueError, r"at least two values for each feature, BatchNorm2d\.2 was given 0"),
        ([np.zeros((2, 72))], (0,), ValueError, "num_batches must be at least 1, got 0"),
        ([np.zeros((2, 72)), np.zeros((2, 71))], (), ValueError, "not a whole number of samples of 72 inputs"),
        ([np.full((2, 72), 3e30)], (), FloatingPointError, r"the input of BatchNorm2d\.2 is not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_errors_leave_the_statistics(loader, arguments, error, message):
    net = train(image())
    before, tail = statistics(net), net.arena.tail.copy()
    with pytest.raises(error, match=message):
        update_bn(loader, net, *arguments)
    assert np.array_equal(before, statistics(net))
    assert np.array_equal(tail, net.arena.tail)
    assert net.training
    update_bn(batches(net, 10), net)


def test_arguments_in_the_other_order():
    net = image()
    with pytest.raises(TypeError, match="takes the batches first and then a network, got list for that"):
        update_bn(net, batches(net, 10))


def test_a_replica_is_asked_through_its_wrapper():
    net = image()
    ddp = nn.DDPSequential(net, nn.DDPConfig(backend="serial"))
    with pytest.raises(RuntimeError, match="in a DDPSequential: call that one's, on every rank"):
        update_bn(batches(net, 10), net)
    alone = copy.deepcopy(net)
    update_bn(batches(net, 10), ddp)
    update_bn(batches(net, 10), alone)
    assert np.array_equal(statistics(net), statistics(alone))


def test_a_frozen_norm_keeps_its_statistics():
    """And the norms behind it are given what it makes by them."""
    net = train(image())
    frozen = copy.deepcopy(net)
    first = next(leaf for _, leaf in frozen.named_leaves() if isinstance(leaf, nn.BatchNorm2d))
    first.training = False
    data, before = batches(net, 10, 20), statistics(net)
    changes = update_bn(data, frozen)
    assert (len(changes), first.training, frozen.training) == (1, False, True)
    np.testing.assert_array_equal(first.running_mean, before[0][0])
    np.testing.assert_array_equal(first.running_var, before[0][1])
    assert not np.array_equal(statistics(frozen)[1][0], before[1][0])
    update_bn(data, net)
    assert not np.array_equal(statistics(frozen)[1][0], statistics(net)[1][0])
    for _, leaf in frozen.named_leaves():
        leaf.training = leaf.training and not isinstance(leaf, nn.BatchNorm2d)
    assert update_bn(iter(()), frozen) == []


class Count(nn.BaseLayer):
    """Has running state that is no statistics of a normalisation."""

    def state_tensors(self):
        return (TensorSpec("count", 1, "running"),)

    def forward(self, state, saved):
        return state

    def backward(self, delta, saved):
        return delta


def test_other_running_state_is_left_alone():
    net = nn.Sequential(nn.Linear(3, 4), Count(), nn.BatchNorm2d(4))
    assert [change.layer for change in update_bn(batches(net, 10), net)] == ["BatchNorm2d.2"]
