"""Branches side by side: what they add up to, what is put together, and parts of an input; see also the battery."""

import re

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.learning import learn
from tests.nn.networks import assert_matches_reference, assert_same, learned, pass_through, random_batch, randomise

STEM = {"in_width": 4, "in_height": 6}


def conv(c_in: int, c_out: int, **options) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, 3, padding=1, **options)


def unit() -> nn.LayerBlock:
    return nn.LayerBlock(conv(2, 2), nn.MixtureReLU(), nn.BatchNorm2d(2))


BRANCHES = {
    "identity": lambda: [unit(), None],
    "shortcut": lambda: [unit(), nn.LayerBlock(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))],
    "activation": lambda: [nn.LayerBlock(conv(2, 2), nn.ReLU()), nn.Tanh()],
}


@pytest.mark.parametrize("make", BRANCHES.values(), ids=BRANCHES)
def test_a_residual_block_is_a_sum_of_two_branches(make):
    nets = [
        randomise(nn.Sequential(conv(1, 2, **STEM), nn.Sigmoid(), kind(*make()), nn.Linear(48, 2)))
        for kind in (nn.ResNetBlock, nn.Parallel)
    ]
    nets[1].arena.theta[...] = nets[0].arena.theta
    for step in range(4):
        batch = random_batch(nets[0], 5, step)
        assert_same(pass_through(nets[0], *batch), pass_through(nets[1], *batch), 0)
        for net in nets:
            net.step()
    for mine, other in zip(*(net.parameters() for net in nets), strict=True):
        assert all(map(np.array_equal, mine, other))


NETWORKS = {
    "more than two, each with an end of its own": lambda: [
        conv(1, 2, **STEM),
        nn.Tanh(),
        nn.Parallel(unit(), None, nn.LayerBlock(conv(2, 2), nn.Sigmoid()), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)),
        nn.Linear(48, 2),
    ],
    "sum, first": lambda: [nn.Parallel(None, nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 2)],
    "sum, last": lambda: [nn.Linear(4, 3), nn.Tanh(), nn.Parallel(None, nn.ReLU(), nn.Linear(3, 3))],
    "branches of branches": lambda: [
        nn.Linear(4, 3),
        nn.ReLU(),
        nn.Parallel(
            nn.Parallel(nn.Tanh(), None, merge="concat"),
            nn.LayerBlock(nn.Parallel(nn.Linear(3, 3), nn.Linear(3, 3), None), nn.Linear(3, 2)),
            merge="concat",
        ),
        nn.Linear(8, 2),
    ],
    "wider than any layer": lambda: [
        nn.Linear(2, 3),
        nn.LayerBlock(
            nn.Parallel(None, nn.Linear(3, 3), merge="concat"),
            nn.Parallel(nn.Linear(3, 1), nn.Linear(3, 1), split=[3, 3]),
        ),
    ],
    "known image beside what is made of it": lambda: [
        nn.Parallel(None, conv(1, 2, **STEM), merge="concat"),
        nn.ReLU(),
        nn.Conv2d(3, 2, 1),
        nn.Linear(48, 2),
    ],
    "parts of a known image": lambda: [
        nn.Parallel(conv(1, 2, **STEM), None, None, merge="concat", split=[1, 1, 2]),
        conv(5, 2),
        nn.Linear(48, 2),
    ],
    "an image and units": lambda: [
        nn.Parallel(
            [conv(1, 2, **STEM), nn.ReLU(), nn.Linear(48, 3)],
            [nn.Linear(3, 2), nn.Tanh()],
            merge="concat",
            split=[24, 3],
        ),
        nn.Linear(5, 2),
    ],
    "units of an image": lambda: [
        conv(1, 2, **STEM),
        nn.Tanh(),
        nn.Parallel(nn.Linear(30, 2), nn.LayerBlock(nn.ReLU(), nn.Linear(18, 2)), split=[30, 18]),
    ],
    "units of a sequence": lambda: [
        nn.LSTM(2, 4, seq_len=3),
        nn.Parallel(nn.Linear(5, 2), None, merge="concat", split=[5, 7]),
        nn.Linear(9, 2),
    ],
    "one pixel of an image beside units": lambda: [
        conv(1, 2, **STEM),
        nn.Parallel(nn.Conv2d(2, 3, 4, stride=4, padding_type=3), [nn.ReLU(), nn.Linear(48, 2)], merge="concat"),
        nn.Linear(5, 2),
    ],
    "images of one channel": lambda: [
        conv(1, 1, **STEM),
        nn.Parallel(None, conv(1, 1), nn.ReLU(), merge="concat"),
        conv(3, 1),
        nn.Linear(24, 2),
    ],
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("with_variance", [True, False])
def test_the_reference(make, with_variance):
    assert_matches_reference(nn.Sequential(*make()), batch=4, with_variance=with_variance)


