"""The variances that a layer begins with."""

import numpy as np

from pytagi_ddp.nn.deferred import deferred_init
from pytagi_ddp.nn.layer import BaseLayer


def prior_variances(leaf: BaseLayer) -> tuple[np.ndarray, np.ndarray]:
    """Variances of weights and biases by the layer's rule: `gain^2 scale^2` of a new one, whatever it has learnt.

    The rule is that of the layer's own arguments. Files do not hold gains: a layer that was built with other gains than
    the one that wrote the file has another prior. Nothing is drawn from the random stream.

    Returns:
        (var_w, var_b): flat float32 arrays, empty where there are none.
    """
    if leaf.parameters is None:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    given: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    new = object.__new__(type(leaf))  # not a copy, which would copy the parameters
    new.__dict__.update(leaf.__dict__, _set_prior=lambda prior, weight_shape: given.append(prior))
    with deferred_init():  # means are zeros then, which costs no draws
        new.init_weight_bias()
    _, var_w, _, var_b = given[0]
    return var_w, var_b
