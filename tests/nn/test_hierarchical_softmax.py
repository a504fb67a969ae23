"""The binary tree of classes: its tables, its counting, and its probabilities; pytagi's are in test_tagi_utils.py."""

import math

import numpy as np
import pytest

from pytagi_ddp.nn.hierarchical_softmax import (
    HRCSoftmax,
    class_probabilities,
    encode_classes,
    hierarchical_softmax,
)

# (obs, idx, num_obs, len) as pytagi 0.2.1 has them.
RECORDED = {
    2: ([1, -1], [1, 1], 1, 1),
    3: ([1, 1, 1, -1, -1, 1], [1, 2, 1, 2, 1, 3], 2, 3),
    5: (
        [1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, -1, 1, 1],
        [1, 2, 4, 1, 2, 4, 1, 2, 5, 1, 2, 5, 1, 3, 6],
        3,
        6,
    ),
}
RECORDED_SIZES = {10: (4, 11), 100: (7, 102), 1000: (10, 1001)}


@pytest.mark.parametrize("num_classes", RECORDED)
def test_small_trees_are_pytagis(num_classes):
    obs, idx, num_obs, length = RECORDED[num_classes]
    assert hierarchical_softmax(num_classes) == HRCSoftmax(obs, idx, num_obs, length)


@pytest.mark.parametrize("num_classes", RECORDED_SIZES)
def test_large_trees_have_the_recorded_sizes(num_classes):
    tree = hierarchical_softmax(num_classes)
    assert (tree.num_obs, tree.len) == RECORDED_SIZES[num_classes]
    assert len(tree.obs) == len(tree.idx) == num_classes * tree.num_obs


@pytest.mark.parametrize("num_classes", [2, 3, 7, 8, 10, 17, 100, 1000])
def test_paths_identify_classes_and_use_every_unit(num_classes):
    signs, units, num_units = encode_classes(num_classes)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert len({tuple(path) for path in signs.astype(int)}) == num_classes
    np.testing.assert_array_equal(np.unique(units), np.arange(1, num_units + 1))
    for depth in range(signs.shape[1]):
        # Two classes share the unit at a depth exactly when all their earlier decisions agree.
        prefixes = signs[:, :depth] @ 2.0 ** np.arange(depth)
        same_prefix = prefixes[:, None] == prefixes
        np.testing.assert_array_equal(units[:, None, depth] == units[:, depth], same_prefix)


def random_outputs(tree: HRCSoftmax, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    size = batch_size * tree.len
    return rng.normal(0, 2, size).astype(np.float32), rng.uniform(0, 3, size).astype(np.float32)


def test_a_class_has_the_product_of_its_decisions():
    tree = hierarchical_softmax(5)
    mu, var = random_outputs(tree, 2)
    probabilities = class_probabilities(mu, var, tree)
    for sample in range(2):
        for label in range(5):
            expected = 1.0
            for bit in range(3):
                sign, unit = tree.obs[3 * label + bit], tree.idx[3 * label + bit] - 1
                m, s = float(mu[sample * tree.len + unit]), float(var[sample * tree.len + unit])
                expected *= 0.5 * math.erfc(-sign * m / math.sqrt(1 / 9 + s) / math.sqrt(2))
            assert probabilities[sample, label] == pytest.approx(expected, rel=1e-12)


def test_a_confident_network_still_ranks_the_unlikely_classes():
    # With mean 8 and no variance a decision goes the other way with probability Phi(-24) = 4.6e-127.
    probabilities = class_probabilities([8.0, 8.0, 1.0], [0.0, 0.0, 0.0], hierarchical_softmax(4))[0]
    rare = 0.5 * math.erfc(24 / math.sqrt(2))
    up = 0.5 * math.erfc(-3 / math.sqrt(2))
    np.testing.assert_allclose(probabilities, [1, rare, rare * up, rare * (1 - up)], rtol=1e-10)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="num_classes must be at least 2, got 1"):
        hierarchical_softmax(1)
    with pytest.raises(TypeError):
        hierarchical_softmax(10.0)
    with pytest.raises(ValueError, match=r"11 output units.*12 means and 12 variances"):
        class_probabilities(np.zeros(12), np.ones(12), hierarchical_softmax(10))
    with pytest.raises(ValueError, match=r"11 output units.*rows of 12 means"):
        class_probabilities(np.zeros((11, 12)), np.ones((11, 12)), hierarchical_softmax(10))
    with pytest.raises(ValueError, match=r"11 means and 10 variances"):
        class_probabilities(np.zeros(11), np.ones(10), hierarchical_softmax(10))
    with pytest.raises(ValueError, match="empty"):
        class_probabilities(np.zeros(11), np.ones(11), HRCSoftmax())
    with pytest.raises(ValueError, match="read-only"):
        encode_classes(10)[0][0, 0] = 5
