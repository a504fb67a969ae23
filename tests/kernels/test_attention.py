"""Products of the matrices of attention heads, and what they refuse; tests/nn/test_attention.py tests the moments."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import attention
from pytagi_ddp.kernels.tensors import ALL, Heads, State

BATCH, HEADS, STEPS, SIZE = 2, 4, 5, 3


def units(numbers):
    return State(*np.ones((2, numbers), np.float32))


def operands():
    """q (time steps, units of a head) and the transpose of k, whose product is a matrix of scores for each head."""
    width = HEADS * SIZE
    place = 0, STEPS * width, SIZE, width
    scores = Heads(units(BATCH * HEADS * STEPS**2), 0, HEADS * STEPS**2, STEPS**2, STEPS)
    q, k = (Heads(units(BATCH * STEPS * width), *place) for _ in range(2))
    return q, k._replace(transposed=True), scores


def multiply(x, y, out, batch=BATCH, heads=HEADS, rows=STEPS, depth=SIZE, columns=STEPS):
    attention.multiply(x, y, out, batch, heads, rows, depth, columns, ALL)


def test_products_are_those_of_all_heads():
    q, k, scores = operands()
    multiply(q, k, scores)
    np.testing.assert_array_equal(scores.units.mu, SIZE)
    np.testing.assert_array_equal(scores.units.var, 3 * SIZE)  # 1 (1 + 1) + 1 1


@pytest.mark.parametrize(
    "sizes", [{"batch": 3}, {"heads": 5}, {"rows": 6}, {"depth": 4}, {"columns": 6}, {"rows": 0}, {"batch": -1}]
)
def test_refuses_sizes_beyond_the_arrays(sizes):
    with pytest.raises(ValueError, match=r"attention\.multiply: .* do not fit into an array of"):
        multiply(*operands(), **sizes)


@pytest.mark.parametrize(
    "place", [{"first": 1}, {"first": -1}, {"row": -12}, {"share": 3}, {"share": 0}, {"batch": 61}]
)
def test_refuses_places_beyond_the_arrays(place):
    q, k, scores = operands()
    with pytest.raises(ValueError, match=r"attention\.multiply: .* do not fit into an array of"):
        multiply(q._replace(**place), k, scores)


def test_refuses_variances_that_are_shorter_than_means():
    q, k, scores = operands()
    with pytest.raises(ValueError, match="array of 5"):
        multiply(q._replace(units=State(q.units.mu, q.units.var[:5])), k, scores)
