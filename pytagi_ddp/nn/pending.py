"""What waits for a step."""

from dataclasses import dataclass

from pytagi_ddp.nn.stepping import cap_factor

CUT_SHORT = -1  # samples behind sums that a pass has not completed


@dataclass
class PendingDeltas:
    """What the batch sums in the arena's `delta` are of, and what the next step and backward pass do with them.

    Attributes:
        samples: samples behind the sums; `CUT_SHORT` while a pass writes them, and after one that did not come to its
            end: they are of parts of a batch, and of no use.
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
    def counted(self) -> int:
        """Samples of the next step.

        Raises:
            RuntimeError: the sums are of no use.
        """
        if self.samples == CUT_SHORT:
            raise RuntimeError(
                "step() after a backward pass, or an accumulation, that was cut short: its deltas are of parts of a "
                "batch; run forward, the output update and backward again"
            )
        return self.samples

    @property
    def cap(self) -> float:
        """Divisor c of the cap sqrt(s)/c on a step's change, see `cap_factor`; errors as of `counted`."""
        return cap_factor(self.counted)

    def refuse_waiting(self, call: str) -> None:
        """Raises RuntimeError if sums wait for a step, which `call` must not come before."""
        if self.waiting or self.average is not None:
            raise RuntimeError(f"{call} between backward() and step(): call step() first, which applies the deltas")

    def begin(self) -> int:
        """Before a backward pass: nothing waits until it is complete. Returns the samples that it adds to."""
        before = self.samples if self.adds else 0
        self.samples, self.applied = CUT_SHORT, True
        return before

    def passed(self, samples: int) -> None:
        """After a backward pass, which makes it so many samples."""
        self.samples, self.applied = samples, False

    def drop(self) -> None:
        """Forgets what has been accumulated, and that more was to come."""
        self.begin()
        self.accumulating = False

    def forget(self) -> None:
        """What waits is of no parameters that there are; an accumulation under way goes on with what comes next."""
        self.samples, self.applied = 0, True

    def exchanged(self, average: bool) -> None:
        """After an exchange: the sums are those of all ranks, for one step."""
        self.samples, self.applied, self.accumulating, self.average = 0, True, False, average

    def stepped(self) -> None:
        """After a step."""
        self.applied, self.accumulating, self.average = True, False, None
