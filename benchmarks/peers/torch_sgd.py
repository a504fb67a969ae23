"""Ordinary training in PyTorch: the same network without uncertainty, one SGD step on the squared error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.workloads import find


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "numpy": np.__version__}


def linear(inputs: int, outputs: int, bias: bool = True, **_: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias))


def conv2d(
    c_in: int,
    c_out: int,
    kernel: int,
    bias: bool = True,
    stride: int = 1,
    padding: int = 0,
    padding_type: int = 1,
    **_: Any,
) -> nn.Module:
    if padding_type == 2:  # zeros on the right and below only
        return nn.Sequential(nn.ZeroPad2d((0, padding, 0, padding)), nn.Conv2d(c_in, c_out, kernel, stride, bias=bias))
    return nn.Conv2d(c_in, c_out, kernel, stride, padding, bias=bias)


def conv_transpose2d(
    c_in: int, c_out: int, kernel: int, bias: bool = True, stride: int = 1, padding: int = 0, **_: Any
) -> nn.Module:
    return nn.ConvTranspose2d(c_in, c_out, kernel, stride, padding, bias=bias)


class MultiheadAttention(nn.Module):
    def __init__(self, features: int, heads: int, seq_len: int, **_: Any):
        super().__init__()
        self.layer = nn.MultiheadAttention(features, heads, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(seq_len))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, x, attn_mask=self.mask, is_causal=True, need_weights=False)[0]


class LSTM(nn.Module):
    def __init__(self, inputs: int, outputs: int, steps: int):
        super().__init__()
        self._steps, self._lstm = steps, nn.LSTM(inputs, outputs, batch_first=True)
        nn.init.zeros_(self._lstm.bias_hh_l0).requires_grad_(False)  # it has two biases where others have one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._lstm(x.reshape(len(x), self._steps, -1))[0]


class ResNetBlock(nn.Module):
    def __init__(self, main: nn.Module, shortcut: nn.Module | None = None):
        super().__init__()
        self.main, self.shortcut = main, shortcut or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x) + self.shortcut(x)


LAYERS = SimpleNamespace(
    LSTM=LSTM,
    Linear=linear,
    Conv2d=conv2d,
    ConvTranspose2d=conv_transpose2d,
    MultiheadAttention=MultiheadAttention,
    ReLU=nn.ReLU,
    MixtureReLU=nn.ReLU,
    BatchNorm2d=nn.BatchNorm2d,
    AvgPool2d=lambda kernel, stride=None: nn.AvgPool2d(kernel, stride),
    MaxPool2d=lambda kernel, stride=1: nn.MaxPool2d(kernel, stride),
    ResNetBlock=ResNetBlock,
    LayerBlock=nn.Sequential,
    Sequential=nn.Sequential,
)


class Step:
    def __init__(self, name: str, threads: int):
        torch.set_num_threads(threads)
        spec = find(name)
        self._net = spec.build(LAYERS)
        self._optimizer = torch.optim.SGD(self._net.parameters(), 1e-3)
        x, _, y = spec.data()
        self._x = torch.from_numpy(x).reshape(-1, *spec.in_shape).requires_grad_(spec.inside)
        self._y = torch.from_numpy(y)
        if self._x.ndim == 4:  # as fast as channels first or a little faster, as measured
            self._net, self._x = (part.to(memory_format=torch.channels_last) for part in (self._net, self._x.detach()))
            self._x.requires_grad_(spec.inside)
        self.parameters = sum(p.numel() for p in self._net.parameters() if p.requires_grad)

    def step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._x.grad = None
        nn.functional.mse_loss(self._net(self._x).flatten(1), self._y).backward()
        self._optimizer.step()
