"""The position of a network in its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pytagi_ddp.validate import as_integers


@dataclass(frozen=True)
class TrainingPosition:
    """The numbers that determine the order of samples, the augmentation and any schedule, on every rank.

    Attributes:
        epoch: the present epoch, counted from 0.
        batch: number of batches of this epoch that the network has learnt.
        step: number of steps since the beginning, in all epochs.
        seed: seed of order and augmentation.
        samples: number of samples of this epoch, of all ranks, that the network has learnt. With another number of
            ranks or another batch size, continue by `loader.set_epoch(epoch, samples=...)`. None: unknown.

    Raises:
        TypeError: not an integer. ValueError: a negative number, or (except the seed) one above 2^53.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    seed: int = 0
    samples: int | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "samples" and value is None:
                continue
            most = None if name == "seed" else 1 << 53
            (number,) = as_integers("TrainingPosition", 0, most, **{name: value})
            object.__setattr__(self, name, number)  # JSON does not take NumPy's integers

    @classmethod
    def of(cls, loader: Any, step: int) -> TrainingPosition:
        """The position after `step` steps, the last of them with the last batch of `loader`.

        Args:
            loader: a `BatchLoader` or `FolderLoader`, or an object with the same `state_dict`.
            step: as above.

        Raises:
            TypeError: `loader` has no position. Count its batches, and make the position yourself.
        """
        state = loader.state_dict() if hasattr(loader, "state_dict") else None
        if not isinstance(state, Mapping) or not {"epoch", "batch", "seed"} <= state.keys():
            raise TypeError(
                f"{type(loader).__name__} does not say where it is, as BatchLoader does; count its batches and make "
                "the position yourself: TrainingPosition(epoch, batch, step, seed)"
            )
        return cls(state["epoch"], state["batch"], step, state["seed"], state.get("samples"))
