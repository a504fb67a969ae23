"""`Sequential.profile`: every layer has its time and memory, and the network stays as it was."""

import copy
import time

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.core.state import State
from pytagi_ddp.nn.run.memory import pass_bytes
from tests.nn.networks import randomise

BATCH = 4


def network():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, in_width=8, in_height=8),
        nn.MixtureReLU(),
        nn.BatchNorm2d(4),
        nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(4, 4, 3, padding=1), nn.MixtureReLU())),
        nn.Linear(4 * 8 * 8, 3),
    )
    randomise(net)
    return net


def batch(seed=0):
    return np.random.default_rng(seed).standard_normal((BATCH, 2 * 8 * 8), np.float32)


def values(net):
    arrays = [net.arena.theta, net.arena.buffer, net.arena.statistics, *net.get_outputs()]
    deltas = net.input_delta_z_buffer
    return [np.array(a) for a in (*arrays, deltas.delta_mu, deltas.delta_var)]


def test_rows_are_the_layers_and_the_rest():
    net = network()
    table = net.profile(batch(), repeat=2)
    assert [row.key for row in table.rows] == [*dict(net.named_leaves()), "", ""]
    assert [row.layer for row in table.rows[-2:]] == ["between layers", "parameter step"]
    assert (table.batch, table.device) == (BATCH, "cpu")
    assert abs(sum(row.share for row in table.rows) - 1) < 1e-9
    conv = table.rows[0]
    assert conv.forward_ms > 0
    assert conv.backward_ms > 0
    assert conv.memory >= 4 * BATCH * 4 * 8 * 8  # means, float32; variances lie in the memory of passes


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_all_memory_of_a_pass_is_in_the_table(checkpoint_blocks):
    """Outputs of recomputed blocks, the room that they share, and changes of image order in blocks were left out."""
    block = nn.LayerBlock(nn.ReLU(), nn.Linear(4 * 8 * 8, 16), nn.ReLU(), nn.Linear(16, 3))
    layers = nn.Conv2d(2, 4, 3, padding=1, in_width=8, in_height=8), block
    net = randomise(nn.Sequential(*layers, checkpoint_blocks=checkpoint_blocks))
    x = batch()
    expected = pass_bytes(net._chain, net.kernels, State(x, None), training=True)
    assert sum(row.memory for row in net.profile(x, repeat=1).rows) == expected + x.nbytes


def test_printed_table():
    table = network().profile(batch(), repeat=1)
    first, *rows, last = str(table).splitlines()
    assert first.split() == ["layer", "forward", "ms", "backward", "ms", "memory", "MB", "share"]
    assert len(rows) == len(table.rows)
    assert rows[0].split()[:2] == ["Conv2d.0", table.rows[0].layer]
    assert last.split()[0] == "total"
    assert abs(float(last.split()[-4]) + float(last.split()[-3]) - table.total_ms) < 0.01


LOOKS = {
    "profile": lambda net: net.profile(batch(1), y=np.ones(3 * BATCH)),
    "inspect": lambda net: net.inspect(batch(1)),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_the_network_stays_as_it_was(look, checkpoint_blocks):
    net = network()
    net.checkpoint_blocks = checkpoint_blocks
    x = batch()
    net(x)
    net.set_delta_z(np.full(3 * BATCH, 0.1), np.full(3 * BATCH, -0.1))
    before, twin = values(net), copy.deepcopy(net)
    look(net)
    for old, new in zip(before, values(net), strict=True):
        assert np.array_equal(old, new)
    assert net.training
    net.backward()  # still that of the forward pass before
    twin(x)
    twin.set_delta_z(np.full(3 * BATCH, 0.1), np.full(3 * BATCH, -0.1))
    twin.backward()
    assert np.array_equal(net.arena.delta, twin.arena.delta)


def test_time_goes_to_the_layer_that_spends_it(monkeypatch):
    net = network()
    forward = nn.BatchNorm2d.forward

    def slow(self, state, saved):
        time.sleep(0.2)
        return forward(self, state, saved)

    monkeypatch.setattr(nn.BatchNorm2d, "forward", slow)
    rows = {row.key: row for row in net.profile(batch(), repeat=1).rows}
    assert rows["BatchNorm2d.2"].forward_ms >= 200
    assert max(row.forward_ms for key, row in rows.items() if key != "BatchNorm2d.2") < 200


def test_profile_of_a_network_in_evaluation_mode():
    net = network()
    net.eval()
    assert net.profile(batch()).rows[0].backward_ms > 0
    assert not net.training


def test_no_rounds():
    with pytest.raises(ValueError, match="repeat must be at least 1, got 0"):
        network().profile(batch(), repeat=0)


def test_a_batch_of_another_size():
    with pytest.raises(ValueError, match="128"):
        network().profile(np.zeros(100))
