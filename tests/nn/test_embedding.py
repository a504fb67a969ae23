"""What is a category, and which rows of the table learn; numbers are checked by the battery and recorded cases."""

import copy
import pickle

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from tests.battery.example import observe
from tests.learning import learn


def test_rows_that_do_not_occur_keep_every_bit():
    net = nn.Sequential(nn.Embedding(9, 4, 2, padding_idx=3), nn.Linear(8, 2))
    table = net.layers[0]
    for categories in ([[1, 3], [7, 1]], [[0, 0]], [[8, 3]]):  # sums of one step must not reach the next
        before = table.mu_w.copy().reshape(9, 4), table.var_w.copy().reshape(9, 4)
        learn(net, np.array(categories), np.ones(2 * len(categories)), 0.1)
        changed = np.isin(np.arange(9), categories) & (np.arange(9) != 3)
        for now, old in zip((table.mu_w, table.var_w), before, strict=True):
            np.testing.assert_array_equal((now.reshape(9, 4) != old).all(1), changed)
            np.testing.assert_array_equal((now.reshape(9, 4) != old).any(1), changed)


@pytest.mark.parametrize("wrong", [5, -2, 1.5, 1e9])
def test_what_is_no_category(wrong):
    net = nn.Sequential(nn.LayerBlock(nn.Embedding(5, 3, 2)), nn.Linear(3, 1))
    for _ in range(4):  # walked through, recorded, replayed
        net(np.array([[0, -1], [4, 2]]))
    words = f"categories from 0 to 4, or -1: 1 of 4 inputs are none, the first of them {np.float32(wrong)}"
    with pytest.raises(ValueError, match=words.replace("+", r"\+")):
        net(np.array([[0, wrong], [4, 2]], np.float32))
    with pytest.raises(ValueError, match="1 of 2 inputs are none"):
        net.predict(np.array([[0, wrong]], np.float32))


def test_a_state_of_another_network_is_read_within_the_table():
    net = nn.Sequential(nn.Embedding(5, 3, 2), nn.Linear(3, 1))
    state = nn.BaseHiddenStates(4, 2)
    state.mu_a = [-1e9, 1e9, 4, 5]
    inside = net(state)[0].reshape(2, 2)
    state.mu_a = [-1, -1, 4, -1]
    np.testing.assert_array_equal(net(state)[0].reshape(2, 2), inside)
    observe(nn.Sequential(nn.Embedding(5, 3, 2), nn.Linear(3, 1)), 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 3), "num_embeddings must be at least 1, got 0"),
        ((2**24 + 1, 3), "num_embeddings must be at most 16777216"),
        ((5, 3, 2, 0.0), "scale must be in"),
        ((5, 3, 2, 1.0, 5), "padding_idx must be at most 4, got 5"),
    ],
)
def test_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        nn.Embedding(*arguments)


def test_place_in_a_network():
    for layers in (
        [nn.Linear(1, 2), nn.Embedding(5, 3, 2)],
        [nn.ReLU(), nn.LayerBlock(nn.Embedding(5, 3, 2))],
        [nn.LayerBlock(nn.ReLU(), nn.Embedding(5, 3, 2))],
    ):
        with pytest.raises(ValueError, match=r"Embedding\(5->3\) takes the input of a network: put it first"):
            nn.Sequential(*layers)
    with pytest.raises(ValueError, match="Embedding of 2 categories cannot take an input of 3"):
        nn.Sequential(nn.ResNetBlock(nn.Linear(3, 6), nn.Embedding(5, 3, 2)))
    net = nn.Sequential(nn.Embedding(5, 3, 2))
    assert (net.out_shape.sequence, net.layers[0].get_layer_info()) == ((2, 3), "Embedding(5->3)")
    assert (nn.Embedding(4, 2, 1, scale=0.5).var_w == 0.25).all()


def test_tables_of_two_branches():
    """Each tells what is not a category of its own."""
    net = nn.Sequential(nn.ResNetBlock(nn.Embedding(5, 3, 2), nn.Embedding(4, 3, 2)))
    net([[0, 3]])
    with pytest.raises(ValueError, match=r"from 0 to 3, or -1: 1 of 2 inputs are none, the first of them 4"):
        net([[0, 4]])


@pytest.mark.parametrize("missing", ["error", "standard normal", "pass"])
def test_a_missing_category_is_none(missing):
    """Not the first one, which an unknown number of mean 0 would be."""
    net = nn.Sequential(nn.Embedding(5, 3, 2))
    net.missing_inputs = missing
    for _ in range(3):
        net([[1, 2]])
    with pytest.raises(ValueError, match=r"NaN|the first of them nan"):
        net([[1, np.nan]])


def test_without_a_size_a_sample_is_one_category():
    """pytagi's own test gives so the categories of two sequences, flat."""
    net = nn.Sequential(nn.Embedding(num_embeddings=10, embedding_dim=4, scale=1.0, padding_idx=0))
    mu, var = (moments.reshape(2, 3, 4) for moments in net(np.float32([0, 1, 2, 0, 3, 4])))
    np.testing.assert_array_equal(mu[:, 1:].reshape(4, 4), net.layers[0].mu_w.reshape(10, 4)[1:5])
    assert not mu[:, 0].any() and not var[:, 0].any() and var[:, 1:].all()


@pytest.mark.parametrize("sequence", [lambda: nn.LSTM(8, 8, seq_len=4), lambda: nn.MultiheadAttention(8, 2, seq_len=4)])
def test_a_category_at_every_time_step(sequence):
    """Without `input_size`, the layer that knows the time steps says how many categories a sample has."""
    nets = []
    for sizes in ((), (4,)):
        manual_seed(0)
        nets.append(nn.Sequential(nn.Embedding(9, 8, *sizes), sequence(), nn.Linear(8, 2)))
    nets += [nn.Sequential(*copy.deepcopy(nets[0].layers)), pickle.loads(pickle.dumps(nets[0]))]
    x = np.array([[1, 8, 3, 1], [0, 2, -1, -1]])
    for net in nets:
        learn(net, x, np.ones(16), 0.1)
        np.testing.assert_array_equal(net.predict(x), nets[0].predict(x))
    np.testing.assert_array_equal(nets[0].predict(x[..., None]), nets[0].predict(x))
    with pytest.raises(ValueError, match=r"gives 8|gives 1 time steps"):
        nn.Sequential(nn.Embedding(9, 8, 1), sequence())


def test_a_category_and_numbers_at_every_time_step():
    parts = nn.Parallel(nn.Embedding(9, 8), nn.Linear(2, 8), merge="concat", split=[1, 2])
    net = nn.Sequential(parts, nn.LSTM(16, 8, seq_len=4), nn.Linear(8, 1))
    x = np.random.default_rng(0).normal(size=(3, 4, 3))
    x[..., 0] = np.arange(12).reshape(3, 4) % 9
    learn(net, x, np.ones(12), 0.1)
    assert net.predict(x)[0].shape == (3, 4, 1)
