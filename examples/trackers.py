"""Programs that record a run in addition to its log: TensorBoard, Weights & Biases, or a class of your own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Is told all that the log is: `RunLog` calls `write` of each of its trackers with every line."""

    def write(self, event: str, **values: Any) -> None:
        """Takes an event: "start" with the options, "epoch" with its number and results, or "stop"."""


class TensorBoard:
    """Results of epochs as scalars, options as text, in files beside the log: `tensorboard --logdir runs`.

    Raises:
        RuntimeError: neither tensorboardX nor torch.utils.tensorboard can be loaded.
    """

    def __init__(self, folder: Path):
        self._writer = _load("tensorboardX", "torch.utils.tensorboard").SummaryWriter(str(folder))

    def write(self, event: str, **values: Any) -> None:
        if event == "epoch":
            for name, value in numbers(values).items():
                self._writer.add_scalar(name, value, values["epoch"])
        else:
            self._writer.add_text(event, ", ".join(f"{name}={value}" for name, value in values.items()))
        self._writer.flush()


class WeightsAndBiases:
    """A run of Weights & Biases, as its environment variables say ($WANDB_PROJECT, $WANDB_MODE, ...).

    Raises:
        RuntimeError: wandb cannot be loaded.
    """

    def __init__(self, folder: Path):
        self._run = _load("wandb").init(dir=str(folder), name=folder.name)

    def write(self, event: str, **values: Any) -> None:
        if event == "epoch":
            self._run.log(numbers(values), step=values["epoch"])
        elif event == "start":
            self._run.config.update(values, allow_val_change=True)
        else:
            self._run.finish()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """The results among the values of an epoch."""
    return {name: value for name, value in values.items() if isinstance(value, int | float) and name != "epoch"}


def _load(*modules: str) -> Any:
    for module in modules:
        try:
            return importlib.import_module(module)
        except ImportError:
            continue
    raise RuntimeError(f"--track needs {' or '.join(modules)}, which is not installed: pip install {modules[0]}")
