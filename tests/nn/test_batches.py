"""What holds between batches and networks, beyond what `tests/battery` checks for every layer."""

import copy
from concurrent.futures import ThreadPoolExecutor

from pytagi_ddp import nn
from tests.battery.example import train
from tests.battery.layers import conv, stem
from tests.nn.networks import pass_through, random_batch, randomise


def residual() -> list[nn.BaseLayer]:
    return [
        stem(),
        nn.MixtureReLU(),
        nn.ResNetBlock(nn.LayerBlock(conv(3, 3), nn.MixtureReLU(), conv(3, 3))),
        nn.ResNetBlock(nn.LayerBlock(conv(3, 2), nn.ReLU()), conv(3, 2)),
        nn.Linear(16, 2),
    ]


def test_steps_on_changing_batches_equal_fresh_networks():
    """Training, not only passing: the cap follows each batch, and no delta of a larger batch is applied again."""
    net = randomise(nn.Sequential(*residual()))
    for size in (1, 7, 3, 260, 2):
        fresh = nn.Sequential(*residual())
        fresh.load_state_dict(net.state_dict())
        batch = random_batch(net, size, seed=size)
        for model in (net, fresh):
            pass_through(model, *batch)
            model.step()
        assert net.state_dict() == fresh.state_dict()


def test_networks_trained_in_turn_or_at_once_do_not_touch_each_other():
    """Scratch memory is shared between networks, but not while a kernel runs, nor between threads."""
    nets = [randomise(nn.Sequential(*residual()), seed) for seed in (1, 2, 3)]
    alone, in_turn, at_once = ([copy.deepcopy(net) for net in nets] for _ in range(3))
    for net in alone:
        train(net, *[6] * 10)
    for step in range(10):
        for net in in_turn:
            train(net, 6, seed=step)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda net: train(net, *[6] * 10), at_once))
    for k in range(3):
        assert alone[k].state_dict() == in_turn[k].state_dict()
        assert alone[k].state_dict() == at_once[k].state_dict()
