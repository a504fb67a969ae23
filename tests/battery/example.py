"""A network that the checks use, and what they do with it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytagi_ddp import manual_seed, nn
from tests.nn.networks import random_batch, randomise


@dataclass(frozen=True)
class Example:
    """A small network with the layer in it.

    Attributes:
        make: makes a new one.
        tolerance: of results against float64 ones, relative to the largest of an array.
        rounding: likewise, of sums in another order.
    """

    make: Callable[[], nn.Sequential]
    tolerance: float = 2e-5
    rounding: float = 5e-6

    def network(self, seed: int = 1) -> nn.Sequential:
        """With random parameters, the same for the same seed."""
        manual_seed(seed)
        return randomise(self.make(), seed)


Check = Callable[[Example], "str | None"]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Registers a check: it asserts, or returns why it does not apply to an example."""
    CHECKS.append(function)
    return function


def observe(net: nn.Sequential, batch: int, seed: int = 0, between: Callable[[], None] = lambda: None) -> None:
    """Everything of a training step but the step; `between` is called between the passes."""
    x, var_x, y, _ = random_batch(net, batch, seed)
    net(x, var_x)
    between()
    updater = nn.OutputUpdater(net.device)
    updater.update(net.output_z_buffer, y, np.full(y.shape, 0.3), net.input_delta_z_buffer)
    net.backward()


def train(net: nn.Sequential, *batches: int, seed: int = 0) -> nn.Sequential:
    """A step for each batch size."""
    for step, batch in enumerate(batches):
        observe(net, batch, seed + step)
        net.step()
    return net


def rows(batch: tuple, index) -> tuple:
    """Samples of `random_batch`."""
    return tuple(None if array is None else array[index] for array in batch)


def memory(net: nn.Sequential) -> dict[str, np.ndarray]:
    """All that a network keeps from step to step: the arena's memory, by name."""
    return {name: getattr(net.arena, name) for name in ("theta", "buffer", "statistics", "carried")}


def snapshot(net: nn.Sequential) -> dict[str, np.ndarray]:
    return {name: net.kernels.array.to_host(array).copy() for name, array in memory(net).items()}


def assert_same_bits(actual: dict, expected: dict, what: str) -> None:
    """Of every array in `expected`."""
    for name, want in expected.items():
        assert np.array_equal(actual[name], want), f"{what}: {name} differs"


def assert_continue_alike(net: nn.Sequential, other: nn.Sequential, what: str) -> None:
    """Both take the same further steps to the last bit, and predict the same."""
    for one in (net, other):
        train(one, 4, 3, seed=10)
    assert_same_bits(snapshot(net), snapshot(other), f"{what}, two steps later")
    x, var_x, *_ = random_batch(net, 5, seed=5)
    predictions = (dict(zip(("mean", "variance"), one.predict(x, 3, var_x), strict=True)) for one in (net, other))
    assert_same_bits(*predictions, f"{what}, predicting")
