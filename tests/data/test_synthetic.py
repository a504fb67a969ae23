import hashlib

import numpy as np
import pytest

from pytagi_ddp.data import synthetic_images


@pytest.fixture(scope="module")
def sets():
    return synthetic_images(1500, 500)


def test_shapes_types_and_class_counts(sets):
    train, test = sets
    assert train.images.shape == (1500, 3, 32, 32)
    assert test.images.shape == (500, 3, 32, 32)
    assert len(train.classes) == 10
    assert np.bincount(train.labels).tolist() == [150] * 10
    assert np.bincount(test.labels).tolist() == [50] * 10


def test_a_seed_gives_these_bytes_on_every_machine(sets):
    content = b"".join(part.tobytes() for data in sets for part in (data.images, data.labels))
    assert hashlib.sha256(content).hexdigest() == "22dbbc7f2912cb53fd715ed0796a64ca734b696394b273154ff63aa775ff7968"


def test_the_first_images_do_not_depend_on_the_number_asked_for(sets):
    train, test = synthetic_images(130, 7)
    np.testing.assert_array_equal(train.images, sets[0].images[:130])
    np.testing.assert_array_equal(train.labels, sets[0].labels[:130])
    np.testing.assert_array_equal(test.images, sets[1].images[:7])


def test_seeds_and_splits_give_other_images(sets):
    other, _ = synthetic_images(250, 1, seed=1)
    assert not np.array_equal(other.images, sets[0].images[:250])
    assert not np.array_equal(sets[1].images[:250], sets[0].images[:250])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5), "num_train must be at least 1, got 0"),
        ((5, -1), "num_test must be at least 1, got -1"),
        ((1, 1, -2), "got -2"),
    ],
)
def test_bad_numbers_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        synthetic_images(*arguments)
