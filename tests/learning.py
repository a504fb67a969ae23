"""A training step for tests; the network may be a wrapper, such as a DDPSequential."""

import numpy as np

from pytagi_ddp.nn import OutputUpdater


def backpropagate(net, x, y, noise=1.0, var_x=None) -> tuple[np.ndarray, np.ndarray]:
    """Everything of a step but `step`; returns the moments of the outputs. noise: variance of the observations y."""
    moments = net(x, var_x)
    OutputUpdater("cpu").update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
    net.backward()
    return moments


def learn(net, x, y, noise=1.0, var_x=None) -> tuple[np.ndarray, np.ndarray]:
    moments = backpropagate(net, x, y, noise, var_x)
    net.step()
    return moments
