"""Prior variances of a layer's parameters."""

import numpy as np

from pytagi_ddp.nn.deferred import deferred_init
from pytagi_ddp.nn.layer import BaseLayer


def prior_variances(leaf: BaseLayer) -> tuple[np.ndarray, np.ndarray]:
    """Variances `gain^2 scale^2` that weights and biases of a new layer with the same arguments would have.

    They follow from the arguments of `leaf`, not from what it has learnt. Files do not hold gains: a layer that was
    built with other gains than the layer whose file it has read has another prior. Nothing is drawn from the random
    stream.

    Returns:
        (var_w, var_b): flat float32 arrays, empty where there are none.
    """
    if leaf.parameters is None:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    given: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    new = object.__new__(type(leaf))  # not a copy, which would copy the parameters
    new.__dict__.update(leaf.__dict__, _set_prior=lambda prior, weight_shape: given.append(prior))
    with deferred_init():  # means are zeros then, and nothing is drawn
        new.init_weight_bias()
    _, var_w, _, var_b = given[0]
    return var_w, var_b
