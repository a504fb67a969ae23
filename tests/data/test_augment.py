from types import SimpleNamespace

import numpy as np
import pytest
from scipy import ndimage

from pytagi_ddp.data import ShardRandom, random_affine, random_crop_flip


@pytest.mark.parametrize(("dtype", "flips"), [(np.uint8, True), (np.float32, True), (np.uint8, False)])
def test_each_image_is_a_window_of_the_padded_image_or_its_mirror(dtype, flips):
    images = np.arange(1, 1 + 40 * 2 * 5 * 6).reshape(40, 2, 5, 6).astype(dtype)
    result = random_crop_flip(images, np.random.default_rng(0), padding=2, flip=flips)
    assert result.dtype == dtype
    places = set()
    for image, changed in zip(images, result, strict=True):
        padded = np.pad(image, ((0, 0), (2, 2), (2, 2)))
        windows = {
            (y, x, flip): padded[:, y : y + 5, x : x + 6][:, :, :: -1 if flip else 1]
            for y in range(5)
            for x in range(5)
            for flip in (False, True)
        }
        found = [place for place, window in windows.items() if np.array_equal(window, changed)]
        assert len(found) == 1
        places.update(found)
    assert {flip for _, _, flip in places} == {False, flips}
    assert {y for y, _, _ in places} == {x for _, x, _ in places} == set(range(5))


def test_about_half_of_the_images_are_mirrored():
    images = np.zeros((2000, 1, 1, 2), np.uint8)
    images[..., 0] = 1
    flipped = random_crop_flip(images, np.random.default_rng(1), padding=0)[:, 0, 0, 1]
    assert 0.45 < flipped.mean() < 0.55


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_an_affine_map_is_that_of_scipy(dtype):
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (30, 2, 7, 10)).astype(dtype)
    draws = rng.random((30, 5))
    fixed = SimpleNamespace(random=lambda size: draws.reshape(size))
    result = random_affine(images, fixed, 40, 0.2, (0.5, 1.6), 20)
    assert result.dtype == dtype
    for image, changed, (turn, lean, size, down, right) in zip(images, result, draws, strict=True):
        a, b, s = np.deg2rad(80 * turn - 40), np.deg2rad(40 * lean - 20), 0.5 + 1.1 * size
        rotation = np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]])  # of (y, x)
        inverse = np.linalg.inv(s * rotation @ np.array([[1, 0], [np.tan(b), 1]]))
        centre, shift = np.array([3, 4.5]), np.array([7 * (0.4 * down - 0.2), 10 * (0.4 * right - 0.2)])
        for channel, found in zip(image.astype(float), changed, strict=True):
            offset = centre - inverse @ (centre + shift)
            expected = ndimage.affine_transform(channel, inverse, offset, order=1, mode="grid-constant")
            np.testing.assert_allclose(found, expected, atol=0.51 if dtype == np.uint8 else 2e-3)


def test_an_affine_map_of_nothing_changes_nothing():
    assert random_affine(np.zeros((0, 3, 5, 5)), np.random.default_rng(0)).shape == (0, 3, 5, 5)
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 6, 6), dtype=np.uint8)
    np.testing.assert_array_equal(random_affine(images, np.random.default_rng(0), 0, 0, (1, 1)), images)


@pytest.mark.parametrize("change", [random_crop_flip, random_affine])
def test_writes_into_out_even_in_place(change):
    images = np.random.default_rng(0).integers(0, 256, (9, 3, 8, 8), dtype=np.uint8)
    expected = change(images, np.random.default_rng(5))
    out = np.empty_like(images)
    assert change(images, np.random.default_rng(5), out=out) is out
    np.testing.assert_array_equal(out, expected)
    change(images, np.random.default_rng(5), out=images)
    np.testing.assert_array_equal(images, expected)


@pytest.mark.parametrize("change", [random_crop_flip, random_affine])
def test_channels_that_are_last_are_warned_about(change):
    with pytest.warns(UserWarning, match=r"the shape \(8, 48, 40, 1\) seem to have their channels last") as seen:
        change(np.ones((8, 48, 40, 1), np.uint8), np.random.default_rng(0))
    assert seen[0].filename == __file__
    for shape in ((8, 1, 48, 40), (8, 4, 4, 1), (2, 3, 16, 1)):  # warnings are errors
        change(np.ones(shape, np.uint8), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (np.zeros((3, 8, 8)), {}, r"\(3, 8, 8\)"),
        (np.zeros((1, 3, 8, 8)), {"padding": -1}, "got -1"),
        (np.zeros((1, 3, 8, 8)), {"out": np.zeros((2, 3, 8, 8))}, r"\(2, 3, 8, 8\)"),
        (np.zeros((1, 3, 8, 8)), {"out": np.zeros((1, 3, 8, 8), np.uint8)}, "uint8"),
    ],
)
def test_bad_arguments_are_named(images, options, message):
    with pytest.raises(ValueError, match=message):
        random_crop_flip(images, np.random.default_rng(0), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degrees": -1}, "degrees must be in .*, got -1"),
        ({"translate": np.nan}, "translate must be in .*, got nan"),
        ({"shear": 90}, "shear must be in .*, got 90"),
        ({"scale": (1.1, 0.9)}, "smaller one first"),
        ({"scale": 0.9}, r"two numbers .* got 0\.9"),
        ({"out": np.zeros((1, 3, 8, 9))}, r"\(1, 3, 8, 9\)"),
    ],
)
def test_bad_arguments_of_an_affine_map_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        random_affine(np.zeros((1, 3, 8, 8)), np.random.default_rng(0), **options)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: rng.integers(0, 1000, size=(n, 2)),
        lambda rng, n: rng.random(n),
        lambda rng, n: rng.normal(1.0, 2.0, (n, 3)),
    ],
)
def test_parts_of_a_batch_draw_the_rows_of_the_whole_batch(draw):
    whole = ShardRandom([1, 2, 3], 10, 0, 10)
    left, right = ShardRandom([1, 2, 3], 10, 0, 4), ShardRandom([1, 2, 3], 10, 4, 6)
    for _ in range(2):
        np.testing.assert_array_equal(np.concatenate([draw(left, 4), draw(right, 6)]), draw(whole, 10))


def test_shard_random_refuses_sizes_of_another_part():
    with pytest.raises(ValueError, match="4 images of this part, got 10"):
        ShardRandom([1], 10, 0, 4).random(10)
    with pytest.raises(ValueError, match=r"8\.\.12 .* batch of 10"):
        ShardRandom([1], 10, 8, 4)
