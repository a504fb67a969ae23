"""Schedules of pipelines: the order of the actions of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pytagi_ddp.validate import as_integers

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
    as_integers("a schedule", 1, stages=stages, micro_batches=micro_batches)
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

    Each pass has at least one column. Two equal stages and three micro-batches, with "1F1B":

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
