"""Timelines of schedules."""

from collections.abc import Sequence

from pytagi_ddp.distributed.pipeline.schedule import Action, Span, Timeline


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
