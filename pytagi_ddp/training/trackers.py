"""Programs that record a training in addition to its log."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, ClassVar


class Tracker:
    """Gets all events of the log. A subclass may send them to any program; `Log(track=...)` takes an instance of it.

    Attributes:
        modules: one of these must be installed.
    """

    modules: ClassVar[tuple[str, ...]] = ()

    def open(self, folder: Path) -> None:
        """Called once, before the first event, with the folder of the log."""

    def write(self, event: str, **values: Any) -> None:
        """Takes an event: "start" with the settings, "epoch" with its number and results, or "stop"."""

    def close(self) -> None:
        """Called at the end of the training, also after an error."""


class TensorBoard(Tracker):
    """Results of epochs as scalars, settings as text, in files next to the log: `tensorboard --logdir runs`."""

    modules = ("tensorboardX", "torch.utils.tensorboard")

    def open(self, folder: Path) -> None:
        self._writer = load(self.modules).SummaryWriter(str(folder))

    def write(self, event: str, **values: Any) -> None:
        if event == "epoch":
            for name, value in numbers(values).items():
                self._writer.add_scalar(name, value, values["epoch"])
        else:
            self._writer.add_text(event, ", ".join(f"{name}={value}" for name, value in values.items()))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases, set up by its environment variables ($WANDB_PROJECT, $WANDB_MODE, ...)."""

    modules = ("wandb",)

    def open(self, folder: Path) -> None:
        self._run = load(self.modules).init(dir=str(folder), name=folder.name)

    def write(self, event: str, **values: Any) -> None:
        if event == "epoch":
            self._run.log(numbers(values), step=values["epoch"])
        elif event == "start":
            self._run.config.update(values, allow_val_change=True)

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """A run of MLflow, set up by its environment variables ($MLFLOW_TRACKING_URI, $MLFLOW_EXPERIMENT_NAME, ...)."""

    modules = ("mlflow",)

    def open(self, folder: Path) -> None:
        self._mlflow = load(self.modules)
        self._mlflow.start_run(run_name=folder.name)

    def write(self, event: str, **values: Any) -> None:
        if event == "epoch":
            self._mlflow.log_metrics(numbers(values), step=values["epoch"])
        elif event == "start":
            self._mlflow.log_params({name: str(value)[:500] for name, value in values.items()})

    def close(self) -> None:
        self._mlflow.end_run()


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def tracker_of(name: str | Tracker) -> Tracker:
    """The tracker of this name, or the one that was given.

    Raises:
        ValueError: an unknown name. ImportError: its program is not installed.
    """
    if isinstance(name, Tracker):
        return name
    if name not in TRACKERS:
        raise ValueError(f"track takes {', '.join(map(repr, TRACKERS))} or a Tracker, got {name!r}")
    kind = TRACKERS[name]
    if not any(map(is_installed, kind.modules)):
        known = " or ".join(kind.modules)
        raise ImportError(f"to track by {name} needs {known}, which is not installed: pip install {kind.modules[0]}")
    return kind()


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """The results among the values of an epoch."""
    return {name: value for name, value in values.items() if isinstance(value, int | float) and name != "epoch"}


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # the package around it is missing
        return False


def load(modules: tuple[str, ...]) -> Any:
    """The first of these modules that is installed."""
    return importlib.import_module(next(filter(is_installed, modules)))
