"""The buffers of states and deltas as users handle them: sizes, flat arrays that take any values, copies."""

import numpy as np
import pytest

from pytagi_ddp import nn

STATES = {
    "BaseHiddenStates": (["actual_size", "block_size", "size"], ["jcb", "mu_a", "var_a"]),
    "BaseDeltaStates": (["actual_size", "block_size", "size"], ["delta_mu", "delta_var"]),
}


@pytest.mark.parametrize("kind", STATES)
def test_states(kind):
    sizes, arrays = STATES[kind]
    states = getattr(nn, kind)(12, 2)
    assert [getattr(states, name) for name in sizes] == [6, 2, 12]
    assert states.get_name() == kind
    for name in arrays:
        np.testing.assert_array_equal(getattr(states, name), np.full(12, name == "jcb"))
        setattr(states, name, list(range(12)))
        np.testing.assert_array_equal(getattr(states, name), np.arange(12, dtype=np.float32))
        with pytest.raises(ValueError, match=f"{name} must hold 12 values, got 5"):
            setattr(states, name, np.zeros(5))
    states.set_size(6, 3)
    assert [getattr(states, name) for name in sizes] == [2, 3, 6]
    assert getattr(nn, kind)().size == 0
    with pytest.raises(ValueError, match="7 values are not a whole number of units for 2 samples"):
        states.set_size(7, 2)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (([1, np.nan], None, 1), ValueError, "mu_x: 1 of 2 values are NaN or infinite"),
        (([1, 2], [1, np.inf], 1), ValueError, "var_x: 1 of 2 values are NaN or infinite"),
        (([1, 2], [1, -0.5], 1), ValueError, "var_x holds variances and must not be negative, the smallest is -0.5"),
        (([1, 2], [1], 1), ValueError, "var_x must hold 2 values, got 1"),
        (([1, 2], None, 3), ValueError, "2 values are not a whole number of units for 3 samples"),
        (([1, 2], None, 1.0), TypeError, "block_size must be an integer, got 1.0"),
    ],
)
def test_input_that_is_refused_changes_nothing(given, error, message):
    states = nn.BaseHiddenStates()
    states.set_input_x([3, 4], [5, 6], 2)
    with pytest.raises(error, match=message):
        states.set_input_x(*given)
    assert (states.mu_a.tolist(), states.var_a.tolist(), states.block_size) == ([3, 4], [5, 6], 2)


def test_copying_deltas():
    source, target = nn.BaseDeltaStates(6, 2), nn.BaseDeltaStates(12, 2)
    source.delta_mu, source.delta_var = range(6), range(10, 16)
    target.copy_from(source, 4)
    np.testing.assert_array_equal(target.delta_mu[:5], [0, 1, 2, 3, 0])
    target.copy_from(source)
    assert (target.size, target.block_size) == (6, 2)
    np.testing.assert_array_equal(target.delta_var, range(10, 16))
    target.reset_zeros()
    np.testing.assert_array_equal(target.delta_mu, 0)
    with pytest.raises(ValueError, match="cannot copy 7 deltas from a buffer of 6"):
        target.copy_from(source, 7)
