"""Rows of a table by category: a category is a number from 0 on, kept as float32.

Categories are (n,), the table (categories, features), outputs and deltas (n, features). Padding, and values that are
not categories of the table, have mean and variance 0, and do not learn.
"""

from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion
from pytagi_ddp.kernels.formulas.embedding import row_of
from pytagi_ddp.kernels.tensors import Array, Delta, State, Tensor

PART = 16  # features that one thread sums at a time: a cache line


@loop("ik ik i ck ck _")
def _forward(thread, threads, out_mu, out_var, categories, mu, var, padding):
    base, share = portion(categories.size, thread, threads)
    for each in range(share):
        i = base + each
        row = row_of(categories[i], mu.shape[0], padding)
        for k in range(mu.shape[1]):
            out_mu[i, k], out_var[i, k] = (mu[row, k], var[row, k]) if row >= 0 else (0, 0)


@loop("ik ik i ck ck _")
def _backward(thread, threads, delta_mu, delta_var, categories, g, h, padding):
    features = g.shape[1]
    # Each thread sums some features of all rows, so that repeated categories cause no race, and keep their order.
    base, share = portion((features + PART - 1) // PART, thread, threads)
    for each in range(share):
        part = base + each
        for i in range(categories.size):
            row = row_of(categories[i], g.shape[0], padding)
            if row >= 0:
                for k in range(part * PART, min(features, (part + 1) * PART)):
                    g[row, k] += delta_mu[i, k]
                    h[row, k] += delta_var[i, k]


def forward(categories: Array, weights: Tensor, padding: int, out: State) -> None:
    """out = the rows of the table."""
    _forward(out.mu, out.var, categories, weights.mu, weights.var, padding)


def backward(categories: Array, delta: Delta, weights: Tensor, padding: int) -> None:
    """Adds each delta to g and h of the row that it belongs to."""
    _backward(delta.mu, delta.var, categories, weights.delta_mu_sum, weights.delta_var_sum, padding)
