"""The simulator's threads, barriers and memory; the kernels run in it in `tests/cuda/sim`."""

import numpy as np
import pytest
from numba import float32

from pytagi_ddp.kernels.cuda.runtime.simulator import Memory, SimulatedCuda, with_pauses

cuda = SimulatedCuda()
THREADS = 8


@with_pauses
def total(value, scratch):
    """Sum over the block."""
    scratch[cuda.threadIdx.x] = value
    cuda.syncthreads()
    return sum(scratch[i] for i in range(cuda.blockDim.x))


def launch(kernel, size: int, grid: tuple[int, ...] = (1,)) -> np.ndarray:
    out = np.full(size, np.nan, np.float32)
    cuda.launch(with_pauses(kernel), grid, THREADS, [Memory(out)])
    return out


def test_a_function_without_barriers_stays_as_it_is():
    def kernel(out):
        out[cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x] = cuda.blockIdx.x

    assert with_pauses(kernel) is kernel
    np.testing.assert_array_equal(launch(kernel, 24, grid=(2, 3)), 1)  # of the second block of each row


def test_all_threads_meet_at_each_barrier():
    """In loops, within functions that a kernel calls, and beside threads that have ended."""
    rounds = 3

    def kernel(out):
        scratch = cuda.shared.array(THREADS, float32)
        scratch[cuda.threadIdx.x] = 0
        cuda.syncthreads()
        if cuda.threadIdx.x == 5:
            return
        value = cuda.threadIdx.x
        for _ in range(rounds):
            value = 2 * total(value, scratch) - value
            cuda.syncthreads()
        out[cuda.threadIdx.x] = value

    found, expected = launch(kernel, THREADS), np.arange(THREADS)
    expected[5] = 0
    for _ in range(rounds):
        expected = np.where(np.arange(THREADS) == 5, 0, 2 * expected.sum() - expected)
    np.testing.assert_array_equal(np.delete(found, 5), np.delete(expected, 5))
    assert np.isnan(found[5])


@pytest.mark.parametrize("neighbour", [1, THREADS - 1])
def test_a_missing_barrier_gives_other_numbers(neighbour):
    """Whichever way threads look: one of them comes before the thread whose number it reads."""

    def kernel(out):
        shared = cuda.shared.array(THREADS, float32)
        shared[cuda.threadIdx.x] = cuda.threadIdx.x
        out[cuda.threadIdx.x] = shared[(cuda.threadIdx.x + neighbour) % THREADS]

    assert np.isnan(launch(kernel, THREADS)).any()


@pytest.mark.parametrize("neighbour", [1, THREADS - 1])
def test_a_number_that_is_overwritten_too_early_is_noticed(neighbour):
    def kernel(out):
        shared = cuda.shared.array(THREADS, float32)
        for value in (0, 1):  # and no barrier before the next number is written
            shared[cuda.threadIdx.x] = value
            cuda.syncthreads()
            out[value * THREADS + cuda.threadIdx.x] = shared[(cuda.threadIdx.x + neighbour) % THREADS]

    assert launch(kernel, 2 * THREADS)[:THREADS].any()


def test_shared_arrays_of_one_line_are_two():
    def kernel(out):
        a, b = cuda.shared.array(1, float32), cuda.shared.array(1, float32)
        a[0], b[0] = 1, 2
        out[cuda.threadIdx.x] = a[0]

    np.testing.assert_array_equal(launch(kernel, THREADS), 1)


def test_a_barrier_in_another_function_is_refused():
    def helper():
        cuda.syncthreads()

    def kernel(out):
        helper()

    with pytest.raises(RuntimeError, match="neither a kernel nor a @device function"):
        launch(kernel, 1)


@pytest.mark.parametrize("index", [-1, 3])
def test_nothing_lies_outside_of_memory(index):
    def kernel(out):
        cuda.syncthreads()
        out[index] = 0

    with pytest.raises(IndexError, match=f"element {index} of 3"):
        launch(kernel, 3)
