import copy
import itertools
import json
import pickle
import subprocess
import sys
import threading
from contextlib import closing

import numpy as np
import pytest

from pytagi_ddp.data import ArrayLoader, BatchLoader, ImageDataset, ShardedSampler, random_crop_flip


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def make_data(count=101, channels=3, size=6):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    return ImageDataset(images, rng.integers(0, 10, count), tuple("0123456789"), "toy")


def test_batches_are_normalised_flat_nchw_float32():
    data = make_data()
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    loader = BatchLoader(data, 10, shuffle=False, mean=mean, std=std)
    batches = list(loader)
    assert len(batches) == len(loader) == 11
    for x, labels in batches:
        assert x.dtype == np.float32
        assert labels.dtype == np.int64
        assert x.shape == (len(labels), 3 * 6 * 6)
        assert x.flags.c_contiguous
    column = np.array([mean, std]).reshape(2, 3, 1, 1)
    expected = ((data.images / 255 - column[0]) / column[1]).reshape(101, -1)
    np.testing.assert_allclose(np.concatenate([x for x, _ in batches]), expected, atol=2e-6)
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in batches]), data.labels)


def test_pixels_are_scaled_to_0_1_without_mean_and_std():
    data = make_data()
    x = np.concatenate([x for x, _ in BatchLoader(data, 32, shuffle=False)])
    np.testing.assert_allclose(x, data.images.reshape(101, -1) / 255, atol=1e-6)


def test_one_mean_and_std_serve_all_channels():
    data = make_data()
    one, each = (
        next(iter(BatchLoader(data, 8, mean=mean, std=std, prefetch=0)))[0]
        for mean, std in ((0.5, 0.25), ([0.5] * 3, [0.25] * 3))
    )
    np.testing.assert_array_equal(one, each)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_ranks_together_see_what_one_rank_sees(world_size, prefetch):
    data = make_data()

    def batches(rank, world_size, batch_size):
        loader = BatchLoader(data, batch_size, rank, world_size, seed=3, transform=random_crop_flip, prefetch=prefetch)
        loader.set_epoch(2)
        return list(loader)

    one = batches(0, 1, 30)
    ranks = [batches(rank, world_size, 30 // world_size) for rank in range(world_size)]
    for batch, (x, labels) in enumerate(one):
        np.testing.assert_array_equal(np.concatenate([rank[batch][0] for rank in ranks]), x)
        np.testing.assert_array_equal(np.concatenate([rank[batch][1] for rank in ranks]), labels)


def test_augmentation_changes_with_epoch_batch_and_seed():
    same = np.tile(np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8), dtype=np.uint8), (64, 1, 1, 1))
    data = ImageDataset(same, np.zeros(64, int), ("a",), "one image")

    def epoch(seed, number):
        loader = BatchLoader(data, 32, seed=seed, transform=random_crop_flip)
        loader.set_epoch(number)
        return [x for x, _ in loader]

    first = epoch(0, 0)
    assert np.array_equal(first, epoch(0, 0))
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, epoch(0, 1))
    assert not np.array_equal(first, epoch(1, 0))


def test_a_rank_without_samples_gets_an_empty_batch_and_steps_along():
    data = make_data(count=10)
    loaders = [BatchLoader(data, 3, rank, 3, transform=random_crop_flip) for rank in range(3)]
    sizes = [[len(labels) for _, labels in loader] for loader in loaders]
    assert sizes == [[3, 0], [3, 0], [3, 1]]
    assert list(loaders[0])[1][0].shape == (0, 108)


