"""Schedules of pipelines, without ranks."""

from itertools import pairwise

import pytest

from pytagi_ddp.distributed.pipeline.schedule import (
    SCHEDULES,
    Action,
    Span,
    bubble,
    draw,
    frames_in_flight,
    make_schedule,
    micro_batch_rows,
)
from tests.distributed.pipeline.simulated import simulate

SIZES = [(stages, micro_batches) for stages in (1, 2, 3, 4, 7) for micro_batches in (1, 2, 3, 5, 8, 16)]
schedules = pytest.mark.parametrize("name", SCHEDULES)
sizes = pytest.mark.parametrize(("stages", "micro_batches"), SIZES)


@schedules
@sizes
def test_each_stage_does_each_pass_once_and_goes_back_in_order(name, stages, micro_batches):
    for actions in make_schedule(stages, micro_batches, name):
        for kind in ("F", "B"):
            assert [m for k, m in actions if k == kind] == list(range(micro_batches))
        for m in range(micro_batches):
            assert actions.index(Action("F", m)) < actions.index(Action("B", m))


@schedules
@sizes
def test_no_stage_begins_before_its_neighbour_has_ended(name, stages, micro_batches):
    forward, backward = [1.0 + s for s in range(stages)], [2.0 + s % 2 for s in range(stages)]
    timelines = simulate(make_schedule(stages, micro_batches, name), forward, backward)
    spans = [{span.action: span for span in timeline} for timeline in timelines]
    for timeline in timelines:
        assert all(a.stop <= b.start for a, b in pairwise(timeline))
    for here, behind in pairwise(spans):
        for m in range(micro_batches):
            assert here[Action("F", m)].stop <= behind[Action("F", m)].start
            assert behind[Action("B", m)].stop <= here[Action("B", m)].start


@schedules
@sizes
def test_frames_in_flight(name, stages, micro_batches):
    for stage, actions in enumerate(make_schedule(stages, micro_batches, name)):
        live = most = 0
        for action in actions:
            live += 1 if action.kind == "F" else -1
            most = max(most, live)
        assert live == 0
        assert most == frames_in_flight(stages, stage, micro_batches, name)
        assert most == (micro_batches if name == "GPipe" else min(micro_batches, stages - stage))


@schedules
@sizes
def test_bubble_of_equal_stages(name, stages, micro_batches):
    timelines = simulate(make_schedule(stages, micro_batches, name), [1.0] * stages, [2.0] * stages)
    assert bubble(timelines) == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_bubble_of_unequal_stages():
    # The second stage is busy without a pause but for the first forward and the last backward pass of the first one.
    assert bubble(simulate(make_schedule(2, 4, "GPipe"), [1, 2], [2, 4])) == pytest.approx(1 - (12 + 24) / (2 * 27))


@pytest.mark.parametrize(("samples", "micro_batches"), [(1, 8), (7, 8), (16, 5), (16, 16), (17, 4), (8, 1)])
def test_micro_batches_cover_the_batch_and_differ_by_one_sample(samples, micro_batches):
    rows = micro_batch_rows(samples, micro_batches)
    assert len(rows) == min(samples, micro_batches)
    assert [i for part in rows for i in range(part.start, part.stop)] == list(range(samples))
    lengths = {part.stop - part.start for part in rows}
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= 1


def test_drawings():
    one_f_one_b = simulate(make_schedule(2, 3, "1F1B"), [1, 1], [1, 1])
    assert draw(one_f_one_b, 8) == "stage 0  01.a2b.c\nstage 1  .0a1b2c."
    g_pipe = simulate(make_schedule(2, 3, "GPipe"), [1, 1], [1, 1])
    assert draw(g_pipe, 8) == "stage 0  012..abc\nstage 1  .012abc."


def test_short_passes_are_drawn_too():
    order = [Action("F", 0), Action("F", 1), Action("B", 0), Action("B", 1)]
    for long, expected in enumerate(["0000001ab", "0111111ab", "01aaaaaab", "01abbbbbb"]):
        times = [1000 if k == long else 1 for k in range(4)]
        stops = [sum(times[: k + 1]) for k in range(4)]
        line = [Span(action, stop - time, stop) for action, stop, time in zip(order, stops, times, strict=True)]
        assert draw([line], 9) == "stage 0  " + expected
        assert draw([line], 2) == "stage 0  01ab"  # more passes than columns


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 4, "1f1b"), "schedule must be one of '1F1B', 'GPipe', got '1f1b'"),
        ((0, 4, "GPipe"), "stages must be at least 1, got 0"),
        ((2, 0, "GPipe"), "micro_batches must be at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(*arguments)


def test_stages_that_wait_for_each_other():
    crossed = [[Action("F", 0), Action("B", 0), Action("F", 1)], [Action("F", 1), Action("F", 0), Action("B", 0)]]
    with pytest.raises(ValueError, match="wait for each other"):
        simulate(crossed, [1, 1], [1, 1])
