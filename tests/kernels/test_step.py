"""The parameter step of the CPU, whose segments are shared by threads."""

import numpy as np
import pytest

from pytagi_ddp.kernels import cpu as kernels
from pytagi_ddp.kernels.cpu.runtime import threads
from pytagi_ddp.kernels.tensors import Tensor

SEGMENTS, SIZE = 5, 20_000  # together enough for several threads


@pytest.fixture(params=[1, 2, 3])
def num_threads(request):
    before = threads.get_threads()
    threads.set_threads(request.param)
    yield
    threads.set_threads(before)


def stepped(scale: float, infinite: bool) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Parameters and counts after a step, with an infinite sum in the fourth segment."""
    n = SEGMENTS * SIZE
    mu, var, g, h = (np.full(n, value, np.float32) for value in (1, 0.5, 0.1, -0.1))
    if infinite:
        g[3 * SIZE + 7] = np.inf
    starts = SIZE * np.arange(SEGMENTS, dtype=np.int32)
    factors, ones = np.array([scale, 1, 1, 0], np.float32), np.ones(SEGMENTS, np.float32)
    negative, non_finite = np.full((2, SEGMENTS), 9, np.int32)
    parameters = Tensor(mu, var, g, h)
    kernels.step.step(
        parameters, factors, starts, starts + np.int32(SIZE), ones, 0 * ones, 0 * ones, negative, non_finite
    )
    return parameters, negative, non_finite


def test_every_segment_makes_the_same_step(num_threads):
    parameters, negative, non_finite = stepped(1, False)
    assert np.ptp(parameters.mu) == np.ptp(parameters.var) == 0
    assert parameters.mu[0] > 1 and parameters.var[0] < 0.5
    assert not negative.any() and not non_finite.any()


def test_one_infinite_sum_stops_the_step_of_all_segments(num_threads):
    parameters, negative, non_finite = stepped(1, True)
    assert set(parameters.mu) == {1} and set(parameters.var) == {0.5}
    assert not negative.any() and list(non_finite) == [0, 0, 0, 1, 0]


def test_without_a_step_nothing_is_counted(num_threads):
    parameters, negative, non_finite = stepped(0, True)
    assert set(parameters.mu) == {1} and set(parameters.var) == {0.5}
    assert not negative.any() and not non_finite.any()
