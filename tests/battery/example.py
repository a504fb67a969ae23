"""`Example`, the small network that a check works on, the list of checks, and helpers that train and compare."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytagi_ddp import manual_seed, nn
from tests.nn.networks import random_batch, randomise


@dataclass(frozen=True)
class Example:
    """How to make a small network that contains the layer, and how exact its results have to be.

    Attributes:
        make: makes a new network.
        tolerance: how far results may be from those in float64, as a share of the largest number of an array.
        rounding: the same for results that differ only by the order of their sums.
    """

    make: Callable[[], nn.Sequential]
    tolerance: float = 2e-5
    rounding: float = 5e-6

    def network(self, seed: int = 1) -> nn.Sequential:
        """A new network with random parameters, which depend on the seed alone."""
        manual_seed(seed)
        return randomise(self.make(), seed)


Check = Callable[[Example], "str | None"]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Decorates a check, to add it to `CHECKS`. A check returns None, or the reason why it does not apply."""
    CHECKS.append(function)
    return function


def observe(net: nn.Sequential, batch: int, seed: int = 0, between: Callable[[], None] = lambda: None) -> None:
    """Forward and backward pass of a random batch, without the step; `between` is called between the two passes."""
    x, var_x, y, _ = random_batch(net, batch, seed)
    net(x, var_x)
    between()
    updater = nn.OutputUpdater(net.device)
    updater.update(net.output_z_buffer, y, np.full(y.shape, 0.3), net.input_delta_z_buffer)
    net.backward()


def train(net: nn.Sequential, *batches: int, seed: int = 0) -> nn.Sequential:
    """Takes a training step with a random batch of each of these sizes; returns the network."""
    for step, batch in enumerate(batches):
        observe(net, batch, seed + step)
        net.step()
    return net


def rows(batch: tuple, index) -> tuple:
    """Some samples of what `random_batch` returns."""
    return tuple(None if array is None else array[index] for array in batch)


def memory(net: nn.Sequential) -> dict[str, np.ndarray]:
    """The arrays with all that a network keeps from step to step: parameters, deltas, and state that is not learnt."""
    return {name: getattr(net.arena, name) for name in ("theta", "buffer", "statistics", "carried")}


def snapshot(net: nn.Sequential) -> dict[str, np.ndarray]:
    """A copy of `memory`, on the host."""
    return {name: net.kernels.array.to_host(array).copy() for name, array in memory(net).items()}


def assert_same_bits(actual: dict, expected: dict, what: str) -> None:
    """Asserts that every array in `expected` has the same bits in `actual`; `what` begins the message."""
    for name, want in expected.items():
        assert np.array_equal(actual[name], want), f"{what}: {name} differs"


def assert_continue_alike(net: nn.Sequential, other: nn.Sequential, what: str) -> None:
    """Trains both with the same batches, and asserts that they have the same bits then, and predict the same."""
    for one in (net, other):
        train(one, 4, 3, seed=10)
    assert_same_bits(snapshot(net), snapshot(other), f"{what}, two steps later")
    x, var_x, *_ = random_batch(net, 5, seed=5)
    predictions = (dict(zip(("mean", "variance"), one.predict(x, 3, var_x), strict=True)) for one in (net, other))
    assert_same_bits(*predictions, f"{what}, predicting")
