"""Rows of a table by category. Same functions, arguments and formulas as `kernels.cpu.embedding`.

In the backward pass each of the n occurrences of categories has a block of threads, and the block of a category's first
occurrence adds all of its occurrences in order. The bits are the same in every run; each block makes n comparisons.
"""

from pytagi_ddp.kernels.cuda.products.work import ZERO, i32
from pytagi_ddp.kernels.cuda.runtime.compile import blocks, cuda, device, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.formulas.embedding import row_of
from pytagi_ddp.kernels.tensors import Array, Delta, State, Tensor

THREADS = 128


@kernel(floats, floats, floats, floats, floats, int32, int32, int32, int32, threads=THREADS)
def _forward(categories, mu, var, out_mu, out_var, n, rows, features, padding):
    i = i32(thread_index())
    if i < n:
        row = row_of(categories[i // features], rows, padding)
        place = row * features + i % features
        out_mu[i], out_var[i] = (mu[place], var[place]) if row >= 0 else (ZERO, ZERO)


@device
def _first(categories, i):
    """Whether categories[i] equals none of the categories before it."""
    j = 0
    while j < i and categories[j] != categories[i]:
        j += 1
    return j == i


@kernel(floats, floats, floats, floats, floats, int32, int32, int32, int32, threads=THREADS)
def _backward(categories, delta_mu, delta_var, g, h, n, rows, features, padding):
    i = cuda.blockIdx.x
    category = categories[i]
    row = row_of(category, rows, padding)
    if row >= 0 and _first(categories, i):
        for k in range(cuda.threadIdx.x, features, THREADS):
            a, b = g[row * features + k], h[row * features + k]
            for j in range(i, n):
                if categories[j] == category:
                    a += delta_mu[j * features + k]
                    b += delta_var[j * features + k]
            g[row * features + k], h[row * features + k] = a, b


def forward(categories: Array, weights: Tensor, padding: int, out: State) -> None:
    """out = the rows of the table."""
    rows, features = weights.mu.shape
    arrays = categories, weights.mu, weights.var, out.mu, out.var
    _forward.launch(blocks(out.mu.size, THREADS), *arrays, out.mu.size, rows, features, padding)


def backward(categories: Array, delta: Delta, weights: Tensor, padding: int) -> None:
    """Adds each delta to g and h of the row that it belongs to."""
    rows, features = weights.mu.shape
    sums = weights.delta_mu_sum, weights.delta_var_sum
    _backward.launch(categories.size, categories, delta.mu, delta.var, *sums, categories.size, rows, features, padding)
