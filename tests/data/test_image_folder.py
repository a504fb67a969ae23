"""Images in files: which are found, which part of them a network sees, copies of them, and files that hold none."""

import copy
import io
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
ImageOps = pytest.importorskip("PIL.ImageOps", reason="Pillow is not installed")

from pytagi_ddp.data import FolderLoader, ImageError, ImageFolder, image_workers  # noqa: E402
from pytagi_ddp.data.decoding import NUMBERS, TRIES, Source, choose_box, read_part, read_scaled  # noqa: E402
from pytagi_ddp.data.image_shard import ImageShard  # noqa: E402

NAMES = ("ant", "bee", "cat")


def picture(seed: int, width: int, height: int) -> np.ndarray:
    """Something smooth, which JPEG keeps."""
    y, x = np.mgrid[:height, :width]
    return np.stack([(seed * 30 + x // 2) % 256, (y + 40 * seed) % 256, (x + y) // 4 % 256], 2).astype(np.uint8)


@pytest.fixture
def tree(tmp_path):
    """Three classes of four images each, JPEG and one PNG that says it is a JPEG."""
    root = tmp_path / "train"
    for c, name in enumerate(NAMES):
        (root / name).mkdir(parents=True)
        for k in range(4):
            image = Image.fromarray(picture(4 * c + k, 40 + 3 * k, 50 - 2 * k))
            image.save(root / name / f"{k}.JPEG", "PNG" if c == k == 1 else "JPEG", quality=95)
    return root


def batches(dataset, *arguments, **options):
    with FolderLoader(dataset, *arguments, size=16, **options) as loader:
        return list(loader)


def test_what_is_found(tree):
    for name in (".hidden.jpeg", "notes.txt"):
        (tree / "ant" / name).write_text("")
    (tree / ".cache").mkdir()
    Image.new("RGB", (20, 20)).save(tree / "bee" / "x.png")
    found = ImageFolder.find(str(tree))
    assert (found.classes, found.name, len(found)) == (NAMES, "train", 13)
    assert found.files[:2] + found.files[-1:] == ("ant/0.JPEG", "ant/1.JPEG", "cat/3.JPEG")
    assert found.labels.tolist() == [0] * 4 + [1] * 5 + [2] * 4
    part = found.subset(3)
    assert (part.files, part.labels.tolist()) == (("ant/0.JPEG", "bee/0.JPEG", "bee/x.png"), [0, 1, 1])
    assert len(found.subset(99)) == 13
    assert ImageFolder.find(tree, ("x", *NAMES)).labels[0] == 1


def test_a_split_takes_its_share_of_each_class(tree):
    Image.new("RGB", (20, 20)).save(tree / "bee" / "x.png")
    whole = ImageFolder.find(tree)
    train, test = whole.split(0.5, seed=1)
    assert sorted(train.files + test.files) == sorted(whole.files) and not set(train.files) & set(test.files)
    assert np.bincount(train.labels).tolist() == [2, 3, 2] and np.bincount(test.labels).tolist() == [2, 2, 2]
    assert train.classes == NAMES and all(NAMES[k] == file[:3] for k, file in zip(test.labels, test.files, strict=True))
    assert whole.split(0.5, seed=1)[1].files == test.files and whole.split(0.5, seed=2)[1].files != test.files
    for share, count in ((0.01, 1), (0.99, 3)):  # at least one image of a class, and not all
        assert np.bincount(ImageFolder.find(tree).split(share)[1].labels)[0] == count


def test_a_split_reads_the_same_copies(tree, tmp_path):
    copies = ImageFolder.find(tree).cached(tmp_path / "copies", side=20)
    for part in copies.split(0.25):
        assert part.rows.tolist() == [copies.files.index(file) for file in part.files]
        assert sum(len(x) for x, _ in batches(part, 4)) == len(part)


def test_what_cannot_be_split(tree):
    for share in (0, 1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="share must be in"):
            ImageFolder.find(tree).split(share)
    for k in range(1, 4):
        (tree / "ant" / f"{k}.JPEG").unlink()
    with pytest.raises(ValueError, match="class ant has one image"):
        ImageFolder.find(tree).split(0.5)


def test_what_is_wrong_with_a_folder(tree, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ImageFolder.find(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="folders that are none of the 2 classes: bee, cat"):
        ImageFolder.find(tree, ("ant", "dog"))
    (tree / "dog").mkdir()
    with pytest.raises(ValueError, match=r"folders without images \(.jpeg, .jpg, .png, .webp\): dog"):
        ImageFolder.find(tree)
    with pytest.raises(ValueError, match=r"holds no images: they are expected as CLASS/NAME.jpeg"):
        ImageFolder.find(tree / "dog")
    with pytest.raises(ValueError, match='on_error must be "raise" or "skip"'):
        ImageFolder.find(tree, on_error="ignore")
    (tree / "dog").rmdir()
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        ImageFolder.find(tree).subset(0)


def test_images_of_other_formats_are_named(tree):
    Image.new("RGB", (20, 20)).save(tree / "bee" / "x.BMP", "BMP")
    Image.new("RGB", (20, 20)).save(tree / "ant" / "y.tif")
    (tree / "ant" / "notes.txt").write_text("")
    with pytest.warns(UserWarning, match=r"2 images of other formats than .* are left out: ant/y.tif, bee/x.BMP"):
        found = ImageFolder.find(tree)
    assert len(found) == 12
    for k in range(4):
        (tree / "bee" / f"{k}.JPEG").unlink()
    with pytest.raises(ValueError, match=r"folders without images .*: bee; not read are ant/y.tif, bee/x.BMP: save"):
        ImageFolder.find(tree)
    for name in ("ant", "cat"):
        shutil.rmtree(tree / name)
    with pytest.raises(ValueError, match=r"holds no images: .*; not read are bee/x.BMP: save them in one of these"):
        ImageFolder.find(tree)


def test_images_outside_of_class_folders_are_named(tree):
    for name in ("x.png", "bee/day2/y.png", "cat/a/b/z.png"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(tree / name)
    (tree / "ant" / "notes").mkdir()
    with pytest.warns(UserWarning, match="not in train/CLASS itself are left out: x.png, bee/day2, cat/a$"):
        assert len(ImageFolder.find(tree)) == 12


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_pictures_of_a_camera_that_was_turned_are_upright(tmp_path, form, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"x.{form.lower()}"
    Image.fromarray(picture(1, 90, 60)).save(path, form, exif=exif, quality=95)
    with Image.open(path) as stored:
        upright = ImageOps.exif_transpose(stored).convert("RGB")
    upright.save(tmp_path / "upright.png")
    assert upright.size == ((60, 90) if orientation in (5, 6, 7, 8) else (90, 60))
    source, twin = Source(str(path)), Source(str(tmp_path / "upright.png"))
    for numbers in (None, *np.random.default_rng(orientation).random((4, NUMBERS))):
        np.testing.assert_array_equal(read_part(source, 48, numbers), read_part(twin, 48, numbers))
    np.testing.assert_array_equal(read_scaled(source.path, 40), read_scaled(twin.path, 40))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.slow
def test_large_jpeg_files_are_upright_where_they_are_decoded_smaller(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "x.jpg"
    Image.fromarray(picture(1, 1600, 1200)).save(path, exif=exif, quality=95)
    with Image.open(path) as stored:
        ImageOps.exif_transpose(stored).save(tmp_path / "upright.png")
    for numbers in (None, np.random.default_rng(1).random(NUMBERS)):
        part, expected = (
            read_part(Source(str(tmp_path / name)), 56, numbers).astype(int) for name in ("x.jpg", "upright.png")
        )
        assert np.abs(part - expected).mean() < 3


def test_copies_of_turned_pictures_are_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "set" / "ant").mkdir(parents=True)
    Image.fromarray(picture(1, 90, 60)).save(tmp_path / "set" / "ant" / "x.jpg", exif=exif, quality=95)
    found = ImageFolder.find(tmp_path / "set")
    copies = found.cached(tmp_path / "copies", side=60)
    np.testing.assert_array_equal(read_part(copies.source(0), 32, None), read_part(found.source(0), 32, None))


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # which names what is damaged
def test_a_picture_whose_orientation_is_damaged_is_read(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = io.BytesIO()
    Image.fromarray(picture(1, 90, 60)).save(data, "JPEG", exif=exif, quality=95)
    start = data.getvalue().index(b"Exif\0\0")
    for k in range(6, 32):
        damaged = bytearray(data.getvalue())
        damaged[start + k] ^= 0xFF
        (tmp_path / "x.jpg").write_bytes(damaged)
        assert read_scaled(str(tmp_path / "x.jpg"), 60).shape in ((60, 90, 3), (90, 60, 3))


def test_the_centre_is_evaluated(tmp_path):
    whole = np.random.default_rng(0).integers(0, 256, (64, 80, 3), np.uint8)
    Image.fromarray(whole).save(tmp_path / "x.png")
    centre = read_part(Source(str(tmp_path / "x.png")), 56, None)  # 7/8 of 64: nothing is scaled
    np.testing.assert_array_equal(centre.transpose(1, 2, 0), whole[4:60, 12:68])


def test_random_parts_have_the_sizes_of_their_definition():
    rng = np.random.default_rng(0)
    boxes = np.array([choose_box((400, 300), numbers) for numbers in rng.random((2000, NUMBERS))])
    left, top, right, bottom = boxes.T
    w, h = right - left, bottom - top
    assert left.min() == top.min() == 0 and right.max() == 400 and bottom.max() == 300
    assert 0.74 < (w / h).min() < 0.78 and 1.29 < (w / h).max() < 1.35
    area = w * h / 120_000
    assert (
        0.079 < area.min() < 0.1 and area.max() > 0.95 and 0.4 < area.mean() < 0.45
    )  # where all fitted it would be 0.54
    # No part of an extreme image fits: the largest one in its centre is taken.
    assert choose_box((1000, 30), np.full(NUMBERS, 0.99)) == (480, 0, 520, 30)
    assert choose_box((30, 1000), np.full(NUMBERS, 0.99)) == (0, 480, 30, 520)
    assert NUMBERS == 4 * TRIES + 1


def test_a_random_part_has_the_least_area_that_was_asked_for(tree):
    boxes = np.array(
        [choose_box((400, 300), numbers, 0.5) for numbers in np.random.default_rng(0).random((2000, NUMBERS))]
    )
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / 120_000
    assert 0.495 < area.min() < 0.52 and area.max() > 0.95
    found = ImageFolder.find(tree)
    small, large = (batches(found, 12, shuffle=False, least_area=least)[0][0] for least in (0.08, 0.9))
    whole = batches(found, 12, evaluation=True)[0][0]
    difference = [np.abs(np.sort(part, 1) - np.sort(whole, 1)).mean() for part in (small, large)]
    assert difference[1] < 0.7 * difference[0]  # nearer to the whole image, mirrored or not


def test_mirrored_where_the_last_number_says_so(tree):
    source = Source(str(tree / "ant" / "0.JPEG"))
    numbers = np.random.default_rng(0).random(NUMBERS)
    parts = [read_part(source, 16, np.r_[numbers[:-1], last]) for last in (0.4, 0.6)]
    np.testing.assert_array_equal(parts[0], parts[1][:, :, ::-1])
    assert (parts[0] != parts[1]).any()


def test_no_image_is_mirrored_without_mirror(tree):
    for name in NAMES:
        for path in (tree / name).iterdir():
            Image.fromarray(np.tile(np.arange(0, 240, 4, np.uint8), (40, 1))).save(path, "PNG")  # brighter to the right
    for mirror, turned in ((False, {False}), (True, {False, True})):
        ((x, _),) = batches(ImageFolder.find(tree), 12, mirror=mirror)
        left, *_, right = np.moveaxis(x.reshape(12, 3, 16, 16), 3, 0)
        assert set((left > right).all((1, 2)).tolist()) == turned


def test_the_whole_image_is_evaluated(tree):
    found, image = ImageFolder.find(tree).subset(1), Image.fromarray(picture(1, 40, 60))
    image.save(tree / found.files[0], "PNG")
    expected = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    options = {"mean": None, "std": None, "whole": True}
    for training in ({"evaluation": True}, {"augment": False}):
        ((x, _),) = batches(found, 1, **training, **options)
        np.testing.assert_allclose(255 * x.reshape(3, 16, 16), expected, atol=1e-3)


def test_large_jpeg_files_are_decoded_smaller(tmp_path):
    whole = Image.fromarray(picture(1, 1600, 1200))
    whole.save(tmp_path / "x.jpg", quality=95)
    part = read_part(Source(str(tmp_path / "x.jpg")), 56, None).transpose(1, 2, 0).astype(int)
    expected = whole.resize((56, 56), Image.Resampling.BILINEAR, (275, 75, 1325, 1125))
    assert np.abs(part - np.asarray(expected)).mean() < 3


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_all_become_three_colours(tmp_path, mode):
    path = tmp_path / f"x.{'jpg' if mode == 'CMYK' else 'png'}"
    Image.new("RGB", (30, 30), (0, 0, 0)).convert(mode).save(path)
    assert read_part(Source(str(path)), 8, None).max() <= 1


def test_grey_of_16_bits_keeps_its_shades(tmp_path):
    Image.fromarray(np.full((30, 30), 0x8123, np.uint16)).save(tmp_path / "x.png")
    assert set(read_part(Source(str(tmp_path / "x.png")), 8, None).ravel().tolist()) == {0x81}


def test_grey_of_12_bits_in_16_is_warned_about(tmp_path):
    Image.fromarray(np.full((30, 30), 4095, np.uint16)).save(tmp_path / "x.png")
    with pytest.warns(UserWarning, match="no value above 1/8 of their range, and keeps few of its shades"):
        read_part(Source(str(tmp_path / "x.png")), 8, None)


def test_batches_of_ranks_are_parts_of_those_of_one(tree):
    found = ImageFolder.find(tree)
    whole = batches(found, 4, seed=3)
    assert [x.shape for x, _ in whole] == [(4, 3 * 16 * 16)] * 3 and whole[0][0].dtype == np.float32
    shares = [batches(found, 2, rank, 2, seed=3) for rank in range(2)]
    for (x, labels), *parts in zip(whole, *shares, strict=True):
        np.testing.assert_array_equal(x, np.concatenate([part for part, _ in parts]))
        assert labels.tolist() == [label for _, own in parts for label in own]
    with ThreadPoolExecutor(3) as executor:
        again = batches(found, 4, seed=3, workers=executor)
    np.testing.assert_array_equal(whole[1][0], again[1][0])
    assert (batches(found, 4, seed=3, augment=False)[1][0] != whole[1][0]).any()


def test_evaluation_sees_every_image_once_and_as_it_is(tree):
    found = ImageFolder.find(tree)
    x = np.concatenate([x for rank in range(5) for x, _ in batches(found, 2, rank, 5, evaluation=True)])
    expected = np.array([read_part(found.source(k), 16, None) for k in range(12)])
    mean, std = np.array([[[0.485]], [[0.456]], [[0.406]]]), np.array([[[0.229]], [[0.224]], [[0.225]]])
    np.testing.assert_allclose(x, ((expected / 255 - mean) / std).reshape(12, -1), atol=1e-5)


def test_it_goes_on_where_it_was(tree):
    whole = batches(ImageFolder.find(tree), 5)
    with FolderLoader(ImageFolder.find(tree), 5, size=16) as loader:
        next(iter(loader))
        state = loader.state_dict()
    identity = {"num_samples": 12, "global_batch": 5, "seed": 0, "shuffle": 1, "drop_last": 0}
    assert state == {"epoch": 0, "batch": 1, "samples": 5, **identity}
    with FolderLoader(ImageFolder.find(tree), 5, size=16) as loader:
        loader.load_state_dict(state)
        np.testing.assert_array_equal(next(iter(loader))[0], whole[1][0])
    rest = []
    for rank in range(2):  # with another global batch
        with FolderLoader(ImageFolder.find(tree), 2, rank, 2, size=16) as loader:
            loader.load_state_dict(state)
            rest.append([labels for _, labels in loader])
    labels = np.concatenate([np.concatenate(parts) for parts in zip(*rest, strict=True)])
    np.testing.assert_array_equal(labels, np.concatenate([labels for _, labels in whole])[5:])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_under_iteration_has_workers_of_its_own(tree, duplicate):
    found = ImageFolder.find(tree)
    whole = batches(found, 5)
    with FolderLoader(found, 5, size=16) as loader:
        iteration = iter(loader)
        next(iteration)
        with duplicate(loader) as twin:
            assert twin.state_dict() == loader.state_dict()
            for (x, labels), (expected, own) in zip(twin, whole, strict=True):
                np.testing.assert_array_equal(x, expected)
                np.testing.assert_array_equal(labels, own)
        np.testing.assert_array_equal(next(iteration)[0], whole[1][0])
    with ThreadPoolExecutor(1) as executor, FolderLoader(found, 5, size=16, workers=executor) as loader:
        next(iter(loader))
        with pytest.raises(TypeError, match="with an executor that it was given, and that cannot be copied: make anot"):
            duplicate(loader)


def test_copies_are_kept_until_their_files_change(tree, tmp_path, monkeypatch):
    monkeypatch.setattr("pytagi_ddp.data.image_folder.SHARD_SIZE", 5)
    found, cache = ImageFolder.find(tree), tmp_path / "cache"
    for rank in range(2):
        copied = found.cached(cache, 24, rank, 2)
    shards = sorted((cache / "side-24").iterdir())
    assert [len(ImageShard(shard)) for shard in shards] == [5, 5, 2]
    np.testing.assert_array_equal(ImageShard(shards[2]).read(1), read_scaled(str(tree / "cat" / "3.JPEG"), 24))
    assert ImageShard(shards[0]).read(0).shape == (30, 24, 3)
    x, labels = batches(copied.subset(4), 4, evaluation=True)[0]
    assert labels.tolist() == [0, 0, 1, 2]
    assert np.abs(x - batches(found.subset(4), 4, evaluation=True)[0][0]).mean() < 0.1

    before = [shard.stat().st_mtime_ns for shard in shards]
    found.cached(cache, 24)
    assert [shard.stat().st_mtime_ns for shard in shards] == before
    Image.new("RGB", (30, 30)).save(tree / "bee" / "1.JPEG")  # in the second one
    shards[2].write_bytes(shards[2].read_bytes()[:100])
    found.cached(cache, 24)
    after = [shard.stat().st_mtime_ns for shard in shards]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, False]
    assert not ImageShard(shards[1]).read(0).any()


def test_copies_are_made_again_of_files_of_the_same_size_and_found_by_any_path(tree, tmp_path, monkeypatch):
    for name in NAMES:
        for path in (tree / name).iterdir():
            Image.fromarray(picture(1, 30, 30)).save(path, "PNG", compress_level=0)
    path = tree / "bee" / "1.JPEG"
    size = path.stat().st_size
    first = ImageFolder.find(tree).cached(tmp_path / "cache", 24).shards
    Image.new("RGB", (30, 30)).save(path, "PNG", compress_level=0)
    assert path.stat().st_size == size
    monkeypatch.chdir(tree.parent)
    again = ImageFolder.find(f"{tree.name}/../{tree.name}").cached(tmp_path / "cache", 24)
    assert again.shards == first and not ImageShard.open(first[0]).read(5).any()


def test_names_that_are_no_text_and_folders_among_images(tree, tmp_path):
    (tree / "cat" / "folder.jpg").mkdir()
    image, count = read_scaled(str(tree / "cat" / "3.JPEG"), 24), len(ImageFolder.find(tree))
    name = os.fsencode(tree / "cat") + b"/caf\xe9.png"
    try:
        with open(name, "wb") as file:
            Image.fromarray(image).save(file, "png")
    except OSError:
        pytest.skip("this file system takes text only")
    found = ImageFolder.find(tree)
    assert len(found) == count + 1
    copied = found.cached(tmp_path / "cache", 24)
    assert ImageShard(Path(copied.shards[0])).read(found.files.index("cat/caf\udce9.png")).tolist() == image.tolist()


def test_sets_in_one_folder_keep_their_own_copies(tree, tmp_path):
    """Those of a part, and of trees with the same names, each with its labels, whoever wrote last."""
    others = [tmp_path / "val", tmp_path / "day2" / "train"]
    for root in others:
        shutil.copytree(tree, root)
        for path in root.rglob("*.JPEG"):
            Image.new("RGB", (30, 30)).save(path)
    found = ImageFolder.find(tree)
    sets = [found, found.subset(5), *map(ImageFolder.find, others)]
    before = [part.cached(tmp_path / "cache", 24) for part in sets]
    for part, copied in zip(sets, before, strict=True):
        (direct, labels), (x, own) = (batches(each, 12, evaluation=True)[0] for each in (part, copied))
        assert labels.tolist() == own.tolist()
        assert np.abs(x - direct).mean() < 0.1


def test_damaged_copies_are_named(tree, tmp_path):
    copied = ImageFolder.find(tree).cached(tmp_path / "cache", 24)
    (shard,) = (tmp_path / "cache").rglob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-10] ^= 1  # in the last image
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{shard}: image 11 is damaged; delete the file, and it is made anew"):
        batches(copied, 4)
    with pytest.raises(ValueError, match="side must be at least 1"):
        copied.cached(tmp_path, 0)
    with pytest.raises(ValueError, match="rank 2 of world_size 2"):
        copied.cached(tmp_path, rank=2, world_size=2)


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "other content":
        path.write_bytes(b"GIF89a" + bytes(100))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "very long":
        Image.new("RGB", (3000, 2)).save(path, "PNG")
    else:
        raise AssertionError(how)


@pytest.mark.parametrize("how", ["truncated", "other content", "empty"])
def test_what_is_no_image_is_named_or_left_out(tree, how):
    path = tree / "bee" / "2.JPEG"
    damage(path, how)
    with pytest.raises(ImageError, match=f"^{path}: "):
        batches(ImageFolder.find(tree), 5)
    with pytest.warns(RuntimeWarning, match=f"^left out: {path}: "):
        rest = batches(ImageFolder.find(tree, on_error="skip"), 12, shuffle=False)
    assert rest[0][0].shape == (11, 768) and rest[0][1].tolist() == [0] * 4 + [1] * 3 + [2] * 4


@pytest.mark.parametrize("how", ["truncated", "other content"])
def test_readable_images_are_in_the_order_of_their_predictions(tree, how):
    path = tree / "bee" / "2.JPEG"
    damage(path, how)
    found = ImageFolder.find(tree)
    with pytest.warns(RuntimeWarning, match=f"^left out: {path}: "):
        readable = found.readable()
    assert readable.files == tuple(file for file in found.files if file != "bee/2.JPEG")
    assert np.concatenate([y for _, y in batches(readable, 4, evaluation=True)]).tolist() == readable.labels.tolist()


@pytest.mark.parametrize("how", ["truncated", "very long"])
def test_copies_are_made_without_what_is_no_image(tree, tmp_path, how):
    path = tree / "cat" / "0.JPEG"
    damage(path, how)
    with pytest.raises(ImageError, match=f"^{path}: "):
        ImageFolder.find(tree).cached(tmp_path / "cache", 8)
    assert not list((tmp_path / "cache").rglob("*"))
    with pytest.warns(RuntimeWarning, match=f"^left out: {path}: "):
        copied = ImageFolder.find(tree, on_error="skip").cached(tmp_path / "cache", 8)
    with pytest.warns(RuntimeWarning, match=f"^left out: {path}: no image, as was found when "):
        assert sum(len(labels) for _, labels in batches(copied, 4)) == 11


def test_limits_of_pillow_are_kept(tree, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageError, match=r"ant/0.JPEG: .*2000 pixels"):
        batches(ImageFolder.find(tree), 12, shuffle=False)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert len(batches(ImageFolder.find(tree), 12)) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_a_pipe_is_not_waited_for(tree):
    os.mkfifo(tree / "ant" / "9.jpeg")
    with pytest.raises(OSError, match=r"not a regular file: .*ant/9.jpeg"):
        batches(ImageFolder.find(tree, on_error="skip"), 12)


def test_a_path_in_place_of_a_folder_of_images(tree):
    with pytest.raises(TypeError, match=r"takes an ImageFolder, as of ImageFolder\.find, got str"):
        FolderLoader(str(tree), 4)


def test_bad_arguments(tree):
    found = ImageFolder.find(tree)
    for least in (0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="least_area must be in"):
            FolderLoader(found, 1, least_area=least)
    with pytest.raises(TypeError, match=r"size must be an integer, got \(32, 64\)"):
        FolderLoader(found, 1, size=(32, 64))
    for options in ({"size": 0}, {"workers": -1}, {"evaluation": True, "drop_last": True}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=r"at least|drop_last"):
            FolderLoader(found, **{"batch_size": 1, **options})


def test_without_pillow_the_error_says_what_to_install(tree, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"needs Pillow, .*: pip install 'pytagi-ddp\[images\]'"):
        batches(ImageFolder.find(tree), 4)


@pytest.mark.slow
def test_processes_decode_the_same(tree, tmp_path):
    found = ImageFolder.find(tree)
    with image_workers(1) as workers:
        for x, y in zip(batches(found, 5), batches(found, 5, workers=workers), strict=True):
            np.testing.assert_array_equal(x[0], y[0])
        copied = found.cached(tmp_path / "cache", 24, workers=workers)
        assert len(batches(copied, 5, workers=workers)) == 3
        damage(tree / "bee" / "2.JPEG", "truncated")
        with pytest.raises(ImageError, match=r"bee/2.JPEG: .*[Tt]runcated"):
            batches(found, 5, workers=workers)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    program = (
        "import os, time\n"
        "from pytagi_ddp.data import image_workers\n"
        "if __name__ == '__main__':\n"
        "    print(image_workers(1).submit(os.getpid).result(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    (tmp_path / "program.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, env=environment)
    with parent, io.TextIOWrapper(parent.stdout) as lines:
        worker = Path("/proc", lines.readline().strip())
        assert worker.name.isdecimal() and worker.exists()
        parent.kill()
        deadline = time.monotonic() + 10
        while worker.exists() and "Z" not in (worker / "stat").read_text().rpartition(")")[2]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_shard_whose_header_is_too_long_is_not_parsed(tmp_path):
    """Of 80 MB it took 1.6 GB."""
    text = b'{"__metadata__":{%s},"pixels":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    text %= b",".join(b'"%d":""' % number for number in range(1 << 20))
    (tmp_path / "shard").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ValueError, match=rf"{tmp_path}/shard: its header has {len(text)} bytes, more than 8388608"):
        ImageShard(tmp_path / "shard")


@pytest.mark.parametrize("kind", ["F8_E4M3", "BF16", "F4"])
def test_a_shard_of_types_that_numpy_does_not_have_is_named(tmp_path, kind):
    names = ("pixels", "offsets", "sizes", "checksums")
    entries = {name: {"dtype": kind, "shape": [0], "data_offsets": [0, 0]} for name in names}
    header = json.dumps({"__metadata__": {"format": "pytagi_ddp images 1"}, **entries}).encode()
    (tmp_path / "shard").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match=rf"{tmp_path}/shard: .*; delete the file"):
        ImageShard(tmp_path / "shard")
