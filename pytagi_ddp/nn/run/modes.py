"""Training and evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from pytagi_ddp.nn.core.network import TrainableNetwork
from pytagi_ddp.nn.core.step import Change


@contextmanager
def in_mode(net: TrainableNetwork, training: bool) -> Iterator[None]:
    """Training or evaluation mode inside the block; restores the earlier mode, and that of frozen layers."""
    before, frozen = net.training, [layer for _, layer in net.named_layers() if layer.training != net.training]
    try:
        net.train() if training else net.eval()
        yield
    finally:
        net._set_training(before)
        for layer in frozen:
            layer._training = not before
        if frozen:
            net.passes.invalidate(Change.MODES)
