"""States and deltas as objects of the user's: sizes, flat arrays that take any values, copies."""

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
    with pytest.raises(ValueError, match="7 values are no whole number of units for 2 samples"):
        states.set_size(7, 2)


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
