import numpy as np
import pytest

from pytagi_ddp.data import DistributedSampler, EvaluationSampler, ShardedSampler

WORLD_SIZES = (1, 2, 3, 5)


def parts(num_samples, world_size, batch_size, epoch=0, **options):
    """For each rank, its list of index arrays."""
    result = []
    for rank in range(world_size):
        sampler = ShardedSampler(num_samples, rank, world_size, **options)
        sampler.set_epoch(epoch)
        result.append([part.indices for part in sampler.batches(batch_size)])
    return result


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("num_samples", range(1, 32, 3))
def test_a_partial_batch_is_split_evenly_and_every_rank_steps_equally_often(num_samples, world_size):
    ranks = parts(num_samples, world_size, 4)
    assert len({len(rank) for rank in ranks}) == 1
    for batch in zip(*ranks, strict=True):
        sizes = [len(indices) for indices in batch]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) > 0 or sum(sizes) < world_size


def test_drop_last_leaves_only_full_batches():
    for rank in parts(101, 3, 4, drop_last=True):
        assert [len(indices) for indices in rank] == [4] * 8


def test_order_depends_on_seed_and_epoch_only():
    def order(**options):
        return np.concatenate(parts(50, 1, 8, **options)[0]).tolist()

    assert order(seed=3, epoch=2) == order(seed=3, epoch=2)
    assert order(seed=3, epoch=2) != order(seed=3, epoch=1)
    assert order(seed=3, epoch=2) != order(seed=4, epoch=2)
    assert order(seed=3, epoch=2, shuffle=False) == list(range(50))


def test_the_permutation_is_the_documented_one():
    expected = np.random.Generator(np.random.PCG64([7, 2])).permutation(20)
    np.testing.assert_array_equal(np.concatenate(parts(20, 1, 6, epoch=2, seed=7)[0]), expected)


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_and_batches_change_within_an_epoch_and_every_sample_comes_once(drop_last):
    rng = np.random.default_rng(3)
    cuts = 0
    for trial in range(300):
        num_samples, done, seen = int(rng.integers(1, 120)), 0, []
        while True:
            world_size, batch_size = int(rng.integers(1, 6)), int(rng.integers(1, 9))
            ranks = [
                ShardedSampler(num_samples, r, world_size, seed=trial, drop_last=drop_last) for r in range(world_size)
            ]
            start, first = divmod(done, batch_size * world_size)
            rest = [list(sampler.batches(batch_size, start, first)) for sampler in ranks]
            assert len({len(own) for own in rest}) == 1, "every rank steps equally often"
            stop = len(rest[0]) if rng.random() < 0.3 else int(rng.integers(0, len(rest[0]) + 1))
            cuts += 0 < stop < len(rest[0])
            for parts in list(zip(*rest, strict=True))[:stop]:
                assert {part.batch for part in parts} == {done // (batch_size * world_size)}
                whole = np.concatenate([part.indices for part in parts])
                assert {part.global_size for part in parts} == {len(whole)}
                seen.append(whole)
                done += len(whole)
            if stop == len(rest[0]):
                break
        np.testing.assert_array_equal(np.concatenate([*seen, ranks[0].order()[done:]]), ranks[0].order())
        assert 0 <= num_samples - done < (batch_size * world_size if drop_last else 1)
    assert cuts > 150


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("num_samples", [2, 60, 101])
def test_evaluation_counts_every_sample_once_in_contiguous_shards(num_samples, world_size):
    shards = []
    for rank in range(world_size):
        sampler = EvaluationSampler(num_samples, rank, world_size)
        batches = [part.indices for part in sampler.batches(7)]
        assert len(batches) == sampler.num_batches(7)
        assert all(0 < len(indices) <= 7 for indices in batches)
        shards.append(np.concatenate([np.empty(0, int), *batches]))
    np.testing.assert_array_equal(np.concatenate(shards), np.arange(num_samples))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ShardedSampler(0), "got 0"),
        (lambda: ShardedSampler(10, 3, 3), "rank 3 of world_size 3"),
        (lambda: ShardedSampler(10, -1, 2), "rank -1 of world_size 2"),
        (lambda: EvaluationSampler(10, 0, 0), "world_size must be at least 1, got 0"),
        (lambda: DistributedSampler(10, 0, -1), "world_size must be at least 1, got -1"),
        (lambda: ShardedSampler(10, seed=-4), "got -4"),
        (lambda: ShardedSampler(10).set_epoch(-1), "got -1"),
        (lambda: ShardedSampler(10).batches(0), "got 0"),
        (lambda: ShardedSampler(10).batches(4, start_batch=4), r"0\.\.3 .* got 4"),
        (lambda: ShardedSampler(10).batches(4, first=11), r"first must be in 0\.\.10 .* got 11"),
        (lambda: EvaluationSampler(10).batches(4, start_batch=-1), r"0\.\.3 .* got -1"),
    ],
)
def test_bad_numbers_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("sampler", [ShardedSampler, EvaluationSampler])
@pytest.mark.parametrize("data", [np.zeros((5, 2)), [1, 2, 3], 5.0])
def test_a_data_set_in_place_of_its_size(sampler, data):
    with pytest.raises(TypeError, match=r"num_samples must be an integer, got"):
        sampler(data)
