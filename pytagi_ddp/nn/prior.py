"""The variances that a layer begins with."""

import copy

import numpy as np

from pytagi_ddp.nn.init import get_state, set_state
from pytagi_ddp.nn.layer import BaseLayer


def prior_variances(leaf: BaseLayer) -> tuple[np.ndarray, np.ndarray]:
    """Variances of weights and biases by the layer's rule: `gain^2 scale^2` of a new one, whatever it has learnt.

    The rule is that of the layer's own arguments. Files do not hold gains: a layer that was built with other gains than
    the one that wrote the file has another prior. The random stream goes on as if nothing had been drawn.

    Returns:
        (var_w, var_b): flat float32 arrays, empty where there are none.
    """
    if leaf.parameters is None:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    new = object.__new__(type(leaf))  # not a copy, which would copy the parameters
    new.__dict__.update(leaf.__dict__, parameters=None)
    state = copy.deepcopy(get_state())
    try:
        new.init_weight_bias()  # type: ignore[attr-defined]  # every layer with parameters has one
    finally:
        set_state(state)
    return new.var_w, new.var_b
