"""TAGI written with PyTorch operations: what oneDNN and MKL make of the same formulas.

A module maps moments (m, s) forward, s being None for a deterministic input, and deltas (dm, ds) backward, in the
convention of this library: a posterior is (m + s dm, s + s^2 ds).
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn

from benchmarks.peers.torch_sgd import versions
from benchmarks.workloads import find

__all__ = ["Step", "versions"]
aten = torch.ops.aten
functional = nn.functional


class Learned:
    """Weights N(w, s_w) and biases N(b, s_b), and g, h of both: the batch sums of a backward pass."""

    def __init__(self, shape: tuple[int, ...], biases: int, scale: float):
        self.w, self.b = torch.randn(shape) * scale, torch.randn(biases) * scale if biases else None
        self.s_w, self.s_b = torch.full(shape, scale**2), torch.full((biases,), scale**2) if biases else None

    deltas_w: tuple[torch.Tensor, torch.Tensor]
    deltas_b: tuple[torch.Tensor, torch.Tensor]

    def learned(self) -> list[Learned]:
        return [self]

    def update(self, cap: float) -> None:
        for m, s, g, h in ((self.w, self.s_w, *self.deltas_w), (self.b, self.s_b, *self.deltas_b)):
            if m is not None:
                limit = s.sqrt() / cap
                m += torch.clamp(s * g, -limit, limit)
                s += torch.clamp(s.square() * h, -limit, limit)
                s.masked_fill_(s <= 0, 1e-5)


class Linear(Learned):
    def __init__(self, inputs: int, outputs: int, bias: bool = True, **_):
        super().__init__((outputs, inputs), outputs * bias, 1 / math.sqrt(inputs))

    def forward(self, m, s):
        self.shape, m = m.shape, m.flatten(1)
        self.m, self.m2 = m, m.square()
        var = functional.linear(self.m2, self.s_w, self.s_b)
        if s is not None:
            var.addmm_(s.flatten(1), (self.w.square() + self.s_w).T)
        return functional.linear(m, self.w, self.b), var

    def backward(self, dm, ds, need_input: bool):
        self.deltas_w = dm.T @ self.m, ds.T @ self.m2
        self.deltas_b = dm.sum(0), ds.sum(0)
        if not need_input:
            return None
        return (dm @ self.w).view(self.shape), (ds @ self.w.square()).view(self.shape)


class Conv2d(Learned):
    def __init__(self, c_in, c_out, kernel, bias=True, stride=1, padding=0, padding_type=1, **_):
        super().__init__((c_out, c_in, kernel, kernel), c_out * bias, 1 / math.sqrt(c_in * kernel**2))
        self.w, self.s_w = (a.contiguous(memory_format=torch.channels_last) for a in (self.w, self.s_w))
        self.stride, self.padding = [stride] * 2, [0 if padding_type == 2 else padding] * 2
        self.more = padding if padding_type == 2 else 0  # zeros on the right and below only

    def forward(self, m, s):
        m, s = (functional.pad(a, (0, self.more) * 2) if a is not None and self.more else a for a in (m, s))
        self.m, self.m2 = m, m.square()
        var = functional.conv2d(self.m2, self.s_w, self.s_b, self.stride, self.padding)
        if s is not None:
            var += functional.conv2d(s, self.w.square() + self.s_w, None, self.stride, self.padding)
        return functional.conv2d(m, self.w, self.b, self.stride, self.padding), var

    def backward(self, dm, ds, need_input: bool):
        parts = []
        for d, x, w in ((dm, self.m, self.w), (ds, self.m2, self.w.square())):
            geometry = (self.stride, self.padding, [1, 1], False, [0, 0], 1)
            wanted = [need_input, True, self.b is not None]
            parts.append(aten.convolution_backward(d, x, w, [len(w)], *geometry, wanted))
        (dm_x, g, g_b), (ds_x, h, h_b) = parts
        self.deltas_w, self.deltas_b = (g, h), (g_b, h_b)
        if not need_input:
            return None
        return tuple(a[..., : a.shape[2] - self.more, : a.shape[3] - self.more] for a in (dm_x, ds_x))


class BatchNorm2d(Learned):
    def __init__(self, features: int):
        super().__init__((features,), features, 1 / math.sqrt(features))
        self.w, self.b = torch.ones(features), torch.zeros(features)
        self.mean, self.var = torch.zeros(features), torch.ones(features)

    def forward(self, m, s):
        mean = m.mean((0, 2, 3))
        t = m - mean.view(-1, 1, 1)
        var = (t.square() + s).sum((0, 2, 3)) / (m.numel() / len(mean) - 1)
        self.mean.lerp_(mean, 0.1)
        self.var.lerp_(var, 0.1)
        r = (var + 1e-5).rsqrt()
        w, s_w, b, s_b, r = (a.view(-1, 1, 1) for a in (self.w, self.s_w, self.b, self.s_b, r))
        self.t, self.rw = t.mul_(r), r * w
        return t * w + b, s * (r.square() * (w.square() + s_w)) + t.square() * s_w + s_b

    def backward(self, dm, ds, need_input: bool):
        over = (0, 2, 3)
        self.deltas_w = (dm * self.t).sum(over), (ds * self.t.square()).sum(over)
        self.deltas_b = dm.sum(over), ds.sum(over)
        return (dm * self.rw, ds * self.rw.square()) if need_input else None


class Unlearned:
    def learned(self) -> list[Learned]:
        return []


class ReLU(Unlearned):
    def forward(self, m, s):
        self.on = (m > 0).to(m.dtype)
        return m * self.on, s * self.on

    def backward(self, dm, ds, need_input: bool):
        return dm * self.on, ds * self.on


class MixtureReLU(Unlearned):
    """Moments of max(0, z): mean m Phi + sd phi, variance (s + m^2) Phi + m sd phi - mean^2; J = Phi."""

    def forward(self, m, s):
        sd = s.sqrt()
        alpha = m / sd
        self.cdf = torch.erf(alpha * math.sqrt(0.5)).add_(1).mul_(0.5)  # half the time of special.ndtr
        tail = sd * torch.exp(alpha.square().mul_(-0.5)).mul_(1 / math.sqrt(2 * math.pi))
        mean = torch.addcmul(tail, m, self.cdf)
        var = (s + m.square()) * self.cdf + m * tail - mean.square()
        return mean.clamp_(min=1e-6), var.clamp_(min=1e-6)

    def backward(self, dm, ds, need_input: bool):
        return dm * self.cdf, ds * self.cdf.square()


class AvgPool2d(Unlearned):
    def __init__(self, kernel: int, stride: int | None = None):
        self.window = [kernel] * 2, [stride or kernel] * 2, [0, 0], False, True, None
        self.pixels = kernel**2

    def forward(self, m, s):
        self.input = m
        return (aten.avg_pool2d(m, *self.window), aten.avg_pool2d(s, *self.window) / self.pixels)

    def backward(self, dm, ds, need_input: bool):
        dm, ds = (
            aten.avg_pool2d_backward(d.contiguous(memory_format=torch.channels_last), self.input, *self.window)
            for d in (dm, ds)
        )
        return dm, ds / self.pixels


class Sequential:
    def __init__(self, *layers):
        self.layers = layers

    def learned(self) -> list[Learned]:
        return [part for layer in self.layers for part in layer.learned()]

    def forward(self, m, s):
        for layer in self.layers:
            m, s = layer.forward(m, s)
        return m, s

    def backward(self, dm, ds, need_input: bool):
        for layer in reversed(self.layers):
            needed = need_input or layer is not self.layers[0]
            deltas = layer.backward(dm, ds, needed)
            if not needed:
                return None
            dm, ds = deltas
        return dm, ds


class ResNetBlock:
    def __init__(self, main: Sequential, shortcut: Sequential | None = None):
        self.main, self.shortcut = main, shortcut

    def learned(self) -> list[Learned]:
        return [part for branch in (self.main, self.shortcut) if branch is not None for part in branch.learned()]

    def forward(self, m, s):
        m2, s2 = (m, s) if self.shortcut is None else self.shortcut.forward(m, s)
        m, s = self.main.forward(m, s)
        return m + m2, s + s2

    def backward(self, dm, ds, need_input: bool):
        dm2, ds2 = (dm, ds) if self.shortcut is None else self.shortcut.backward(dm, ds, need_input)
        dm, ds = self.main.backward(dm, ds, need_input)
        return dm + dm2, ds + ds2


LAYERS = SimpleNamespace(
    Linear=Linear,
    Conv2d=Conv2d,
    ReLU=ReLU,
    MixtureReLU=MixtureReLU,
    BatchNorm2d=BatchNorm2d,
    AvgPool2d=AvgPool2d,
    ResNetBlock=ResNetBlock,
    LayerBlock=Sequential,
    Sequential=Sequential,
)


class Step:
    def __init__(self, name: str, threads: int):
        torch.set_num_threads(threads)
        self._spec = spec = find(name)
        self.net = spec.build(LAYERS)
        x, var, y = spec.data()
        self.x, self.var, self._y = (
            torch.from_numpy(x),
            None if var is None else torch.from_numpy(var),
            torch.from_numpy(y),
        )
        if len(spec.in_shape) == 3:
            self.x, self.var = (
                None if a is None else a.view(-1, *spec.in_shape).contiguous(memory_format=torch.channels_last)
                for a in (self.x, self.var)
            )
        self.parameters = sum(a.numel() for part in self.net.learned() for a in (part.w, part.b) if a is not None)

    @torch.inference_mode()
    def step(self) -> None:
        m, s = self.net.forward(self.x, self.var)
        gain = 1 / (s + 1)
        self.net.backward((self._y.view_as(m) - m) * gain, -gain, self._spec.inside)
        cap = 2.0 if self._spec.batch < 256 else 3.0  # of batches of 2 to 255 samples, and of more
        for part in self.net.learned():
            part.update(cap)
