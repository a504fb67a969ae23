import numpy as np
import pytest

from pytagi_ddp.data import ImageDataset, dataset


def make(images=None, labels=None, classes=("a", "b", "c")):
    images = np.zeros((5, 3, 4, 4), np.uint8) if images is None else images
    labels = np.array([0, 1, 2, 0, 1]) if labels is None else labels
    return ImageDataset(images, labels, classes, "toy")


def test_length_and_int64_labels():
    data = make(labels=np.array([0, 1, 2, 0, 1], np.uint8))
    assert len(data) == 5
    assert data.labels.dtype == np.int64


def test_subset_is_a_view_of_the_first_images():
    data = make()
    part = data.subset(2)
    assert len(part) == 2
    assert np.shares_memory(part.images, data.images)
    assert part.labels.tolist() == [0, 1]
    assert len(data.subset(99)) == 5
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        data.subset(0)


def test_mean_and_std_per_channel_across_blocks(monkeypatch):
    monkeypatch.setattr(dataset, "_BLOCK", 1000)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1500, 2, 3, 3), dtype=np.uint8)
    images[:, 1] //= 4
    data = make(images, np.zeros(1500, np.int64))
    np.testing.assert_allclose(data.mean(), (images / 255).mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(data.std(), (images / 255).std(axis=(0, 2, 3)), rtol=1e-5)
    assert data.mean().dtype == data.std().dtype == np.float32


def test_std_of_constant_images_is_zero():
    assert make(np.full((5, 1, 4, 4), 77, np.uint8)).std() == pytest.approx(0, abs=1e-4)
    large = np.random.default_rng(1).integers(248, 253, (3, 1, 600, 600), np.uint8)  # a small variance of many pixels
    assert make(large, np.zeros(3, int)).std() == pytest.approx(large.std() / 255, rel=1e-6)


@pytest.mark.parametrize(
    ("images", "labels", "error", "message"),
    [
        (np.zeros((5, 3, 4, 4), np.float32), None, TypeError, "float32"),
        (None, np.zeros(5), TypeError, "float64"),
        (np.zeros((5, 48), np.uint8), None, ValueError, r"\(5, 48\)"),
        (np.zeros((0, 3, 4, 4), np.uint8), np.zeros(0, int), ValueError, r"\(0, 3, 4, 4\)"),
        (None, np.zeros(4, int), ValueError, r"5 images .* \(4,\)"),
        (None, np.array([0, 1, 3, 9, 0]), ValueError, r"label 3 of image 2 .* 0\.\.2"),
        (None, np.array([0, -1, 1, 1, 0]), ValueError, "label -1 of image 1"),
    ],
)
def test_what_does_not_belong_together_is_refused(images, labels, error, message):
    with pytest.raises(error, match=message):
        make(images, labels)


def test_channels_that_seem_to_come_last_are_noticed():
    with pytest.warns(UserWarning, match=r"\(5, 32, 32, 3\) seem to have their channels last") as caught:
        make(np.zeros((5, 32, 32, 3), np.uint8))
    assert caught[0].filename == __file__  # of the line that makes the dataset
    make(np.zeros((5, 32, 3, 3), np.uint8))  # small patches of many channels


class Foreign:
    """An array of another library."""

    def __init__(self, values):
        self._values, self.dtype = values, "torch.uint8"

    def __array__(self, *args, **options):
        return self._values


def test_arrays_of_other_libraries_are_taken_without_a_copy():
    images, labels = np.arange(5 * 48, dtype=np.uint8).reshape(5, 3, 4, 4), np.array([0, 1, 2, 0, 1])
    data = make(Foreign(images), Foreign(labels))
    assert np.shares_memory(data.images, images) and np.shares_memory(data.labels, labels)
    with pytest.raises(ValueError, match="label 9 of image 0"):
        make(labels=Foreign(labels + 9))
