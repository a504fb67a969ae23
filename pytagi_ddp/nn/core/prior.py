"""The moments of the prior of a layer, and the drawing of deferred parameters."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pytagi_ddp.nn.core.attributes import is_ours
from pytagi_ddp.nn.core.deferred import DeferredParameters, deferred_init, deferring
from pytagi_ddp.nn.core.layer import BaseLayer


def prior_moments(leaf: BaseLayer) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Moments of the prior of weights and biases, as a new layer with the same arguments would have them.

    The prior of parameters with drawn means has the mean 0; that of the scales of a normalisation has the mean 1. The
    moments follow from the arguments of `leaf`, not from its parameters. Files do not store gains, so the prior of a
    loaded layer follows from the gains of its constructor. The random generator is not used.

    Returns:
        (mu_w, var_w, mu_b, var_b): flat float32 arrays, empty where there are none.

    Raises:
        TypeError: a layer whose `init_weight_bias` sets no prior.
    """
    if leaf.parameters is None:
        none = np.zeros(0, np.float32)
        return none, none, none, none
    given: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    new = object.__new__(type(leaf))  # not a copy, which would copy the parameters
    new.__dict__.update(leaf.__dict__, _set_prior=lambda prior, weight_shape: given.append(prior))
    draws = not is_ours(type(leaf))  # a layer of your own may, from NumPy's generator
    state = np.random.get_state() if draws else None  # noqa: NPY002
    with deferred_init():  # means that would be drawn are zeros
        new.init_weight_bias()
    if state is not None:
        np.random.set_state(state)  # noqa: NPY002
    if not given:
        raise TypeError(
            f"the prior of {leaf.get_layer_info()} is not known: call set_prior() in its method init_weight_bias(), "
            "and init_weight_bias() in build() or in the constructor"
        )
    return given[0]


def prior_variances(leaf: BaseLayer) -> tuple[np.ndarray, np.ndarray]:
    """(var_w, var_b) of `prior_moments`: variances `gain^2 scale^2`."""
    _, var_w, _, var_b = prior_moments(leaf)
    return var_w, var_b


def drawn(leaves: Iterable[BaseLayer]) -> Iterator[BaseLayer]:
    """Draws deferred parameters of `leaves`, and yields each leaf once it has its parameters.

    Deferred leaves come first, in the order in which they were made. Each is drawn only when the caller asks for it, so
    that the caller can move its parameters before the next one is drawn.
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
