"""Sums through shared memory, between threads. The interpreter's lock is released while a rank waits."""

import mmap
import sys
import threading
import time

import numpy as np
import pytest
from pytagi_ddp.distributed.engine._shared_sum import SharedSum, add_rows, shared_bytes

from pytagi_ddp.distributed.engine.combine import tree_sum

FLOATS = 1040  # more than are added at a time


def ranks(count: int) -> list[SharedSum]:
    memory = mmap.mmap(-1, shared_bytes(count, FLOATS))
    return [SharedSum(memory, rank, count, FLOATS) for rank in range(count)]


def in_a_tree(parts: list) -> np.ndarray:
    """Neighbours first; the first ones already if there are more than a power of two."""
    extra = len(parts) - 2 ** (len(parts).bit_length() - 1)
    parts = [parts[2 * k] + parts[2 * k + 1] for k in range(extra)] + parts[2 * extra :]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8])
def test_many_sums_in_a_row_are_those_of_all_ranks(count):
    shares = np.random.default_rng(0).normal(size=(200, count, FLOATS)).astype(np.float32)
    sizes = np.random.default_rng(1).integers(1, FLOATS + 1, 200)
    found = shares.copy()

    def take_part(rank, shared):
        for k, n in enumerate(sizes):
            request = shared.start(found[k, rank, :n])
            while not request.Test():
                time.sleep(0)

    threads = [threading.Thread(target=take_part, args=pair) for pair in enumerate(ranks(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for k, n in enumerate(sizes):
        expected = in_a_tree(list(shares[k]))
        for rank in range(count):
            assert np.array_equal(found[k, rank, :n], expected[:n]), (k, rank)
            assert np.array_equal(found[k, rank, n:], shares[k, rank, n:]), (k, rank)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("n", [0, 1, FLOATS])
def test_rows_are_added_in_the_same_order(count, n):
    rows, out = np.random.default_rng(n).normal(size=(count, n)).astype(np.float32), np.empty(n, np.float32)
    add_rows(rows, out)
    assert np.array_equal(out, in_a_tree(list(rows)))
    assert np.array_equal(out, tree_sum(rows))
    with pytest.raises(ValueError, match=f"{count} rows of {n} numbers"):
        add_rows(rows, np.empty(n + 1, np.float32))


def test_a_sum_of_no_rows_is_refused():
    with pytest.raises(ValueError, match="0 rows of 3 numbers"):
        add_rows(np.empty((0, 3), np.float32), np.empty(3, np.float32))


def test_nothing_changes_before_the_last_rank_has_arrived():
    first, second = ranks(2)
    mine, other = np.ones(3, np.float32), np.full(3, 2, np.float32)
    first.start(mine)
    assert not first.Test() and not first.Test() and (mine == 1).all()
    assert second.start(other).Test() and (other == 3).all()
    assert first.Test() and (mine == 3).all()


def test_a_rank_may_be_one_sum_ahead():
    first, second = ranks(2)
    mine, other = np.ones(2, np.float32), np.ones(2, np.float32)
    first.start(mine)
    assert second.start(other).Test()
    assert not second.start(other).Test()  # in the other turn: what it brought to the first sum still lies there
    assert first.Test() and (mine == 2).all()
    assert first.start(mine).Test() and second.Test()
    assert (mine == 4).all() and (other == 4).all()


def test_different_sizes_are_refused_on_every_rank():
    first, second = ranks(2)
    mine, other = np.ones(5, np.float32), np.ones(6, np.float32)
    first.start(mine)
    second.start(other)
    for shared in (first, second):
        with pytest.raises(ValueError, match=r"rank . adds . numbers, rank . \d"):
            shared.Test()
    assert (mine == 1).all() and (other == 1).all()


@pytest.mark.parametrize(
    "values",
    [np.ones(3), np.ones(3, ">f4"), np.ones(0, np.float32), np.ones(FLOATS + 1, np.float32), np.ones(3, np.int32)],
)
def test_other_arrays_are_refused_and_keep_no_place(values):
    first, second = ranks(2)
    references = sys.getrefcount(values)
    with pytest.raises(ValueError, match=f"1 to {FLOATS} float32 numbers"):
        first.start(values)
    assert sys.getrefcount(values) == references
    mine, other = np.ones(1, np.float32), np.ones(1, np.float32)
    references = sys.getrefcount(mine)
    first.start(mine)
    assert second.start(other).Test() and first.Test() and mine[0] == other[0] == 2
    assert sys.getrefcount(mine) == references  # the sum is complete, and keeps no array


def test_a_sum_that_is_over_changes_its_array_no_more():
    """The array may be gone by then."""
    (shared,) = ranks(1)
    values = np.ones(3, np.float32)
    assert shared.start(values).Test()
    values[:] = 2
    with pytest.raises(RuntimeError, match="no sum is under way"):
        shared.Test()
    assert values.tolist() == [2, 2, 2]


def test_memory_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="rank 0 of 2"):
        SharedSum(mmap.mmap(-1, shared_bytes(2, FLOATS) - 1), 0, 2, FLOATS)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        SharedSum(mmap.mmap(-1, shared_bytes(2, FLOATS)), 2, 2, FLOATS)
    for floats in (-16, 0, 8):  # the numbers of each rank begin on a cache line
        with pytest.raises(ValueError, match=f"2, {floats} numbers"):
            SharedSum(mmap.mmap(-1, shared_bytes(2, FLOATS)), 0, 2, floats)