def test_resumes_where_a_checkpoint_was_taken_with_another_number_of_ranks():
    data = make_data()
    loader = BatchLoader(data, 12, transform=random_crop_flip, seed=5)
    loader.set_epoch(3)
    whole = list(loader)
    loader.set_epoch(3)
    for number, _ in enumerate(loader, 1):
        if number == 4:
            state = loader.state_dict()
            break
    assert (state["epoch"], state["batch"]) == (3, 4)
    ranks = [BatchLoader(data, 6, rank, 2, transform=random_crop_flip, seed=5) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(state)
        assert rank.state_dict() == state
    rest = list(zip(*ranks, strict=True))
    assert len(rest) == len(whole) - 4
    for (x, _), parts in zip(whole[4:], rest, strict=True):
        np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), x)
    assert len(list(ranks[0])) == len(whole)  # only the next iteration begins in the middle


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_iteration_from_the_first_batch_leaves_the_position(prefetch):
    loader = BatchLoader(make_data(), 10, seed=5, transform=random_crop_flip, prefetch=prefetch)
    loader.set_epoch(3)
    whole = [x for x, _ in loader]
    loader.set_epoch(3, 7)
    before = loader.state_dict()
    np.testing.assert_array_equal([x for x, _ in loader.from_first()][:10], whole[:10])
    assert loader.state_dict() == before
    rest = []
    for x, _ in loader:
        rest.append(x)
        position = loader.state_dict()
        next(loader.from_first())  # amid an iteration, and left half-way
        assert loader.state_dict() == position
    assert len(rest) == 4 and all(map(np.array_equal, rest, whole[7:]))
    assert len(list(loader)) == len(whole)  # only the next iteration began in the middle
    left = loader.from_first()
    next(left)
    loader.close()
    assert list(left) == []


def test_position_survives_prefetching():
    loader = BatchLoader(make_data(), 10, prefetch=5)
    positions = [loader.state_dict()["batch"] for _ in loader]
    assert positions == list(range(1, 12))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 12, "seed": 1}, "seed 0, this loader has 1"),
        ({"batch_size": 12, "shuffle": False}, "shuffle 1, this loader has 0"),
        ({"batch_size": 12, "drop_last": True}, "drop_last 0, this loader has 1"),
    ],
)
def test_a_position_of_another_order_is_refused(options, message):
    state = BatchLoader(make_data(), 12).state_dict()
    with pytest.raises(ValueError, match=message):
        BatchLoader(make_data(), **options).load_state_dict(state)
    with pytest.raises(ValueError, match="num_samples 101, this loader has 100"):
        BatchLoader(make_data(100), 12).load_state_dict(state)
    old = {key: value for key, value in state.items() if key not in ("shuffle", "drop_last")}
    BatchLoader(make_data(), 12, shuffle=False).load_state_dict(old)


@pytest.mark.parametrize("version", ["0.2", "now"])
def test_other_ranks_and_batch_sizes_go_on_behind_the_same_sample(version):
    data = make_data()
    order = ShardedSampler(len(data), seed=5).order()
    loader, seen = BatchLoader(data, 12, seed=5), []
    for world_size, batch_size, stop in ((4, 3, 3), (3, 5, 2), (2, 4, 1), (1, 7, 99)):
        state, parts = loader.state_dict(), []
        if version == "0.2" and world_size == 3:  # the first state that is not the beginning
            assert state.pop("samples") == 36
        for rank in range(world_size):
            loader = BatchLoader(data, batch_size, rank, world_size, seed=5, transform=random_crop_flip)
            loader.load_state_dict(state)
            assert loader.state_dict()["samples"] == sum(map(len, seen))
            with closing(iter(loader)) as batches:
                parts.append([labels for _, labels in itertools.islice(batches, stop)])
        seen += [np.concatenate(part) for part in zip(*parts, strict=True)]
    np.testing.assert_array_equal(np.concatenate(seen), data.labels[order])
    assert loader.state_dict()["samples"] == len(data)
    assert sum(len(labels) for _, labels in loader) == len(data), "the next iteration is of the whole epoch"


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_end_that_other_batch_sizes_store_again_stays_the_end(drop_last):
    first = BatchLoader(make_data(100), 10, drop_last=drop_last)
    assert len(list(first)) == 10
    state = first.state_dict()
    for batch_size in (8, 3, 10):
        loader = BatchLoader(make_data(100), batch_size, drop_last=drop_last)
        loader.load_state_dict(state)
        state = loader.state_dict()
        assert state["samples"] == 100 and list(loader) == []


def test_what_counts_no_samples_or_not_so_many():
    with pytest.raises(ValueError, match=r"samples must be in 0\.\.101 \(.* of training data, got 102"):
        BatchLoader(make_data(), 4).set_epoch(0, samples=102)
    shard = BatchLoader(make_data(), 12, evaluation=True)
    with pytest.raises(ValueError, match="of training data, got 12"):
        shard.set_epoch(0, samples=12)
    with pytest.raises(ValueError, match="global_batch 12, this loader has 16"):
        BatchLoader(make_data(), 8, 0, 2, evaluation=True).load_state_dict(shard.state_dict())
    old = BatchLoader(make_data(), 12).state_dict() | {"batch": 10}
    del old["samples"]
    with pytest.raises(ValueError, match=r"in 0\.\.101 .* got 120"):
        BatchLoader(make_data(), 12).load_state_dict(old)