def test_a_concatenation_keeps_the_moments():
    net = nn.Sequential(nn.Parallel(None, nn.Linear(3, 2), None, merge="concat", split=[2, 3, 1]))
    rng = np.random.default_rng(0)
    x, var_x = rng.normal(size=(4, 6)).astype(np.float32), rng.uniform(size=(4, 6)).astype(np.float32)
    for given, kept in zip((x, var_x), net(x, var_x), strict=True):
        assert np.array_equal(kept.reshape(4, 5)[:, [0, 1, 4]], given[:, [0, 1, 5]])


def encoding() -> nn.PiecewiseLinearEncoding:
    return nn.PiecewiseLinearEncoding([[-1, 0, 1]] * 2)


ENCODED = {
    "beside units": lambda: [nn.Parallel(encoding(), nn.Linear(2, 3), None, merge="concat"), nn.Linear(9, 1)],
    "sum": lambda: [nn.Parallel(nn.Linear(2, 4), encoding()), nn.Linear(4, 1)],
    "sum of two": lambda: [nn.Parallel(encoding(), encoding()), nn.MixtureReLU(), nn.Linear(4, 1)],
    "residual": lambda: [nn.ResNetBlock(nn.LayerBlock(encoding()), nn.Linear(2, 4)), nn.Linear(4, 1)],
    "shortcut": lambda: [
        nn.ResNetBlock(nn.LayerBlock(nn.Linear(2, 4), nn.BatchNorm2d(4)), encoding()),
        nn.Linear(4, 1),
    ],
}


@pytest.mark.parametrize("make", ENCODED.values(), ids=ENCODED)
@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_an_encoding_of_known_inputs_is_a_branch(make, checkpoint_blocks):
    """It gives no variances there."""
    net = nn.Sequential(make(), checkpoint_blocks=checkpoint_blocks)
    x = np.random.default_rng(0).normal(size=(5, 2))
    expected = net(x, np.full((5, 2), 1e-12))
    for _ in range(3):
        for known, other in zip(net(x), expected, strict=True):
            np.testing.assert_allclose(known, other, rtol=1e-4, atol=1e-5)
        net.set_delta_z(np.ones(5), -np.ones(5))
        net.backward()


@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_a_category_beside_numbers(checkpoint_blocks):
    """Only the part of the input that an Embedding takes has to be categories."""
    words = [nn.Embedding(5, 3, 2), nn.Linear(6, 4)]
    net = nn.Sequential(
        nn.Parallel(words, nn.Linear(2, 4), merge="concat", split=[2, 2]),
        nn.ReLU(),
        nn.Linear(8, 1),
        checkpoint_blocks=checkpoint_blocks,
    )
    table = learned(net)[0].mu_w.copy()
    x = np.array([[0, 4, -0.5, 7.25], [3, 3, 0.1, -2]])
    for _ in range(3):
        learn(net, x, [1, 2], [0.1, 0.1])
    changed = (learned(net)[0].mu_w != table).reshape(5, 3).any(1)
    assert changed.tolist() == [True, False, False, True, True]
    with pytest.raises(ValueError, match=r"from 0 to 4, or -1: 1 of 2 inputs are none, the first of them 5"):
        net([[1, 5, 5, 5]])
    with pytest.raises(ValueError, match=r"Embedding\(5->3\) takes the input of a network"):
        nn.Sequential(nn.Linear(3, 4), nn.Parallel(nn.Embedding(5, 3, 2), nn.Linear(2, 6), split=[2, 2]))


def test_the_input_of_parts_alike_has_their_shape():
    net = nn.Sequential(nn.Parallel(nn.LSTM(1, 2, seq_len=2), nn.LSTM(2, 2, seq_len=2), split=[1, 2]), nn.Linear(4, 1))
    assert net.in_shape.sequence == (2, 3)
    assert nn.Sequential(nn.Parallel(conv(1, 2, **STEM), conv(2, 2, **STEM), split=[1, 2])).in_shape.image == (3, 6, 4)


