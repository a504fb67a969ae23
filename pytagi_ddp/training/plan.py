"""What a training chooses before its first step: the size of a batch, and how evidence is counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.nn import EvidenceSchedule, Sequential, Shape
from pytagi_ddp.training.advice import FEW
from pytagi_ddp.training.batches import counts_samples, length
from pytagi_ddp.warn import warn

# How often a sample counts. For classes, a cold posterior makes the fewest errors. For numbers with known noise, 8
# makes error bars too small, and with 2 wide networks learn little from few samples: `benchmarks.quality counts`.
COUNT_OF_CLASSES, COUNT_OF_NUMBERS = 8.0, 4.0
BATCH, PARAMETERS_OF_A_SAMPLE = 32, 32
LEAST_IMAGES = 2  # in a step, if pixels are observed: the cap of one sample is too large for the evidence of its pixels


def default_batch_size(of_classes: bool, parameters: int, shares: int, least: int = 1) -> int:
    """`BATCH`, and fewer for numbers and a small network: a step would move its parameters much too far.

    Args:
        parameters: for each output. shares: number of shares of the data. least: samples of a step, of all shares.
    """
    most = BATCH if of_classes else min(BATCH, parameters // (PARAMETERS_OF_A_SAMPLE * shares))
    return max(1, most, -(-least // shares))


def least_samples(outputs: Shape) -> int:
    """The least samples of a step: `LEAST_IMAGES` if each sample is observed at several pixels, otherwise 1."""
    height, width = outputs.pixels or (outputs.height, outputs.width)
    return LEAST_IMAGES if height * width > 1 else 1


def default_count(of_classes: bool, parameters: int, epochs: int) -> float:
    """How often each sample counts; parameters: for each output."""
    count = COUNT_OF_CLASSES if of_classes else COUNT_OF_NUMBERS
    if parameters < PARAMETERS_OF_A_SAMPLE:  # a step of so much evidence would be too far
        return max(1.0, min(count, epochs / 4))
    return count


def steps_per_epoch(train: Iterable[Any], ranks: Communicator) -> int:
    """The number of steps of an epoch, the largest one of all ranks; collective.

    Raises:
        ValueError: it is unknown, or 0.
    """
    every = [length(train)]
    if not counts_samples(train):  # ranks may have different numbers of batches
        every = ranks.all_gather_object(every[0], "fit")
    if None in every:
        raise ValueError(
            "the training data have no length, and an EvidenceSchedule needs the steps of an epoch: give "
            'evidence={"steps_per_epoch": ...}, or evidence=None for plain TAGI'
        )
    steps = max(count for count in every if count is not None)
    if not steps:
        raise ValueError("the training data hold no batch")
    return steps


def plan_evidence(network: Sequential, steps: int, epochs: int, count: float, given: Mapping[str, Any]) -> None:
    """Makes the schedule of a network, or adds these epochs to the schedule that it has.

    Args:
        steps: of an epoch. count: how often samples count in a new schedule, unless it is `given`.
        given: options of the schedule.
    """
    schedule = network.schedule
    if schedule is None or schedule.epochs is None:
        EvidenceSchedule(network, steps, epochs, **{"count": count, **given})
        return
    if schedule.steps and (2 * steps < (schedule.steps_per_epoch or 0) or steps == epochs == 1):
        warn(FEW)
    schedule.steps_per_epoch = steps
    schedule.epochs = -(-schedule.steps // steps) + epochs  # completed epochs, and these
    for name, value in given.items():
        setattr(schedule, name, value)
