"""Arguments and properties of attention; its numbers are checked by the battery."""

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from tests.nn.networks import assert_matches_reference, random_batch, randomise


@pytest.mark.parametrize("shared", [1, 2])
def test_a_step_sees_itself_and_earlier_ones(shared):
    net = randomise(nn.Sequential(nn.MultiheadAttention(8, 4, 4 // shared, seq_len=5)))
    net.input_state_update = True
    x, var_x, dm, ds = random_batch(net, 2)
    before = np.array(net(x, var_x)).reshape(2, 2, 5, 8)
    later = x.reshape(2, 5, 8).copy()
    later[:, 3] += 1
    after = np.array(net(later, var_x)).reshape(before.shape)
    changed = (after != before).any(axis=(0, 1, 3))
    np.testing.assert_array_equal(changed, [False, False, False, True, True])
    first = np.zeros((2, 2, 5, 8), np.float32)
    first[:, :, 1] = dm.reshape(2, 5, 8)[:, 1], ds.reshape(2, 5, 8)[:, 1]
    net.set_delta_z(*first)
    net.backward()
    reached = np.array(net.get_input_states()).reshape(first.shape).any(axis=(0, 1, 3))
    np.testing.assert_array_equal(reached, [True, True, False, False, False])


def test_more_steps_than_one_block_of_rows():
    """Products are made in blocks of 128 steps: the first of 200 steps are those of a sequence of 70."""
    nets = [randomise(nn.Sequential(nn.MultiheadAttention(4, 2, seq_len=n))) for n in (200, 70)]
    nets[1].arena.theta[...] = nets[0].arena.theta
    x = np.random.default_rng(0).normal(size=(1, 200, 4)).astype(np.float32)
    long, short = nets[0].predict(x), nets[1].predict(x[:, :70])
    for one, other in zip(long, short, strict=True):
        np.testing.assert_allclose(one[:, :70], other, rtol=1e-4, atol=1e-5)
    for causal in (True, False):
        manual_seed(1)
        net = nn.Sequential(nn.MultiheadAttention(4, 2, 1, seq_len=150, causal=causal))
        assert_matches_reference(net, 2, tolerance=5e-5)


def test_shares_of_a_single_step_are_one():
    net = nn.Sequential(nn.MultiheadAttention(4, 2, bias=False, out_proj=False))
    layer = net.layers[0]
    x = np.ones((1, 4), np.float32)
    np.testing.assert_allclose(net.predict(x)[0][0], layer.mu_w.reshape(3, 4, 4)[2].sum(1), 1e-5)


def test_arguments_in_either_order():
    later = nn.MultiheadAttention(8, 4, 2, 5, False)
    earlier = nn.MultiheadAttention(8, 4, 2, False, seq_len=5)
    assert later.settings() == earlier.settings()
    assert (later.seq_len, later.bias, later.num_weights) == (5, False, (8 + 2 * 4 + 8) * 8)
    assert nn.MultiheadAttention(8, 4, 2, np.bool_(False)).bias is False
    assert later.get_layer_info() == "SelfAttention(heads=4, kv_heads=2, emb_size=8)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"embed_dim": 7, "num_heads": 2}, "embed_dim a multiple of num_heads"),
        ({"embed_dim": 8, "num_heads": 4, "num_kv_heads": 3}, "got 8, 4, 3"),
        ({"embed_dim": 6, "num_heads": 2}, "use_rope rotates pairs of units, and a head has an odd number of them, 3"),
        ({"embed_dim": 8, "num_heads": 2, "rope_theta": 0}, "rope_theta must be in"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        nn.MultiheadAttention(**arguments)


def test_inputs_of_other_features_or_steps():
    with pytest.raises(ValueError, match="MultiheadAttention of 4 features after a layer that gives 3x8"):
        nn.Sequential(nn.Embedding(5, 8, 3), nn.MultiheadAttention(4, 2))
    with pytest.raises(ValueError, match="seq_len=3 after a layer that gives 2 time steps"):
        nn.Sequential(nn.Embedding(5, 4, 2), nn.MultiheadAttention(4, 2, seq_len=3))
    flat = nn.Sequential(nn.Linear(2, 12), nn.MultiheadAttention(4, 2))
    assert flat.out_shape.sequence == (3, 4) and flat.layers[1].settings()["seq_len"] == 3
