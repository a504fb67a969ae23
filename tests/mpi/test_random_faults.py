"""A few of the random faults, and one in the middle of each way to exchange deltas."""

from collections import Counter

import pytest

from tests.mpi.random_faults import (
    EARLY_POINTS,
    HARMLESS,
    KINDS,
    LONG_TIMEOUT,
    NOT_POSSIBLE,
    OPTIONS,
    PIPED,
    SHARDED,
    TALKING,
    Case,
    draw,
    run,
)

SAMPLE = (15, 16, 19)  # of kinds that `tests.mpi.test_faults` has not
NO_FAULTS = (46, 47)  # of the kinds that `tests.mpi.test_child_process` has not


@pytest.mark.mpi
@pytest.mark.parametrize("seed", SAMPLE)
def test_a_random_fault_ends_the_job(seed, hydra):
    wrong, story = run(draw(seed))
    assert not wrong, story


@pytest.mark.mpi
@pytest.mark.parametrize("seed", NO_FAULTS)
def test_what_is_no_fault_leaves_no_trace(seed, hydra):
    wrong, story = run(draw(seed))
    if story.startswith(NOT_POSSIBLE):
        pytest.skip(story)
    assert not wrong, story


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("options", "kind", "point"),
    [
        ({"no_sync": True, "buckets": 2}, "exception", "before step"),  # reductions are under way
        ({"buckets": 3}, "SIGKILL", "before step"),
        ({"sync_batch_norm": True}, "exit 3", "before backward"),  # the others are on their way to the next BatchNorm
        ({"join": True, "sync_batch_norm": True}, "exception", "before backward"),
        ({"every": 3}, "return", "after step"),  # between two merges
        ({"wire_dtype": "float16"}, "exception in a thread", "before step"),
        ({"groups": True, "messages": True}, "exit 3", "before exchange"),
        ({"reshard_after_forward": True}, "exception", "before backward"),  # the others are about to gather
        ({"reshard_after_forward": False}, "exit 3", "before step"),
        ({"n_microbatches": 3}, "exception", "before forward"),  # the others wait for states, and for deltas
        ({"n_microbatches": 2, "schedule": "GPipe"}, "exit 3", "before backward"),
    ],
)
def test_a_fault_amid_each_way_to_exchange(options, kind, point, hydra):
    assert options in (*OPTIONS, *TALKING, *SHARDED, *PIPED)
    wrong, story = run(Case(0, 2, options, kind, rank=1, point=point, step=4, delay=0.0, timeout=LONG_TIMEOUT))
    assert not wrong, story


def test_cases_follow_from_their_number_and_cover_every_kind():
    cases = [draw(seed) for seed in range(240)]
    assert cases == [draw(seed) for seed in range(240)]
    kinds = Counter(case.kind for case in cases)
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) >= 10
    assert {case.ranks for case in cases} == {2, 3, 4}
    assert 20 <= sum(case.point in EARLY_POINTS for case in cases) <= 60
    assert len({draw(seed).kind for seed in SAMPLE}) == len(SAMPLE)
    assert {draw(seed).kind for seed in NO_FAULTS} == set(HARMLESS) - {"fork", "program"}
