"""Heads: what they tell the network about a label, and how they read its output."""

import numpy as np
import pytest

import pytagi_ddp
from examples.classifier import HEADS, FallingNoise
from pytagi_ddp.nn import Linear, Sequential
from pytagi_ddp.training import Trainer


@pytest.mark.parametrize(("head", "outputs"), [("categorical", 10), ("hierarchical", 11), ("remax", 10)])
def test_observed_labels_are_learnt(head, outputs):
    pytagi_ddp.manual_seed(0)  # one prior in many takes more than 50 steps
    net = Sequential(Linear(10, outputs))
    head = HEADS[head](10) if head == "categorical" else HEADS[head](10, sigma_v=0.1)
    assert head.outputs == outputs
    data = np.eye(10, dtype=np.float32), np.arange(10)
    trainer = Trainer(net, head, epochs=50, batch_size=10, evidence=None)
    assert trainer.evaluate(data)["error"] > 0.3
    trainer.fit(data)
    assert trainer.evaluate(data)["error"] == 0
    assert trainer.evaluate((data[0], (data[1] + 1) % 10))["error"] == 1


def test_the_hierarchical_head_observes_the_path_of_a_label():
    net = Sequential(Linear(4, 11))
    net(np.ones((1, 4)))
    HEADS["hierarchical"](10, 0.1).observe(net, np.array([3]))
    assert np.flatnonzero(net.input_delta_z_buffer.delta_var).tolist() == [0, 1, 3, 7]  # units 1, 2, 4 and 8
    assert (net.input_delta_z_buffer.delta_var <= 0).all()


def test_the_noise_falls_from_epoch_to_epoch():
    data = np.eye(2, dtype=np.float32), np.arange(2)
    noise = FallingNoise(0.5, 0.2, 0.5)
    history = Sequential(Linear(2, 2)).fit(*data, HEADS["remax"](2), epochs=3, evidence=None, callbacks=[noise])
    assert [results["sigma_v"] for results in history] == [0.5, 0.25, 0.2]
