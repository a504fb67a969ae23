"""When the jobs write checkpoints, and how they resume from one."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from pytagi_ddp.checkpoint import CheckpointManager, TrainingPosition
from pytagi_ddp.data import BatchLoader, FolderLoader, ImageDataset, ImageFolder
from pytagi_ddp.nn import DDPSequential, FSDPSequential, PipelineSequential, PosteriorAverage

Net = DDPSequential | FSDPSequential | PipelineSequential
AVERAGE = "average.safetensors"

# Options that the trajectory depends on, beside data and global batch. Architecture and ranks are compared anyway.
OPTIONS = ("seed", "augment", "average")
OF_NUMBERS = ("sigma_v", "sigma_v_min", "sigma_v_decay")  # of heads that observe labels as numbers


def run_settings(args: argparse.Namespace, train_set: ImageDataset | ImageFolder, shares: int) -> dict:
    """Settings that must be the same to resume exactly. Only the global batch counts, not how ranks share it."""
    observes_numbers = args.head != "categorical"  # whose schedule is compared by the checkpoint
    options = (*OPTIONS, *OF_NUMBERS) if observes_numbers else OPTIONS
    settings = {name.replace("_", " "): getattr(args, name) for name in options}
    if observes_numbers and args.forget > 1:  # left out at its default, as earlier versions did not have it
        settings["forget"] = args.forget
    if args.parallel == "pipeline":  # replicas and shards take the same steps, but micro-batches take others
        settings["parallel"] = args.parallel
    data = f"{len(train_set)} images of {train_set.name}"
    return {"global batch": args.batch_size * shares, "data": data, **settings}


def resume(
    args: argparse.Namespace, net: Net, settings: dict, average: PosteriorAverage | None = None
) -> tuple[TrainingPosition, int]:
    """Loads the checkpoint that `args` ask for, and its average of posteriors. All ranks call it.

    Returns:
        (position in the training, number of batches of that epoch that are done, in batches of the present size).

    Raises:
        OSError, ValueError: as `CheckpointManager.load`; or all epochs of the checkpoint are done; or the folder for
            new checkpoints contains checkpoints of another training.
    """
    if not args.resume:
        _refuse_others(args.checkpoint_dir)
        return TrainingPosition(seed=args.seed), 0
    path = args.checkpoint_dir if args.resume is True else args.resume
    checkpoint = CheckpointManager(path).load(net, path, settings, args.allow_changes, average=average)
    if args.checkpoint_dir and Path(args.checkpoint_dir).resolve() != checkpoint.path.parent.resolve():
        _refuse_others(args.checkpoint_dir)
    position = checkpoint.position
    if position.epoch >= args.epochs:
        raise ValueError(f"{path} was written after {position.epoch} epochs: to go on, give a larger --epochs")
    now = settings["global batch"]
    images = position.batch * checkpoint.settings.get("global batch", now)
    return position, images // now  # rounded down, so that no image is left out


def _refuse_others(folder: str | None) -> None:
    """Raises ValueError if a folder that is meant for the checkpoints of a new training already contains some."""
    if folder and CheckpointManager(folder).latest(fall_back=True):
        raise ValueError(
            f"{folder} has checkpoints of another training, which this one would delete by and by: continue that one "
            "with --resume, or give another --checkpoint-dir"
        )


class Checkpoints:
    """Counts steps, and writes checkpoints as the options say.

    Args:
        args: the options.
        net: the network.
        loader: its training batches.
        settings: result of `run_settings`.
        step: number of steps that the network has made already.
        average: average of its posteriors, which is saved with it.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        net: Net,
        loader: BatchLoader | FolderLoader,
        settings: dict,
        step: int,
        average: PosteriorAverage | None = None,
    ):
        self._manager = CheckpointManager(args.checkpoint_dir, args.keep_last or 3) if args.checkpoint_dir else None
        self._every, self._on_signal = args.checkpoint_every, args.checkpoint_on_signal
        self._net, self._loader, self._settings, self._average = net, loader, settings, average
        self.step = step

    def after_step(self) -> bool:
        """To be called after each step; True, on all ranks alike, if the training is to stop now."""
        self.step += 1
        position = TrainingPosition.of(self._loader, self.step)
        stop = self._on_signal and self._net.stop_requested
        # The last step of an epoch is left to after_epoch.
        due = self._every and self.step % self._every == 0 and position.batch < len(self._loader)
        if stop or due:
            self._save(position)
        return stop

    def save_average(self) -> None:
        """Writes a file for predictions; call it while the network has the averaged parameters and their statistics."""
        if self._manager:
            self._net.save(self._manager.folder / AVERAGE)

    def after_epoch(self) -> None:
        """To be called when an epoch has been evaluated."""
        position = TrainingPosition.of(self._loader, self.step)
        self._save(replace(position, epoch=position.epoch + 1, batch=0))

    def _save(self, position: TrainingPosition) -> None:
        if self._manager:
            self._manager.save(self._net, position, self._settings, average=self._average)
