"""Batch sums that wait for a step."""

from dataclasses import dataclass

CUT_SHORT = -1  # stands for the number of samples while a backward pass has not completed the sums


@dataclass
class PendingDeltas:
    """What the batch sums in the arena's `delta` stand for, and what the next step and backward pass do with them.

    Attributes:
        samples: number of samples in the sums; `CUT_SHORT` while a pass writes them, and after a pass that was
            interrupted: then the sums cover parts of a batch, and cannot be used.
        applied: whether a step has applied them. They stay until the next backward pass.
        accumulating: whether a backward pass adds to sums that wait, instead of replacing them.
        average: None while the sums are those of this process; once they are those of all ranks, whether the step
            divides them by the ranks that had samples.
    """

    samples: int = 0
    applied: bool = True
    accumulating: bool = False
    average: bool | None = None

    @property
    def waiting(self) -> int:
        """Samples of this process that no step has applied and no exchange has taken; 0 for none."""
        return 0 if self.applied else self.samples

    @property
    def adds(self) -> bool:
        """Whether the next backward pass adds to the present sums."""
        return self.accumulating and self.waiting > 0

    @property
    def counted(self) -> int:
        """Samples of the next step.

        Raises:
            RuntimeError: the pass that made the sums was interrupted.
        """
        if self.samples == CUT_SHORT:
            raise RuntimeError(
                "step() after a backward pass, or an accumulation, that was cut short: its deltas are of parts of a "
                "batch; run forward, the output update and backward again"
            )
        return self.samples

    def refuse_waiting(self, call: str) -> None:
        """Raises RuntimeError if sums wait for a step, before which `call` is not allowed."""
        if self.waiting or self.average is not None:
            raise RuntimeError(f"{call} between backward() and step(): call step() first, which applies the deltas")

    def begin(self) -> int:
        """To be called before a backward pass. Returns the number of samples whose sums it will add to.

        Until `passed`, the sums count as cut short.
        """
        before = self.samples if self.adds else 0
        self.samples, self.applied = CUT_SHORT, True
        return before

    def passed(self, samples: int) -> None:
        """To be called after a backward pass: the sums are now those of `samples` samples."""
        self.samples, self.applied = samples, False

    def drop(self) -> None:
        """Drops what has been accumulated, and ends the accumulation."""
        self.begin()
        self.accumulating = False

    def forget(self) -> None:
        """Drops what waits, as the parameters that it belongs to are gone. An accumulation under way starts anew."""
        self.samples, self.applied = 0, True

    def exchanged(self, average: bool) -> None:
        """To be called after an exchange between ranks: the sums are now those of all ranks, for one step."""
        self.samples, self.applied, self.accumulating, self.average = 0, True, False, average

    def stepped(self) -> None:
        """To be called with a step."""
        self.applied, self.accumulating, self.average = True, False, None