@pytest.mark.parametrize("change", [{"epoch": "1"}, {"batch": None}, {"seed": 1.0}, {"global_batch": []}])
def test_a_position_without_integers_is_refused(change):
    loader = BatchLoader(make_data(), 12)
    state = loader.state_dict()
    (key,) = change
    for wrong in (state | change, {name: value for name, value in state.items() if name != key}):
        with pytest.raises(ValueError, match=f"the stored position has no integer for {key}: "):
            loader.load_state_dict(wrong)
    assert loader.state_dict() == state


def test_close_ends_an_iteration_that_was_left():
    loader = BatchLoader(make_data(), 4)
    iteration = iter(loader)
    next(iteration)
    loader.close()
    assert list(iteration) == []
    with loader:
        iteration = iter(loader)
        next(iteration)
    assert list(iteration) == []


def test_an_error_of_the_transform_arrives():
    def broken(images, rng):
        raise ZeroDivisionError("in the transform")

    with pytest.raises(ZeroDivisionError, match="in the transform"):
        list(BatchLoader(make_data(), 4, transform=broken))
    with pytest.raises(ValueError, match=r"\(4, 3, 6, 6\) to \(4, 3, 6, 5\)"):
        list(BatchLoader(make_data(), 4, transform=lambda images, rng: images[..., 1:]))


def test_a_process_that_drops_a_loader_half_way_ends_at_once():
    code = (
        "import numpy as np; from pytagi_ddp.data import BatchLoader, synthetic_images\n"
        "loader = BatchLoader(synthetic_images(250, 250)[0], 4); it = iter(loader); next(it)\n"
        "raise KeyboardInterrupt"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert result.stderr.strip().endswith("KeyboardInterrupt")
    assert "prefetch" not in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "got 0"),
        ({"batch_size": -3}, "got -3"),
        ({"prefetch": -1}, "got -1"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world_size 2"),
        ({"seed": -1}, "got -1"),
        ({"mean": [0.1, 0.2]}, r"shape \(2,\), the images have 3 channels"),
        ({"std": 0.0}, "positive"),
        ({"mean": float("nan")}, "finite"),
        ({"batch_size": 64, "world_size": 2, "drop_last": True}, "101 samples, 2 ranks x 64"),
        ({"evaluation": True, "drop_last": True}, "no drop_last"),
        ({"evaluation": True, "transform": random_crop_flip}, "no transform"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        BatchLoader(make_data(), **{"batch_size": 8, **options})


def test_a_pair_of_arrays_is_no_data_set():
    data = make_data()
    with pytest.raises(TypeError, match="takes an ImageDataset, got tuple"):
        BatchLoader((data.images, data.labels), 8)


def test_bad_positions_are_named():
    loader = BatchLoader(make_data(), 10)
    with pytest.raises(ValueError, match=r"0\.\.11 .* got 12"):
        loader.set_epoch(0, start_batch=12)
    with pytest.raises(ValueError, match="got -1"):
        loader.set_epoch(-1)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_under_iteration_has_its_position_and_goes_on_alone(duplicate, prefetch):
    loader = BatchLoader(make_data(), 10, seed=3, transform=random_crop_flip, prefetch=prefetch)
    expected = [x for x, _ in loader]
    with loader:
        iteration = iter(loader)
        for _ in range(3):
            next(iteration)
        twin = duplicate(loader)
        assert twin.state_dict() == loader.state_dict() and twin.state_dict()["batch"] == 3
        twin.load_state_dict(twin.state_dict())
        for own in (twin, iteration):
            np.testing.assert_array_equal(np.concatenate([x for x, _ in own]), np.concatenate(expected[3:]))
    for epoch in (twin, twin):
        np.testing.assert_array_equal(np.concatenate([x for x, _ in epoch]), np.concatenate(expected))


def test_a_state_is_json_whatever_the_integers_are():
    x = np.zeros((20, 3), np.float32)
    loader = ArrayLoader(x, x[:, :1], batch_size=np.array(4), seed=np.int64(3))
    loader.set_epoch(np.int64(1))
    found = json.loads(json.dumps(loader.state_dict()))
    assert (found["epoch"], found["global_batch"], found["seed"]) == (1, 4, 3)
