"""What holds between batches, for every kind of layer: shards add up, samples do not mix, buffers of any size."""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.nn.networks import DELTAS, assert_same, learned, pass_through, random_batch, randomise


def conv(c_in, c_out, **options):
    return nn.Conv2d(c_in, c_out, 3, padding=1, **options)


def stem():
    return nn.Conv2d(2, 3, 3, in_width=6, in_height=4)


# Without BatchNorm2d, whose statistics tie the samples of a batch together.
NETWORKS = {
    "Linear": lambda: [nn.Linear(4, 5), nn.Linear(5, 3, bias=False)],
    "Conv2d": lambda: [stem(), conv(3, 2)],
    "strided": lambda: [stem(), nn.Conv2d(3, 2, 2, stride=2)],
    "AvgPool2d": lambda: [stem(), nn.AvgPool2d(2), conv(3, 1)],
    "MaxPool2d": lambda: [stem(), nn.MaxPool2d(2), conv(3, 1)],
    "LayerNorm": lambda: [nn.Linear(4, 5), nn.LayerNorm([5]), nn.Linear(5, 2)],
    "LayerNorm of images": lambda: [stem(), nn.LayerNorm([3, 2, 4]), nn.Linear(24, 2)],
    "LayerBlock": lambda: [nn.LayerBlock(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 2)],
    "ResNetBlock": lambda: [
        stem(),
        nn.MixtureReLU(),
        nn.ResNetBlock(nn.LayerBlock(conv(3, 3), nn.MixtureReLU(), conv(3, 3))),
        nn.ResNetBlock(nn.LayerBlock(conv(3, 2), nn.ReLU()), conv(3, 2)),
        nn.Linear(16, 2),
    ],
}
ACTIVATIONS = [
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.MixtureReLU,
    nn.MixtureSigmoid,
    nn.MixtureTanh,
    nn.Softmax,
    nn.EvenExp,
    nn.Remax,
    nn.ClosedFormSoftmax,
]
for activation in ACTIVATIONS:
    NETWORKS[activation.__name__] = lambda kind=activation: [nn.Linear(4, 6), kind(), nn.Linear(6, 3)]

WITH_BATCH_NORM = {
    "BatchNorm2d": lambda: [nn.Linear(4, 5), nn.BatchNorm2d(5), nn.Linear(5, 2)],
    "BatchNorm2d of images": lambda: [stem(), nn.ReLU(), nn.BatchNorm2d(3), nn.MaxPool2d(2, 2), nn.Linear(6, 2)],
}


def network(make) -> nn.Sequential:
    return randomise(nn.Sequential(*make()))


def rows(arrays, index) -> tuple:
    return tuple(array[index] for array in arrays)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_shards_add_up(make):
    net = network(make)
    batch = random_batch(net, 9)
    whole = pass_through(net, *batch)
    shards = [pass_through(net, *rows(batch, part)) for part in (slice(0, 4), slice(4, 5), slice(5, 9))]
    for name, expected in whole.items():
        parts = [shard[name] for shard in shards]
        joined = sum(parts) if name.startswith(DELTAS) else np.concatenate(parts)
        assert_same({name: joined}, {name: expected}, 5e-6)


@pytest.mark.parametrize("make", (NETWORKS | WITH_BATCH_NORM).values(), ids=NETWORKS | WITH_BATCH_NORM)
def test_a_permuted_batch_gives_permuted_outputs(make):
    net = network(make)
    batch = random_batch(net, 8)
    order = np.random.default_rng(2).permutation(8)
    plain = pass_through(net, *batch)
    permuted = pass_through(net, *rows(batch, order))
    for name, expected in plain.items():
        if not name.startswith(DELTAS):
            expected = expected.reshape(8, -1)[order]
        assert_same({name: permuted[name]}, {name: expected}, 5e-6)


@pytest.mark.parametrize("make", (NETWORKS | WITH_BATCH_NORM).values(), ids=NETWORKS | WITH_BATCH_NORM)
def test_growing_and_shrinking_batches_equal_fresh_networks(make):
    net = network(make)
    blank = copy.deepcopy(net)
    for size in (2, 7, 3, 64, 2):
        batch = random_batch(net, size, seed=size)
        fresh = copy.deepcopy(blank)
        assert_same(pass_through(net, *batch), pass_through(fresh, *batch), 0)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_one_sample_between_large_batches(make):
    """With and without input variances in turn: nothing of an earlier batch is left in a buffer."""
    net = network(make)
    blank = copy.deepcopy(net)
    for size, with_variance in ((9, True), (1, False), (5, True), (9, False)):
        batch = random_batch(net, size, seed=size, with_variance=with_variance)
        assert_same(pass_through(net, *batch), pass_through(copy.deepcopy(blank), *batch), 0)


def test_steps_on_changing_batches_equal_fresh_networks():
    """Training, not only passing: the cap follows each batch, and no delta of a larger batch is applied again."""
    net = network(NETWORKS["ResNetBlock"])
    for size in (1, 7, 3, 260, 2):
        fresh = nn.Sequential(*NETWORKS["ResNetBlock"]())
        fresh.load_state_dict(net.state_dict())
        batch = random_batch(net, size, seed=size)
        for model in (net, fresh):
            pass_through(model, *batch)
            model.step()
        assert net.state_dict() == fresh.state_dict()


def test_backward_can_be_repeated():
    """It replaces the deltas, and so does a new forward pass; nothing accumulates."""
    net = network(WITH_BATCH_NORM["BatchNorm2d of images"])
    batch = random_batch(net, 5)
    first = pass_through(net, *batch)
    net.backward()
    deltas = {k: np.array(leaf.delta_mu_w) for k, leaf in enumerate(learned(net))}
    again = pass_through(net, *batch)
    assert_same(again, first, 0)
    for k, leaf in enumerate(learned(net)):
        np.testing.assert_array_equal(leaf.delta_mu_w, deltas[k])


def test_threads_do_not_change_the_numbers():
    """Large enough for threaded loops; sums are made in blocks of a fixed size."""
    net = randomise(
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, in_width=16, in_height=16), nn.ReLU(), nn.BatchNorm2d(16))
    )
    before = net.layers[0].num_threads
    batch = random_batch(net, 24)
    results = []
    try:
        for threads in (1, 2):
            net.set_threads(threads)
            results.append(pass_through(net, *batch))
    finally:
        net.set_threads(before)
    assert_same(results[1], results[0], 2e-6)


def train(net: nn.Sequential, steps: int) -> None:
    for step in range(steps):
        pass_through(net, *random_batch(net, 6, seed=step))
        net.step()


def test_networks_trained_in_turn_or_at_once_do_not_touch_each_other():
    """Scratch memory is shared between networks, but not while a kernel runs, nor between threads."""
    make = NETWORKS["ResNetBlock"]
    nets = [randomise(nn.Sequential(*make()), seed) for seed in (1, 2, 3)]
    alone, in_turn, at_once = ([copy.deepcopy(net) for net in nets] for _ in range(3))
    for net in alone:
        train(net, 10)
    for step in range(10):
        for net in in_turn:
            pass_through(net, *random_batch(net, 6, seed=step))
            net.step()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda net: train(net, 10), at_once))
    for k in range(3):
        assert alone[k].state_dict() == in_turn[k].state_dict()
        assert alone[k].state_dict() == at_once[k].state_dict()
