"""Parameters that are drawn from the prior, and the variances of the prior."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pytagi_ddp.nn.core.deferred import DeferredParameters, deferred_init, deferring
from pytagi_ddp.nn.core.layer import BaseLayer


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


def drawn(leaves: Iterable[BaseLayer]) -> Iterator[BaseLayer]:
    """Draws the parameters of `leaves` that have none yet, and yields each leaf once it has them.

    Deferred leaves come first, in the order in which they were made. A caller that moves the parameters of each leaf
    elsewhere before asking for the next one never holds newly drawn parameters of two leaves.
    """
    leaves = list(leaves)
    found: list[tuple[BaseLayer, Any]] = [(leaf, leaf.parameters) for leaf in leaves]
    deferred = {leaf: stands.number for leaf, stands in found if isinstance(stands, DeferredParameters)}
    with deferring(False):
        for leaf in sorted(deferred, key=deferred.__getitem__):
            leaf.parameters = None
            leaf.init_weight_bias()
            yield leaf
        for leaf in leaves:
            if leaf not in deferred:
                if leaf.parameters is None:
                    leaf.init_weight_bias()
                yield leaf
