"""DistributedSampler: indices one by one, equally many on every rank."""

import os
from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest

from pytagi_ddp.data import DistributedSampler, ShardedSampler
from pytagi_ddp.distributed import initialize, run_threads

WORLD_SIZES = (1, 2, 3, 5)


def indices(data, world_size, epoch=0, **options):
    """For each rank, its list of indices."""
    samplers = [DistributedSampler(data, rank, world_size, **options) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    lists = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(one) for one in lists]
    return lists


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("num_samples", [2, 60, 101])
def test_padding_repeats_the_first_of_the_order(num_samples, world_size):
    lists = indices(num_samples, world_size, seed=4)
    (order,) = indices(num_samples, 1, seed=4)
    length = -(-num_samples // world_size)
    assert {len(one) for one in lists} == {length}
    together = [index for group in zip(*lists, strict=True) for index in group]
    assert together == (order * 5)[: length * world_size]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_drop_last_leaves_out_fewer_than_ranks(world_size):
    lists = indices(101, world_size, drop_last=True)
    assert {len(one) for one in lists} == {101 // world_size}
    seen = Counter(index for one in lists for index in one)
    assert len(seen) == 101 // world_size * world_size and set(seen.values()) == {1}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_neither_covers_the_data_exactly(world_size):
    lists = indices(range(101), world_size, pad=False)
    assert sorted(index for one in lists for index in one) == list(range(101))
    sizes = [len(one) for one in lists]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_batches_hold_the_samples_of_the_sharded_sampler(world_size):
    lists = indices(60, world_size, epoch=3, seed=2)
    samplers = [ShardedSampler(60, rank, world_size, seed=2) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(3)
    for batch, parts in enumerate(zip(*(sampler.batches(2) for sampler in samplers), strict=True)):
        ours = [index for one in lists for index in one[2 * batch : 2 * batch + 2]]
        assert sorted(ours) == sorted(np.concatenate([part.indices for part in parts]))


def test_order_follows_seed_and_epoch():
    assert indices(50, 2, epoch=1) == indices(50, 2, epoch=1)
    assert indices(50, 2, epoch=1) != indices(50, 2, epoch=2)
    assert indices(50, 2, seed=1) != indices(50, 2, seed=2)
    assert indices(6, 2, shuffle=False) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize("starts", [False, True])
def test_rank_and_number_of_ranks_are_those_of_the_program(starts):
    def shares():
        if starts:
            initialize()
        return [list(DistributedSampler(10)), list(DistributedSampler(10, world_size=2))]

    assert run_threads(shares, 2) == [[share] * 2 for share in indices(10, 2)]
    for variables in ({"PMI_RANK": "1", "PMI_SIZE": "2"}, {"PMIX_RANK": "1"}):
        with (
            patch.dict(os.environ, variables),
            pytest.raises(ValueError, match="has not connected to the others: give"),
        ):
            DistributedSampler(10)
    assert len(DistributedSampler(10)) == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DistributedSampler(0), "got 0"),
        (lambda: DistributedSampler([1, 2], 2, 2), "rank 2 of world_size 2"),
        (lambda: DistributedSampler(9, drop_last=True, pad=True), "exclude each other"),
        (lambda: DistributedSampler(2, 0, 3, drop_last=True), "2 samples leave some of 3 ranks"),
        (lambda: DistributedSampler(2, 0, 3, pad=False), "2 samples leave some of 3 ranks"),
        (lambda: DistributedSampler(9).set_epoch(-1), "got -1"),
    ],
)
def test_bad_numbers_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(TypeError, match="float"):
        DistributedSampler(9.5)
