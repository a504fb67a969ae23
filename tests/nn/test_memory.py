"""A training step allocates nothing after the first one, but for what it hands out.

Hidden layers are much larger here than the output, of which results, and a Jacobian of ones where it has no activation,
are fresh arrays every time.
"""

import copy
import gc
import tracemalloc
import weakref

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.nn.networks import randomise

pytestmark = pytest.mark.slow  # it traces every allocation of its networks' steps

SMALLEST = 4096  # bytes; below are views, argument tuples and the like, which the interpreter recycles
BATCH = 32


def conv(c_in, c_out, **options):
    return nn.Conv2d(c_in, c_out, 3, padding=1, **options)


NETWORKS = {
    "dense": lambda: [nn.Linear(40, 60), nn.MixtureReLU(), nn.LayerNorm([60]), nn.Linear(60, 10), nn.Remax()],
    "convolution, norm, pooling": lambda: [
        conv(3, 8, in_width=8, in_height=8),
        nn.MixtureReLU(),
        nn.BatchNorm2d(8),
        nn.AvgPool2d(2, 2),
        conv(8, 8),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Linear(32, 10),
    ],
    "residual blocks": lambda: [
        conv(3, 8, in_width=8, in_height=8),
        nn.MixtureReLU(),
        nn.ResNetBlock(nn.LayerBlock(conv(8, 8), nn.MixtureReLU(), nn.BatchNorm2d(8))),
        nn.ResNetBlock(
            nn.LayerBlock(nn.Conv2d(8, 16, 2, stride=2), nn.Tanh()),
            nn.LayerBlock(nn.Conv2d(8, 16, 2, stride=2), nn.BatchNorm2d(16)),
        ),
        nn.Linear(256, 10),
    ],
}


class Trainer:
    def __init__(self, layers, input_state_update: bool):
        self.net = randomise(nn.Sequential(*layers))
        self.net.input_state_update = input_state_update
        self.updater = nn.OutputUpdater(self.net.device)
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(BATCH, self.net.in_shape.size)).astype(np.float32)
        self.y = rng.normal(size=(BATCH, 10)).astype(np.float32)
        self.noise = np.full_like(self.y, 0.5)

    def step(self, batch: int = BATCH):
        self.net(self.x[:batch])
        self.updater.update(self.net.output_z_buffer, self.y[:batch], self.noise[:batch], self.net.input_delta_z_buffer)
        self.net.backward()
        self.net.step()


def large_allocations(action) -> list[str]:
    """Blocks of at least SMALLEST bytes that `action` allocates, freed again or not, by the line that asked."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        action()
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    return [str(d) for d in after.compare_to(before, "lineno") if d.size_diff >= SMALLEST]


def peak_bytes(action) -> int:
    """The most that `action` held at once beyond what there was."""
    gc.collect()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        action()
        return tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("input_state_update", [False, True])
@pytest.mark.parametrize("layers", NETWORKS.values(), ids=NETWORKS)
def test_a_steady_step(layers, input_state_update):
    trainer = Trainer(layers(), input_state_update)
    for _ in range(3):
        trainer.step()
    assert large_allocations(lambda: [trainer.step() for _ in range(3)]) == []
    assert peak_bytes(trainer.step) < 4 * trainer.y.nbytes + 4 * SMALLEST


@pytest.mark.parametrize("layers", NETWORKS.values(), ids=NETWORKS)
def test_smaller_batches_use_the_same_memory(layers):
    trainer = Trainer(layers(), False)
    trainer.step()

    def steps():
        for batch in (BATCH // 2, 2, BATCH, 7):
            trainer.step(batch)

    for _ in range(3):  # every size is walked through, recorded, and replayed
        steps()
    assert large_allocations(steps) == []


@pytest.mark.parametrize("training", [True, False])
def test_what_more_layers_take(training):
    """Means and Jacobians, to be read in the backward pass: the rest is reused, as everything is in evaluation."""

    def taken(depth: int) -> tuple[int, int]:
        """Images of 8 channels that layers keep, and those in memory that goes round."""
        units = [unit for _ in range(depth) for unit in (nn.MixtureReLU(), nn.BatchNorm2d(8), conv(8, 8))]
        trainer = Trainer([conv(3, 8, in_width=8, in_height=8), *units, nn.Linear(512, 10)], False)
        for _ in range(3):
            trainer.step() if training else trainer.net.predict(trainer.x)
        kept = sum(trainer.net.passes.buffer_bytes(leaf) for _, leaf in trainer.net.named_leaves())
        return tuple(size // (4 * BATCH * 512) for size in (kept, trainer.net.passes.memory.nbytes))

    (few, round_), (many, same) = taken(2), taken(5)
    assert many - few == (3 * 3 if training else 0) and round_ == same == (4 if training else 5)


@pytest.mark.parametrize("layers", NETWORKS.values(), ids=NETWORKS)
def test_a_network_is_freed_with_its_last_reference(layers):
    """At once: the garbage collector counts objects, and a few of these hold gigabytes."""
    gc.collect()
    gc.disable()
    try:
        trainer = Trainer(layers(), False)
        for _ in range(4):  # walked through, recorded, and replayed
            trainer.step()
        copied = copy.deepcopy(trainer.net)
        copied.update_bn([trainer.x])
        freed = [weakref.ref(net.arena.theta) for net in (trainer.net, copied)]
        del trainer, copied
        assert [theta() for theta in freed] == [None, None]
    finally:
        gc.enable()
