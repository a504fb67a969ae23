"""Rank programs of `tests.mpi.test_checkpoint`: trainings that are stopped, and checkpoints that cannot be written."""

import hashlib
import resource
import time

import numpy as np

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.checkpoint import CheckpointManager, StopOnSignal, TrainingPosition
from pytagi_ddp.data import BatchLoader, ImageDataset, random_crop_flip
from pytagi_ddp.nn import DDPSequential, Linear, Sequential
from tests.learning import backpropagate
from tests.mpi.rank import ready, say

# 26 images in global batches of 6: 5 steps an epoch, the last one of 2 images (of 3 ranks, one has none).
IMAGES, EPOCHS, GLOBAL = 26, 4, 6


def train(folder: str, stop_after: int = 0, wait_for_signals: bool = False) -> None:
    """Trains from the newest checkpoint in a folder; says rank, steps, the signal that came, and the parameters."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (IMAGES, 2, 6, 6), np.uint8), rng.integers(0, 4, IMAGES)
    data = ImageDataset(pixels, labels, tuple("abcd"), "test")
    manual_seed(3)
    block = nn.LayerBlock(nn.Conv2d(3, 3, 3, padding=1), nn.MixtureReLU(), nn.BatchNorm2d(3))
    net = DDPSequential(
        Sequential(
            nn.Conv2d(2, 3, 3, padding=1, in_width=6, in_height=6),
            nn.MixtureReLU(),
            nn.BatchNorm2d(3),
            nn.ResNetBlock(block),
            Linear(108, 4),
        ),
        average=False,
    )
    settings = {"global batch": GLOBAL}
    checkpoints = CheckpointManager(folder, keep_last=2)
    loader = BatchLoader(data, GLOBAL // net.world_size, net.rank, net.world_size, seed=5, transform=random_crop_flip)
    found = checkpoints.load(net, settings=settings)
    position = found.position if found else TrainingPosition(seed=5)
    step, stopped = position.step, False
    with StopOnSignal(net) as stop, loader:
        for epoch in range(position.epoch, EPOCHS):
            loader.set_epoch(epoch, position.batch if epoch == position.epoch else 0)
            for x, labels in loader:
                if len(labels):
                    backpropagate(net, x, np.eye(4, dtype=np.float32)[labels])
                net.step()
                step += 1
                if wait_for_signals and step > 1:
                    ready(net.rank)
                    time.sleep(0.02)
                if net.stop_requested or step == stop_after:
                    checkpoints.save(net, TrainingPosition.of(loader, step), settings)
                    stopped = True
                    break
            if stopped:
                break
    arena = net.model.arena
    bits = hashlib.sha256(arena.theta.tobytes() + arena.statistics.tobytes()).hexdigest()
    say(net.rank, step, stop.received and stop.received.name, bits)


def stop_slowly() -> None:
    """Takes four seconds for what follows a request to stop."""
    net = DDPSequential(Sequential(Linear(2, 2)))
    with StopOnSignal(net):
        ready(net.rank)
        while not net.stop_requested:
            net.step()
        time.sleep(4)
        say("written")


def network_and_checkpoints(folder: str) -> tuple[DDPSequential, CheckpointManager]:
    """A network whose parameters are the rank, and checkpoints in a folder that only rank 0 has."""
    net = DDPSequential(Sequential(Linear(2, 2)))
    net.model.arena.theta[:] = net.rank
    return net, CheckpointManager(folder if net.rank == 0 else "/nonexistent")


def save_and_load(folder: str) -> None:
    net, checkpoints = network_and_checkpoints(folder)
    assert checkpoints.load(net) is None
    path = checkpoints.save(net, TrainingPosition(step=4))
    assert (path is None) == (net.rank > 0)
    net.model.arena.theta[:] = 9
    found = checkpoints.load(net)
    assert (found.position.step, found.world_size) == (4, 3)
    assert set(net.model.arena.theta.ravel().tolist()) == {0.0}
    try:
        checkpoints.load(net, "none.safetensors")
    except FileNotFoundError as error:
        say(error)
    net.barrier()


def save_with_a_fault(folder: str, fault: str) -> None:
    """Saves one checkpoint; then comes the fault."""
    net = DDPSequential(Sequential(Linear(2, 2)))
    checkpoints = CheckpointManager(folder)
    checkpoints.save(net, TrainingPosition(step=1))
    if fault == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    else:  # no folder
        checkpoints = CheckpointManager(f"{folder}/manifest.json")
    big = DDPSequential(Sequential(Linear(300, 300)))
    for step in (2, 3):
        checkpoints.save(big, TrainingPosition(step=step))
        big.step()
    say("reached the end")


def save_for_ever(folder: str) -> None:
    """Saves checkpoint after checkpoint; the parameters are its number."""
    net = DDPSequential(Sequential(Linear(600, 400)))
    checkpoints = CheckpointManager(folder, keep_last=1)
    for step in range(1, 100_000):
        net.model.arena.theta[:] = step
        checkpoints.save(net, TrainingPosition(step=step))
        net.step()
        if step == 3:
            ready(net.rank)
