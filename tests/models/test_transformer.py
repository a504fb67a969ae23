"""A decoder-only block learns to look back."""

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.metric import HRCSoftmaxMetric
from pytagi_ddp.models import transformer
from pytagi_ddp.nn.hierarchical_softmax import encode_classes

CLASSES, STEPS, LAG = 8, 5, 2


def test_copies_the_token_two_back():
    """Over 0.98 of the positions that can be known, after 800 batches of 16 sequences of random tokens."""
    manual_seed(0)
    rng = np.random.default_rng(0)
    signs, units, outputs = encode_classes(CLASSES)
    net, updater = transformer(CLASSES, STEPS, outputs), nn.OutputUpdater("cpu")
    for _ in range(800):
        x = rng.integers(CLASSES, size=(16, STEPS))
        target = np.roll(x, LAG, 1)
        observed = signs[target]
        observed[:, :LAG] = np.nan
        net(x)
        arguments = observed, 1.0, units[target], net.input_delta_z_buffer
        updater.update_using_indices(net.output_z_buffer, *arguments)
        net.backward()
        net.step()
    x = rng.integers(CLASSES, size=(400, STEPS))
    mu, var = net.predict(x)
    found = HRCSoftmaxMetric(CLASSES).get_predicted_labels(mu.ravel(), var.ravel()).reshape(x.shape)
    assert (found[:, LAG:] == x[:, :-LAG]).mean() > 0.98


def test_parts():
    net = transformer(6, 4, 3, embed_dim=8, num_heads=4, num_kv_heads=2, num_blocks=2, hidden=5)
    assert (net.in_shape.size, net.out_shape.sequence) == (4, (4, 3))
    kinds = [type(leaf).__name__ for _, leaf in net.named_leaves()]
    block = ["RMSNorm", "MultiheadAttention", "RMSNorm", "Linear", "MixtureReLU", "Linear"]
    assert kinds == ["Embedding", *block, *block, "RMSNorm", "Linear"]
    with pytest.raises(ValueError, match="num_blocks must be at least 1, got 0"):
        transformer(6, 4, 3, num_blocks=0)
