"""Heads: what they tell the network about a label, and how they read its output."""

import numpy as np
import pytest

import pytagi_ddp
from examples.classifier import HEADS
from pytagi_ddp.nn import Linear, Sequential


@pytest.mark.parametrize(("head", "outputs"), [("categorical", 10), ("hierarchical", 11), ("remax", 10)])
def test_observed_labels_are_learnt(head, outputs):
    pytagi_ddp.manual_seed(0)  # one prior in many takes more than 50 steps
    net = Sequential(Linear(10, outputs))
    head = HEADS[head](10, net.device)
    labels = np.arange(10)
    x = np.eye(10, dtype=np.float32)
    assert head.count_errors(*net(x), labels) > 3
    for _ in range(50):
        net(x)
        head.observe(net, labels, sigma_v=0.1)
        net.backward()
        net.step()
    assert head.count_errors(*net(x), labels) == 0
    assert head.count_errors(*net(x), (labels + 1) % 10) == 10


def test_the_hierarchical_head_observes_the_path_of_a_label():
    net = Sequential(Linear(4, 11))
    net(np.ones((1, 4)))
    HEADS["hierarchical"](10, net.device).observe(net, np.array([3]), sigma_v=0.1)
    assert np.flatnonzero(net.input_delta_z_buffer.delta_var).tolist() == [0, 1, 3, 7]  # units 1, 2, 4 and 8
    assert (net.input_delta_z_buffer.delta_var <= 0).all()
