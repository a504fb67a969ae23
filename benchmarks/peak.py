"""The float32 matrix peak of this machine, the yardstick of every other number."""

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
