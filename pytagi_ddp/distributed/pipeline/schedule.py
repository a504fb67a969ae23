"""Schedules of pipelines: the order of the actions of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

SCHEDULES = ("1F1B", "GPipe")
Kind = Literal["F", "B"]


class Action(NamedTuple):
    """A forward pass ("F") or backward pass ("B") of a micro-batch in a stage."""

    kind: Kind
    micro_batch: int


class Span(NamedTuple):
    """An action and its time, from start to stop."""

    action: Action
    start: float
    stop: float


Timeline = list[Span]  # of one stage


def micro_batch_rows(samples: int, micro_batches: int) -> list[slice]:
    """The rows of each micro-batch; their sizes differ by at most one, and none is empty."""
    count = min(samples, micro_batches)
    return [slice(samples * k // count, samples * (k + 1) // count) for k in range(count)]


def make_schedule(stages: int, micro_batches: int, name: str) -> list[list[Action]]:
    """The actions of each stage, in their order; backward passes are in ascending order everywhere.

    "GPipe": all forward passes, then all backward passes. "1F1B": stage s of S begins with S - s - 1 forward passes;
    then forward and backward passes alternate, so that at most S - s forward passes wait for their backward passes.

    Raises:
        ValueError: an unknown name, or less than one stage or micro-batch.

    Source: Huang et al. (2019), GPipe; Narayanan et al. (2019), PipeDream.
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(map(repr, SCHEDULES))}, got {name!r}")
    if stages < 1 or micro_batches < 1:
        raise ValueError(f"a schedule needs at least 1 stage and 1 micro-batch, got {stages} and {micro_batches}")
    return [_of_stage(frames_in_flight(stages, s, micro_batches, name), micro_batches) for s in range(stages)]


def forward_actions(micro_batches: int) -> list[Action]:
    """The actions of every stage without backward passes."""
    return [Action("F", m) for m in range(micro_batches)]


def frames_in_flight(stages: int, stage: int, micro_batches: int, name: str) -> int:
    """The largest number of forward passes of a stage that wait for their backward passes."""
    return micro_batches if name == "GPipe" else min(micro_batches, stages - stage)


def _of_stage(in_flight: int, micro_batches: int) -> list[Action]:
    """Forward passes until `in_flight` of them wait; then backward and forward passes alternate."""
    actions = [Action("F", m) for m in range(in_flight)]
    for m in range(micro_batches):
        actions.append(Action("B", m))
        if m + in_flight < micro_batches:
            actions.append(Action("F", m + in_flight))
    return actions


def simulate(
    schedule: Sequence[Sequence[Action]], forward: Sequence[float], backward: Sequence[float]
) -> list[Timeline]:
    """The timeline of each stage, if messages take no time.

    Args:
        schedule: a result of `make_schedule`. forward, backward: time of a micro-batch in each stage.
    """
    ends: list[dict[Action, float]] = [{} for _ in schedule]
    timelines: list[Timeline] = [[] for _ in schedule]
    clock = [0.0] * len(schedule)
    while any(len(done) < len(actions) for done, actions in zip(timelines, schedule, strict=True)):
        before = sum(map(len, timelines))
        for s, actions in enumerate(schedule):
            while len(timelines[s]) < len(actions):
                action = actions[len(timelines[s])]
                source = s - 1 if action.kind == "F" else s + 1
                if 0 <= source < len(schedule) and action not in ends[source]:
                    break
                arrival = ends[source][action] if 0 <= source < len(schedule) else 0.0
                start = max(clock[s], arrival)
                clock[s] = ends[s][action] = start + (forward if action.kind == "F" else backward)[s]
                timelines[s].append(Span(action, start, clock[s]))
        if sum(map(len, timelines)) == before:
            raise ValueError("the stages of this schedule wait for each other")
    return timelines


def bubble(timelines: Sequence[Timeline]) -> float:
    """The idle share of the time of all stages, from the first start to the last stop.

    For S equal stages and M micro-batches it is (S - 1) / (M + S - 1), in both schedules.
    """
    spans = [span for timeline in timelines for span in timeline]
    whole = max(span.stop for span in spans) - min(span.start for span in spans)
    busy = sum(span.stop - span.start for span in spans)
    return 1 - busy / (whole * len(timelines))


def draw(timelines: Sequence[Timeline], width: int = 72) -> str:
    """A line for each stage: a digit is the forward pass of a micro-batch, a letter a backward pass, a dot idle time.

    Each pass has at least one column.

    >>> print(draw(simulate(make_schedule(2, 3, "1F1B"), [1, 1], [1, 1]), 8))
    stage 0  01.a2b.c
    stage 1  .0a1b2c.
    """
    spans = [span for timeline in timelines for span in timeline]
    first = min(span.start for span in spans)
    scale = width / (max(span.stop for span in spans) - first)
    lines = []
    for stage, timeline in enumerate(timelines):
        line, end = ["."] * width, 0
        for done, ((kind, m), start, stop) in enumerate(timeline, 1):
            latest = width - (len(timeline) - done)  # its last possible end, so that each of the others has a column
            begin = max(end, min(latest - 1, round((start - first) * scale)))
            end = max(begin + 1, min(latest, round((stop - first) * scale)))
            line[begin:end] = [str(m % 10) if kind == "F" else chr(ord("a") + m % 26)] * (end - begin)
        lines.append(f"stage {stage}  {''.join(line)}")
    return "\n".join(lines)
