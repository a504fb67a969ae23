"""Where in a training run a network is."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pytagi_ddp.data.loader import BatchLoader


@dataclass(frozen=True)
class TrainingPosition:
    """What the order of samples, the augmentation and any schedule follow from, on every rank.

    Attributes:
        epoch: epoch under way, counted from 0.
        batch: batches of it that are behind the network.
        step: steps since the beginning, all epochs together.
        seed: of order and augmentation.

    Raises:
        TypeError: something else than an integer. ValueError: a negative number.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an integer, got {value!r:.50}")
            if value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}")

    @classmethod
    def of(cls, loader: BatchLoader, step: int) -> TrainingPosition:
        """The position after `step` steps, the last of them on the batch that `loader` gave last."""
        state = loader.state_dict()
        return cls(state["epoch"], state["batch"], step, state["seed"])
