"""Parameters that are drawn from the prior, and the moments of the prior."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pytagi_ddp.nn.core.deferred import DeferredParameters, deferred_init, deferring
from pytagi_ddp.nn.core.layer import BaseLayer


def prior_moments(leaf: BaseLayer) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Moments of the prior of weights and biases, as a new layer with the same arguments would have them.

    A mean that is drawn is drawn around 0, which is the prior's; the scales of a normalisation have the mean 1. The
    moments follow from the arguments of `leaf`, not from what it has learnt. Files do not hold gains: a layer that was
    built with other gains than the layer whose file it has read has another prior. Nothing is drawn from the random
    stream.

    Returns:
        (mu_w, var_w, mu_b, var_b): flat float32 arrays, empty where there are none.
    """
    if leaf.parameters is None:
        none = np.zeros(0, np.float32)
        return none, none, none, none
    given: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    new = object.__new__(type(leaf))  # not a copy, which would copy the parameters
    new.__dict__.update(leaf.__dict__, _set_prior=lambda prior, weight_shape: given.append(prior))
    with deferred_init():  # means that would be drawn are zeros then, and nothing is drawn
        new.init_weight_bias()
    return given[0]


def prior_variances(leaf: BaseLayer) -> tuple[np.ndarray, np.ndarray]:
    """(var_w, var_b) of `prior_moments`: variances `gain^2 scale^2`."""
    _, var_w, _, var_b = prior_moments(leaf)
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
