"""Activations that other kernels apply to their results before they store them."""

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.compile import device
from pytagi_ddp.kernels.formulas.activation import mixture_relu_moments, relu_moments

ONE = np.float32(1)
NONE, RELU, MIXTURE_RELU = range(3)
TAKEN = {"": NONE, "relu": RELU, "mixture_relu": MIXTURE_RELU}


@device
def activated(which, m, s):
    """(mean, variance, Jacobian) of a unit after one of `TAKEN`."""
    result = m, s, ONE
    if which == MIXTURE_RELU:
        result = mixture_relu_moments(m, s)
    elif which == RELU:
        result = relu_moments(m, s)
    return result
