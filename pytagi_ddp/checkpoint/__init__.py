"""Checkpoints of a training run, and stopping on a signal."""

from pytagi_ddp.checkpoint.content import Checkpoint
from pytagi_ddp.checkpoint.manager import CheckpointManager
from pytagi_ddp.checkpoint.manifest import DamagedCheckpointError
from pytagi_ddp.checkpoint.position import TrainingPosition
from pytagi_ddp.checkpoint.signals import StopOnSignal

__all__ = ["Checkpoint", "CheckpointManager", "DamagedCheckpointError", "StopOnSignal", "TrainingPosition"]
