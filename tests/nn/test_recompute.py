"""Blocks that are run again in the backward pass: see also the battery, which compares their bits."""

import copy
import pickle

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.models import resnet8_cifar10
from tests.nn.networks import randomise
from tests.nn.test_memory import Trainer, large_allocations


def unit(c_in, c_out, **options):
    return [nn.Conv2d(c_in, c_out, bias=False, **options), nn.MixtureReLU(), nn.BatchNorm2d(c_out)]


def residual():
    """Both kinds of residual block; a strided one; what is in place after a block."""
    return [
        *unit(3, 8, kernel_size=3, padding=1, in_width=8, in_height=8),
        nn.ResNetBlock(nn.LayerBlock(*unit(8, 8, kernel_size=3, padding=1), *unit(8, 8, kernel_size=3, padding=1))),
        nn.ReLU(),
        nn.ResNetBlock(
            nn.LayerBlock(*unit(8, 16, kernel_size=3, stride=2, padding=1, padding_type=2)),
            nn.LayerBlock(*unit(8, 16, kernel_size=2, stride=2)),
        ),
        nn.ResNetBlock(nn.LayerBlock(*unit(16, 16, kernel_size=3, padding=1), nn.Tanh())),
        nn.Linear(256, 10),
    ]


def deep():
    def block():
        return nn.ResNetBlock(
            nn.LayerBlock(*unit(8, 8, kernel_size=3, padding=1), *unit(8, 8, kernel_size=3, padding=1))
        )

    return [nn.Conv2d(3, 8, 3, padding=1, in_width=8, in_height=8), *(block() for _ in range(6)), nn.Linear(512, 10)]


def twins(layers) -> tuple[Trainer, Trainer]:
    """Two trainers of equal networks; the second one recomputes its blocks."""
    kept = Trainer(layers(), False)
    recomputed = copy.deepcopy(kept)
    recomputed.net.checkpoint_blocks = True
    return kept, recomputed


def same(a: nn.Sequential, b: nn.Sequential) -> bool:
    pairs = [(a.arena.theta, b.arena.theta), (a.arena.statistics, b.arena.statistics), (a.arena.tail, b.arena.tail)]
    return all(np.array_equal(x, y) for x, y in pairs)


def test_frozen_blocks_give_the_same_bits():
    """A block that is told to is frozen with all that is in it; what comes out of it is kept all the same."""
    kept, recomputed = twins(residual)
    for trainer in (kept, recomputed):
        trainer.step(8)
        for layer in trainer.net.layers:
            layer.training = False
        statistics = trainer.net.arena.statistics.copy()
        trainer.step(8), trainer.step(8)
        assert np.array_equal(trainer.net.arena.statistics, statistics)
    assert same(kept.net, recomputed.net)


@pytest.mark.parametrize("convolution", [False, True])
def test_predictions_have_the_same_bits(convolution):
    """The second block overwrote the output of the first, whose order it changes in memory that they share."""

    def block():
        first = [nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()] if convolution else []
        return nn.ResNetBlock(nn.LayerBlock(*first, nn.Linear(48, 48), nn.Tanh()))

    net = nn.Sequential(nn.Conv2d(2, 3, 1, in_width=4, in_height=4), block(), block(), nn.Linear(48, 1))
    x = np.random.default_rng(0).normal(size=(5, 32))
    expected = net.predict(x)
    net.checkpoint_blocks = True
    for moments in (net.predict(x), net.predict(x)):
        assert all(map(np.array_equal, moments, expected))


def test_statistics_of_all_ranks_are_not_asked_for_again():
    kept, recomputed = twins(residual)
    calls = []
    for trainer in (kept, recomputed):
        for leaf in trainer.net.arena.leaves:
            if isinstance(leaf, nn.BatchNorm2d):
                leaf.reduce_sums = lambda sums, net=trainer.net: calls.append(net)
        trainer.step()
    assert calls.count(recomputed.net) == calls.count(kept.net) == 6
    assert same(kept.net, recomputed.net)


def test_it_takes_less_memory():
    kept, recomputed = (sum(row.memory for row in t.net.profile(t.x, repeat=1).rows) for t in twins(deep))
    assert recomputed < 0.7 * kept


@pytest.mark.parametrize("batch", [32, 9])
def test_a_steady_step_allocates_nothing(batch):
    trainer = twins(residual)[1]
    for size in (32, 32, batch, batch):  # walked through, then recorded
        trainer.step(size)
    assert large_allocations(lambda: trainer.step(batch)) == []


def test_the_last_block_is_not_run_again():
    trainer = twins(residual)[1]
    ran = []
    for layer in trainer.net.layers:
        if isinstance(layer, nn.ResNetBlock):

            def forward(*arguments, layer=layer):
                ran.append(layer)
                return type(layer).forward(layer, *arguments)

            layer.forward = forward
    trainer.step()
    blocks = [layer for layer in trainer.net.layers if isinstance(layer, nn.ResNetBlock)]
    assert ran == [*blocks, blocks[1], blocks[0]]


@pytest.mark.parametrize("steps", range(5))
def test_two_passes_back_from_one_forward_pass(steps):
    """The second one finds the activations of the first block where the first one found those of the last."""
    kept, recomputed = twins(deep)
    nets = kept.net, recomputed.net
    for _ in range(steps):
        kept.step(), recomputed.step()
    rng = np.random.default_rng(1)
    x, deltas = rng.normal(size=(4, 192)), rng.normal(size=(3, 2, 40))
    for net in nets:
        net(x)
    for mean, variance in deltas:
        for net in nets:
            net.set_delta_z(mean, -np.abs(variance))
            net.backward()
        np.testing.assert_array_equal(nets[0].arena.buffer, nets[1].arena.buffer)


def test_switched_on_and_off():
    kept, other = twins(residual)
    for value in (True, False, True):
        other.net.checkpoint_blocks = value
        assert other.net.checkpoint_blocks is value
        for trainer in (kept, other):
            trainer.step()
        assert same(kept.net, other.net)
    other.net(other.x)
    other.net.checkpoint_blocks = False
    with pytest.raises(RuntimeError, match="needs a forward pass"):
        other.net.backward()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_recompute_too(duplicate):
    kept, recomputed = twins(residual)
    for trainer in (kept, recomputed):
        trainer.step()
    recomputed.net = duplicate(recomputed.net)
    assert recomputed.net.checkpoint_blocks
    for trainer in (kept, recomputed):
        trainer.step()
    assert same(kept.net, recomputed.net)


def test_names_and_profile_do_not_change():
    kept, recomputed = twins(residual)
    assert list(recomputed.net.state_dict()) == list(kept.net.state_dict())
    rows = recomputed.net.profile(recomputed.x, recomputed.y, repeat=1).rows
    assert [row.key for row in rows] == [row.key for row in kept.net.profile(kept.x, kept.y, repeat=1).rows]


def test_as_an_argument():
    assert not nn.Sequential(*residual()).checkpoint_blocks
    assert nn.Sequential(*residual(), checkpoint_blocks=True).checkpoint_blocks
    assert resnet8_cifar10(checkpoint_blocks=True).checkpoint_blocks


def test_without_a_block_it_is_refused():
    layers = [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)]
    with pytest.raises(ValueError, match="here is none"):
        nn.Sequential(*layers, checkpoint_blocks=True)
    net = randomise(nn.Sequential(*layers))  # the layers are free again
    with pytest.raises(ValueError, match="here is none"):
        net.checkpoint_blocks = True
    assert not net.checkpoint_blocks and len(net(np.zeros(3))) == 2
