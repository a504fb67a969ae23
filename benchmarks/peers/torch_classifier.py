"""A classifier in PyTorch: an ordinary softmax network, or one with MC dropout.

Source of the latter: Gal & Ghahramani (2016), "Dropout as a Bayesian approximation", ICML.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers.torch_sgd import LAYERS
from benchmarks.workloads import Head
from pytagi_ddp.data import BatchLoader

ADAM_RATE, SGD_RATE = 1e-3, 0.01
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4  # of SGD


class TorchClassifier:
    """Cross-entropy, by Adam or by SGD with momentum, with a rate that falls to 0 over the training.

    Args:
        make: gives the network, as `benchmarks.workloads` does. shape: (C, H, W) of an image.
        dropout: share of units dropped before each dense layer but one that sees pixels; 0: none.
        seed: of the first weights and of what is dropped.
        sgd: instead of Adam. rate: at the start; None: `ADAM_RATE` or `SGD_RATE`.
    """

    def __init__(
        self,
        make: Callable[[Any, Head], Any],
        shape: tuple[int, ...],
        dropout: float,
        seed: int,
        sgd: bool = False,
        rate: float | None = None,
    ):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        layers = list(make(LAYERS, lambda inputs: [LAYERS.Linear(inputs, 10)]))
        for k in range(len(layers) - 1, 0, -1) if dropout else ():
            if isinstance(layers[k], nn.Sequential):  # a dense layer, see LAYERS
                layers.insert(k, nn.Dropout(dropout))
        self._net = nn.Sequential(*layers).to(memory_format=torch.channels_last)
        self._shape, self._dropout, self._sgd = shape, dropout, sgd
        self._rate = rate or (SGD_RATE if sgd else ADAM_RATE)

    def train(self, loader: BatchLoader, seconds: float, epochs: int | None = None) -> int:
        """Trains for the given epochs; None: for the given CPU time. Returns the number of steps."""
        rate = self._rate
        optimizer: torch.optim.Optimizer = torch.optim.Adam(self._net.parameters(), rate)
        if self._sgd:
            optimizer = torch.optim.SGD(self._net.parameters(), rate, MOMENTUM, weight_decay=WEIGHT_DECAY)
        self._net.train()
        start, steps, epoch = time.process_time(), 0, 0
        while True:
            loader.set_epoch(epoch)
            for x, labels in loader:
                done = steps / (epochs * len(loader)) if epochs else (time.process_time() - start) / seconds
                if done >= 1:
                    return steps
                optimizer.param_groups[0]["lr"] = rate * (1 - done)
                optimizer.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(self._net(self._images(x)), torch.from_numpy(labels)).backward()
                optimizer.step()
                steps += 1
            epoch += 1

    @torch.inference_mode()
    def probabilities(self, x: np.ndarray, samples: int) -> np.ndarray:
        """(samples, B, 10), each of another dropout; one sample without dropout."""
        self._net.eval()
        for layer in self._net:
            layer.train(isinstance(layer, nn.Dropout))
        images = self._images(x)
        return np.stack([self._net(images).softmax(1).numpy() for _ in range(samples if self._dropout else 1)])

    def _images(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).reshape(-1, *self._shape).contiguous(memory_format=torch.channels_last)
