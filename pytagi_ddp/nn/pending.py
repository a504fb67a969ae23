"""What waits for a step."""

from dataclasses import dataclass

from pytagi_ddp.nn.arena import cap_factor


@dataclass
class PendingDeltas:
    """What the batch sums in the arena's `delta` are of, and what the next step and backward pass do with them.

    Attributes:
        samples: samples behind the sums.
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
        """Whether the next backward pass adds to what is there."""
        return self.accumulating and self.waiting > 0

    @property
    def cap(self) -> float:
        """Divisor c of the cap sqrt(s)/c on a step's change, see `cap_factor`."""
        return cap_factor(self.samples)

    def passed(self, batch: int) -> None:
        """After a backward pass of `batch` samples."""
        self.samples = batch + (self.samples if self.adds else 0)
        self.applied = False

    def exchanged(self, average: bool) -> None:
        """After an exchange: the sums are those of all ranks, for one step."""
        self.samples, self.applied, self.accumulating, self.average = 0, True, False, average

    def stepped(self) -> None:
        """After a step."""
        self.applied, self.accumulating, self.average = True, False, None
