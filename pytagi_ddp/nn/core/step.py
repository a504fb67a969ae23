"""The state of a network's training step, and the results that a change in the network makes invalid."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any


class At(Enum):
    """The state of a training step.

    With `accumulate`, and if a batch is left out, FORWARD follows BACKWARD. `Step.waiting` is then the number of
    samples in the batch sums.
    """

    IDLE = auto()  # nothing waits
    FORWARD = auto()  # a forward pass waits for its backward pass
    BACKWARD = auto()  # batch sums wait for a step
    REDUCED = auto()  # the batch sums of all ranks wait for a step


class Lost(Enum):
    """Parts of the memory of earlier passes that a change can make invalid."""

    BACKWARD = auto()  # backward passes after the forward passes so far
    RECORDINGS = auto()  # recorded passes and steps
    MEMORY = auto()  # the memory of passes, with its content
    STEP_PARTS = auto()  # the parts for threads into which a step is cut
    ONE_MODE = auto()  # the knowledge that all layers are in the mode of the network


class Change(Enum):
    """A change in a network, for its `passes.invalidate`: a description, and what is `lost`."""

    PARAMETERS = "they have other values", (Lost.BACKWARD,)
    MODES = "single layers are in another mode", (Lost.BACKWARD, Lost.RECORDINGS, Lost.ONE_MODE)
    FROZEN = "layers were frozen, or are no longer", (Lost.STEP_PARTS, Lost.RECORDINGS)
    PRIOR = "layers were drawn from another prior", (Lost.STEP_PARTS, Lost.RECORDINGS)
    SETTINGS = "layers compute with other numbers", (Lost.BACKWARD, Lost.RECORDINGS)
    CALLS = "passes call other hooks or other ranks", (Lost.RECORDINGS,)
    OPERATIONS = "passes call other kernels", (Lost.BACKWARD, Lost.RECORDINGS, Lost.MEMORY)
    OUT_OF_MEMORY = "a pass found no memory", (Lost.BACKWARD, Lost.RECORDINGS, Lost.MEMORY)

    def __init__(self, words: str, lost: tuple[Lost, ...]):
        self.lost = lost


class Step:
    """The state of a training step, and the meaning of the batch sums in the arena's `delta`.

    Attributes:
        batch: samples of the last forward pass, maybe 0; None: there is none that a backward pass could follow.
        went_back: whether a backward pass has followed it.
        samples: samples in the batch sums. None during a backward pass, and after one that was interrupted: the sums
            are incomplete then.
        waiting: samples in the batch sums that no step or exchange has used; 0 for none. After a step, the sums stay in
            memory until the next backward pass.
        accumulating: whether a backward pass adds to pending sums instead of replacing them.
        lost: whether an interrupted backward pass was to add to sums, which are incomplete now.
        average: None while the sums are those of this process. Once they are those of all ranks: whether the step
            divides them by the number of ranks that had samples.
    """

    batch: int | None = None
    went_back = False
    samples: int | None = 0
    waiting = 0
    accumulating = False
    lost = False
    average: bool | None = None

    @property
    def at(self) -> At:
        """The state of the step."""
        if self.average is not None:
            return At.REDUCED
        if self.batch and not self.went_back:
            return At.FORWARD
        return At.BACKWARD if self.waiting else At.IDLE

    @property
    def adds(self) -> bool:
        """Whether the next backward pass adds to the present sums."""
        return self.accumulating and self.waiting > 0

    def refuse_waiting(self, call: str) -> None:
        """Raises RuntimeError if sums wait for a step: `call` is not allowed then."""
        if self.waiting or self.average is not None:
            raise RuntimeError(f"{call} between backward() and step(): call step() first, which applies the deltas")

    def begin(self) -> int:
        """To be called before a backward pass. Returns the number of samples in the sums that it will add to.

        Until `passed`, the sums count as incomplete.
        """
        before = self.waiting if self.accumulating else 0
        self.samples, self.waiting, self.lost = None, 0, self.lost or before > 0
        return before

    def passed(self, samples: int) -> None:
        """To be called after a backward pass: the sums are now those of `samples` samples."""
        self.samples = self.waiting = samples
        self.lost = False

    def drop(self) -> None:
        """Drops accumulated sums, and ends the accumulation."""
        self.begin()
        self.accumulating = self.lost = False

    def forget(self) -> None:
        """Drops pending deltas, because their parameters have changed. An accumulation in progress starts again."""
        self.samples = self.waiting = 0
        self.lost = False

    def exchanged(self, average: bool) -> None:
        """To be called after an exchange between ranks: the sums are now those of all ranks, for one step."""
        self.forget()
        self.accumulating, self.average = False, average

    def stepped(self) -> None:
        """To be called with a step."""
        self.waiting, self.accumulating, self.lost, self.average = 0, False, False, None

    def continue_as(self, other: Step) -> None:
        """Takes over the sums of `other`, as a copy of a network does; sums over ranks do not count."""
        self.samples, self.waiting, self.accumulating = other.samples, other.waiting, other.accumulating
        self.lost, self.average = other.lost, None

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "applied" in state:  # of version 0.2.0
            samples = None if state["samples"] < 0 else state["samples"]
            state = {"samples": samples, "waiting": 0 if state["applied"] else samples}
        self.__dict__.update(state)


PendingDeltas = Step  # as pickles of version 0.2.0 call it
