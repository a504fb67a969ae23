"""What this machine can do: the float32 matrix peak, the yardstick of every other number, and the speed of copies."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_limits

SIZE = 1536


def seconds(function: Callable[[], object], repeat: int = 1) -> float:
    """Time of one call, the mean of `repeat` calls after one that warms up."""
    function()
    start = time.perf_counter()
    for _ in range(repeat):
        function()
    return (time.perf_counter() - start) / repeat


class SgemmPeak:
    """One 1536 x 1536 x 1536 sgemm per thread, all at once; `measure` again and again, the best time counts."""

    def __init__(self, threads: int):
        rng = np.random.default_rng(0)
        self._a, self._b = rng.standard_normal((2, SIZE, SIZE), np.float32)
        self._out = np.empty((threads, SIZE, SIZE), np.float32)
        self._threads = threads
        self._best = float("inf")

    def measure(self) -> None:
        with ThreadPoolExecutor(self._threads) as pool, threadpool_limits(1, "blas"):
            products = seconds(lambda: list(pool.map(lambda out: np.matmul(self._a, self._b, out=out), self._out)))
        self._best = min(self._best, products)

    @property
    def flops(self) -> float:
        """Operations per second (a multiply-add is two) of the best round."""
        return self._threads * 2 * SIZE**3 / self._best


class CopyBandwidth:
    """Every thread copies an array larger than the caches, all at once; the best time counts."""

    SIZE = 1 << 24  # float32 numbers of one thread

    def __init__(self, threads: int):
        self._pairs = [np.ones((2, self.SIZE), np.float32) for _ in range(threads)]
        self._best = float("inf")

    def measure(self) -> None:
        with ThreadPoolExecutor(len(self._pairs)) as pool:
            copies = seconds(lambda: list(pool.map(lambda pair: np.copyto(pair[0], pair[1]), self._pairs)))
        self._best = min(self._best, copies)

    @property
    def bytes_per_second(self) -> float:
        """Bytes read and written per second in the best round."""
        return len(self._pairs) * 2 * 4 * self.SIZE / self._best