def test_names_and_settings():
    block = nn.Parallel(nn.Linear(3, 2), None, [nn.ReLU()], merge="concat")
    net = nn.Sequential(block)
    keys = ["Parallel.0", "Linear.0.0", "LayerBlock.0.2", "ReLU.0.2.0"]
    assert [key for key, _ in net.named_layers()] == keys
    assert block.branches[1] is None and len(block.branches) == 3
    assert (block.merge, block.split, block.get_layer_info()) == ("concat", None, "Parallel(3,8)")
    settings = block.settings()
    assert settings["branches"] == [
        ["Linear", block.branches[0].settings()],
        None,
        ["LayerBlock", {"layers": [["ReLU", {}]]}],
    ]
    assert (settings["merge"], settings["split"]) == ("concat", None)
    assert repr(block).startswith("Parallel(\n  (0): Linear(") and "  (1): None\n" in repr(block)
    assert "  (merge): 'concat'\n" in repr(block) and "split" not in repr(block)
    assert "  (split): [1, 2]\n" in repr(nn.Parallel(nn.Linear(1, 2), None, split=(1, 2)))
    for name, value in (("branches", ()), ("merge", "sum"), ("split", [1, 2, 3])):
        with pytest.raises(AttributeError, match="a new"):
            setattr(block, name, value)


def test_files_of_other_blocks_are_refused(tmp_path):
    def made(*branches, **options):
        return nn.Sequential(nn.Parallel(*branches, **options), nn.ReLU())

    made(nn.Linear(2, 2), None).save(tmp_path / "sum")
    with pytest.raises(ValueError, match=re.escape("merge of Parallel.0 is sum there and concat here")):
        made(nn.Linear(2, 2), None, merge="concat").load(tmp_path / "sum")
    made(nn.Linear(2, 2), nn.Tanh(), merge="concat", split=[2, 1]).save(tmp_path / "apart")
    with pytest.raises(ValueError, match=re.escape("split of Parallel.0 is [2, 1] there and [2, 3] here")):
        made(nn.Linear(2, 2), nn.Tanh(), merge="concat", split=[2, 3]).load(tmp_path / "apart")
    with pytest.raises(ValueError, match=re.escape("identities of Parallel.0 is [1] there and [] here")):
        made(nn.Linear(2, 2), nn.Tanh()).load(tmp_path / "sum")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Parallel(), "Parallel needs at least two branches"),
        (lambda: nn.Parallel(nn.ReLU()), "at least two branches"),
        (lambda: nn.Parallel(None, None, split=[1, 1]), "a layer in one of them"),
        (lambda: nn.Parallel(None, nn.ReLU(), None), "the identity, None, is a branch only once"),
        (lambda: nn.Parallel(None, nn.ReLU(), merge="mean"), "merge of Parallel is 'sum' or 'concat', got 'mean'"),
        (lambda: nn.Parallel(None, nn.ReLU(), split=[1]), r"a positive number for each of 2 branches: \[1\]"),
        (lambda: nn.Parallel(None, nn.ReLU(), split=[0, 1]), r"split\[0\] must be at least 1, got 0"),
        (lambda: nn.Sequential(nn.Parallel(None, nn.Linear(3, 2))), "Parallel: the branches give 3, 2; they must be"),
        (
            lambda: nn.Sequential(nn.Linear(6, 6), nn.Parallel(nn.LSTM(2, 2, seq_len=3), nn.LSTM(3, 3, seq_len=2))),
            "Parallel: the branches give 3x2, 2x3; they must be equal",
        ),
        (
            lambda: nn.Sequential(nn.Linear(2, 4), nn.Parallel(None, nn.Linear(3, 2), split=[2, 3])),
            r"Parallel splits its input into \[2, 3\], and the layer before gives 4",
        ),
        (
            lambda: nn.Sequential(conv(1, 2, **STEM), nn.Parallel(None, nn.Linear(48, 2), merge="concat")),
            "the branches give 2x6x4, 2; to be put side by side, they need the same height and width",
        ),
        (
            lambda: nn.Sequential(conv(1, 2, **STEM), nn.Parallel(None, nn.AvgPool2d(2, 2), merge="concat")),
            "the branches give 2x6x4, 2x3x2; to be put side by side",
        ),
    ],
)
def test_what_does_not_fit(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_what_is_no_layer():
    with pytest.raises(TypeError, match="Parallel takes layers, got str: 'Linear'"):
        nn.Parallel(None, "Linear")
    with pytest.raises(TypeError, match=r"Parallel: split\[1\] must be an integer, got 0.5"):
        nn.Parallel(None, nn.ReLU(), split=[1, 0.5])
