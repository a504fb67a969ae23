"""Several passes under way at once, and parts of networks: what the battery's small networks do not show."""

import copy

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.nn.run.rebuild import keep_layers
from tests.nn.test_recompute import deep, same


def network(**options):
    manual_seed(1)
    return nn.Sequential(*deep(), **options)


def passes(net, frames):
    """The forward passes of batches of 2 and 4, then both backward passes, in these frames; and the step."""
    rng = np.random.default_rng(0)
    deltas = []
    for frame, batch in zip(frames, (2, 4), strict=True):
        net.passes.use(frame)
        net(rng.normal(size=(batch, 192)))
        deltas.append(rng.normal(size=(2, batch * 10)))
    with net.accumulate():
        for frame, delta in zip(frames, deltas, strict=True):
            net.passes.use(frame)
            net.set_delta_z(*delta)
            net.backward()
    net.step()


def test_recomputed_blocks_share_memory_that_is_of_one_frame():
    kept, recomputed = network(), network(checkpoint_blocks=True)
    for frames in ((1, 2), (2, 1), (0, 5)):
        passes(kept, frames)
        passes(recomputed, frames)
        assert same(kept, recomputed)


def test_a_frame_is_lost_when_its_memory_is():
    net = network()
    net(np.zeros((2, 192)))
    net.passes.use(1)
    net.checkpoint_blocks = True
    net.passes.use(0)
    with pytest.raises(RuntimeError, match="needs a forward pass in training mode"):
        net.backward()


def test_recorded_passes_are_those_of_frame_0():
    net, twin = network(), network()
    x, rng = np.ones((2, 192)), np.random.default_rng(0)
    for _ in range(4):
        net(x)
        twin(x)
    net.passes.use(1)
    net(2 * x)
    net.passes.use(0)
    delta = rng.normal(size=(2, 20))
    for one in (net, twin):
        one.set_delta_z(*delta)
        one.backward()
        one.step()
    assert np.array_equal(net.arena.theta, twin.arena.theta)


@pytest.mark.parametrize(("start", "stop"), [(1, 1), (2, 1), (-1, 2), (0, 99)])
def test_no_part(start, stop):
    net = network()
    with pytest.raises(ValueError, match=f"layers {start} to {stop} .exclusive. are not part of a network of 8 layers"):
        keep_layers(net, start, stop)
    assert len(net.layers) == 8


def test_a_part_continues_as_a_copy_does_and_gives_up_the_rest():
    net = network(checkpoint_blocks=True)
    total, blocks = net.num_parameters, net.layers
    keep_layers(net, 2, 5)
    assert next(iter(net.state_dict())) == "Conv2d.main.2.0"
    assert net.checkpoint_blocks
    assert net.num_parameters < total
    again = copy.deepcopy(net)
    assert again.state_dict() == net.state_dict()
    keep_layers(again, 1, 2)
    assert next(iter(again.state_dict())) == "Conv2d.main.3.0"
    nn.Sequential(blocks[0])  # which no network has now
    with pytest.raises(ValueError, match="already part of a network"):
        nn.Sequential(blocks[2])
