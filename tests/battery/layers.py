"""Small networks for every layer of `pytagi_ddp.nn`, with the layer in its usual places and unusual settings."""

import inspect
from collections.abc import Callable
from types import ModuleType

from pytagi_ddp import nn
from pytagi_ddp.nn.layers.activation import Activation
from tests.battery.example import Example
from tests.nn.reference_activation import CANCELLING

Layers = Callable[[], list[nn.BaseLayer]]


def stem(**options) -> nn.Conv2d:
    """A convolution that a network of images begins with: from 2x4x6 to 3x2x4."""
    return nn.Conv2d(2, 3, 3, in_width=6, in_height=4, **options)


def conv(c_in: int, c_out: int, **options) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, 3, padding=1, **options)


def residual(*layers: nn.BaseLayer, shortcut: nn.BaseLayer | None = None) -> nn.ResNetBlock:
    return nn.ResNetBlock(nn.LayerBlock(*layers), shortcut)


def of_pooling(pool: type) -> dict[str, Layers]:
    return {
        "default stride": lambda: [stem(), pool(2), nn.Linear(6 if pool is nn.AvgPool2d else 9, 2)],
        "strided": lambda: [stem(), nn.ReLU(), pool(2, 2), conv(3, 2)],
        "padded right and bottom": lambda: [stem(), pool(3, 2, 1, 2), nn.Tanh(), nn.Linear(6, 2)],
        "with pixels left out": lambda: [stem(), pool(3, 2, 1, 3), nn.Linear(6, 2)],
        "in a block": lambda: [stem(), nn.ReLU(), residual(conv(3, 3), pool(3, 1, 1, 1)), conv(3, 1)],
    }


EXAMPLES: dict[type, dict[str, Layers]] = {
    nn.Linear: {
        "dense": lambda: [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)],
        "among activations": lambda: [nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Softplus()],
        "after an image": lambda: [stem(), nn.ReLU(), nn.Linear(24, 5), nn.Linear(5, 2)],
        "in a block": lambda: [nn.Linear(4, 5), residual(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 5)), nn.Linear(5, 2)],
    },
    nn.Conv2d: {
        "image": lambda: [nn.Conv2d(2, 3, 2, in_width=5, in_height=4), nn.MixtureReLU(), conv(3, 2)],
        "strided, padded right and bottom": lambda: [
            stem(bias=False),
            nn.ReLU(),
            conv(3, 4, bias=False, stride=2, padding_type=2),
            nn.Linear(8, 2),
        ],
        "strided, with pixels left out": lambda: [
            nn.Conv2d(2, 3, 3, stride=2, padding=1, padding_type=3, in_width=6, in_height=4),
            nn.ReLU(),
            nn.Linear(18, 2),
        ],
        "strided pixels": lambda: [nn.Conv2d(2, 3, 1, stride=2, padding_type=3, in_width=4, in_height=4), nn.ReLU()],
        "after a dense layer": lambda: [nn.Linear(4, 24), nn.Tanh(), nn.Conv2d(2, 3, 2, in_width=3, in_height=4)],
        "in a block": lambda: [stem(), nn.ReLU(), residual(conv(3, 2), nn.ReLU(), conv(2, 3)), nn.Linear(24, 2)],
    },
    nn.ConvTranspose2d: {
        "strided": lambda: [
            stem(),
            nn.MixtureReLU(),
            nn.ConvTranspose2d(3, 2, 4, stride=2, padding=1, in_width=4, in_height=2),
        ],
        "cut at the right and bottom, gaps": lambda: [
            nn.Linear(4, 12),
            nn.Tanh(),
            nn.ConvTranspose2d(3, 2, 3, False, 2, 1, 2, in_width=2, in_height=2),
            nn.ReLU(),
            nn.ConvTranspose2d(2, 1, 1, stride=2),
            nn.Linear(49, 2),
        ],
        "image, first": lambda: [nn.ConvTranspose2d(2, 3, 2, in_width=3, in_height=2), nn.ReLU(), nn.Linear(36, 2)],
        "in a block": lambda: [stem(), residual(nn.ConvTranspose2d(3, 3, 3, padding=1), nn.ReLU()), nn.Linear(24, 2)],
    },
    nn.AvgPool2d: of_pooling(nn.AvgPool2d),
    nn.MaxPool2d: of_pooling(nn.MaxPool2d),
    nn.Pixels: {
        "last": lambda: [stem(), nn.ReLU(), conv(3, 2), nn.Pixels()],
        "after an activation": lambda: [stem(), nn.Tanh(), nn.Pixels(), nn.Linear(3, 2)],
        "after a dense layer": lambda: [nn.Linear(4, 24), nn.Conv2d(3, 2, 1, in_width=4, in_height=2), nn.Pixels()],
        "in branches": lambda: [
            stem(),
            nn.Parallel([conv(3, 2), nn.ReLU(), nn.Pixels()], [nn.Tanh(), nn.Pixels()], merge="concat"),
            nn.Linear(5, 2),
        ],
        "before Remax": lambda: [stem(), nn.ReLU(), conv(3, 4), nn.Pixels(), nn.Remax()],
    },
    nn.BatchNorm2d: {
        "units": lambda: [nn.Linear(4, 5), nn.BatchNorm2d(5, eps=1e-2, momentum=0.5), nn.ReLU(), nn.Linear(5, 2)],
        "image": lambda: [
            stem(),
            nn.MixtureReLU(),
            nn.BatchNorm2d(3, bias=False),
            nn.MaxPool2d(2, 2),
            nn.Linear(6, 2),
        ],
        "in a block": lambda: [
            stem(bias=False),
            residual(conv(3, 3), nn.ReLU(), nn.BatchNorm2d(3), shortcut=nn.BatchNorm2d(3)),
            nn.Linear(24, 2),
        ],
        "through statistics": lambda: [
            stem(bias=False),
            nn.BatchNorm2d(3, bias=False, through_statistics=True),
            residual(conv(3, 3), nn.MixtureReLU(), nn.BatchNorm2d(3, through_statistics=True)),
            nn.Linear(24, 2),
        ],
        "through statistics, units": lambda: [  # no bias in front: its deltas would be 0 but for rounding errors
            nn.Linear(4, 5, bias=False),
            nn.BatchNorm2d(5, through_statistics=True),
            nn.ReLU(),
            nn.Linear(5, 2),
        ],
    },
    nn.LayerNorm: {
        "units": lambda: [nn.Linear(4, 5), nn.LayerNorm([5], eps=1e-2), nn.ReLU(), nn.Linear(5, 2)],
        "image": lambda: [stem(), nn.MixtureReLU(), nn.LayerNorm([3, 2, 4], bias=False), nn.Linear(24, 2)],
        "in a block": lambda: [
            nn.Linear(4, 6),
            nn.Tanh(),
            residual(nn.LayerNorm([6]), nn.Linear(6, 6)),
            nn.Linear(6, 2),
        ],
    },
    nn.MultiheadAttention: {
        "causal, rotary": lambda: [nn.MultiheadAttention(4, 2, seq_len=3), nn.Tanh(), nn.Linear(4, 2)],
        "all steps, shared keys": lambda: [
            nn.Linear(5, 24),
            nn.Tanh(),
            nn.MultiheadAttention(8, 4, 2, False, causal=False, use_rope=False, out_proj=False),
            nn.Linear(24, 2),
        ],
        "in a block": lambda: [
            nn.Embedding(5, 6, 4),
            residual(nn.RMSNorm(6), nn.MultiheadAttention(6, 3, 1, rope_theta=50.0)),
            nn.Linear(6, 2),
        ],
    },
    nn.Embedding: {
        "positions": lambda: [nn.Embedding(5, 4, 3, padding_idx=2), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)],
        "flat sample": lambda: [nn.Embedding(7, 2, 3), nn.Tanh(), nn.Linear(6, 2)],
        "in a block": lambda: [nn.LayerBlock(nn.Embedding(4, 3, 2), nn.RMSNorm(3)), nn.Linear(3, 2)],
    },
    nn.PiecewiseLinearEncoding: {
        "first": lambda: [
            nn.PiecewiseLinearEncoding([[-1, 0, 0.5, 2], None, [-0.3, 0.4], [-2, 0, 1]]),
            nn.Linear(7, 5),
            nn.ReLU(),
            nn.Linear(5, 2),
        ],
        "after activations": lambda: [
            nn.Linear(4, 3),
            nn.Tanh(),
            nn.PiecewiseLinearEncoding([[-1, 0, 1], [-0.5, 0, 0.2, 0.5], None], [[(-1, 0), (0.5, 2)], None, [(0, -3)]]),
            nn.Linear(6, 2),
        ],
        "values": lambda: [
            nn.PiecewiseLinearEncoding([None, [-1, 0, 1]], None, [[0, 1, 2], [-1, 1]], 1.5),
            nn.Linear(8, 3),
            nn.ReLU(),
            nn.PiecewiseLinearEncoding([None, [-1, 1], [0, 0.2, 0.5]], values=[None, [0], None]),
            nn.Linear(5, 2),
        ],
        "each time step": lambda: [
            nn.LSTM(2, 3, seq_len=3),
            nn.PiecewiseLinearEncoding([[-0.2, 0, 0.2], None, [-1, 0, 1]]),
            nn.Linear(5, 2),
        ],
        "in a block": lambda: [
            nn.Linear(4, 3),
            residual(nn.PiecewiseLinearEncoding([[-1, 0, 1], [-1, 1], [-1, 0, 2]]), nn.Linear(5, 3)),
            nn.Linear(3, 2),
        ],
    },
    nn.RMSNorm: {
        "units": lambda: [nn.Linear(4, 5), nn.RMSNorm([5], eps=1e-2), nn.ReLU(), nn.Linear(5, 2)],
        "image": lambda: [stem(), nn.MixtureReLU(), nn.RMSNorm([24]), nn.Linear(24, 2)],
        "in a block": lambda: [nn.Linear(4, 6), nn.Tanh(), residual(nn.RMSNorm(6), nn.Linear(6, 6)), nn.Linear(6, 2)],
    },
    nn.LSTM: {
        "stacked": lambda: [nn.LSTM(2, 3, False, 4), nn.LSTM(3, 4, True, 4, bias=False), nn.Linear(4, 2)],
        "each time step given": lambda: [
            nn.LSTM(2, 3, seq_len=3, cell_path=False),
            nn.Tanh(),
            nn.Linear(3, 4),
            nn.Tanh(),
            nn.LSTM(4, 2, seq_len=3),
        ],
        "not recurrent": lambda: [nn.LSTM(2, 3, seq_len=3, recurrent=False), nn.ReLU(), nn.Linear(9, 2)],
        "one time step": lambda: [nn.LSTM(3, 4), nn.LSTM(4, 3), nn.Linear(3, 2)],
        "in a block": lambda: [nn.LSTM(2, 3, seq_len=3), residual(nn.LSTM(3, 3, seq_len=3)), nn.Linear(9, 2)],
    },
    nn.SLSTM: {
        "one time step": lambda: [nn.SLSTM(3, 4), nn.SLSTM(4, 3, bias=False), nn.SLinear(3, 2)],
        "several time steps": lambda: [
            nn.SLSTM(2, 3, seq_len=3, cell_path=False),
            nn.SLSTM(3, 3, seq_len=3, last_timestep=True),
            nn.SLinear(3, 2),
        ],
        "not recurrent": lambda: [nn.SLSTM(2, 3, seq_len=3, recurrent=False), nn.SLinear(9, 2)],
    },
    nn.SLinear: {"after an SLSTM": lambda: [nn.SLSTM(3, 4), nn.SLinear(4, 3, bias=False), nn.SLinear(3, 2)]},
    nn.LayerBlock: {
        "dense": lambda: [nn.LayerBlock(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 2)],
        "image, first": lambda: [nn.LayerBlock(stem(), nn.ReLU(), nn.AvgPool2d(2)), nn.LayerBlock(nn.Linear(6, 2))],
        "nested": lambda: [nn.Linear(4, 5), nn.LayerBlock(nn.Tanh(), nn.LayerBlock(nn.Linear(5, 3), nn.Sigmoid()))],
    },
    nn.ResNetBlock: {
        "dense": lambda: [nn.Linear(4, 5), nn.ReLU(), residual(nn.Linear(5, 5), nn.Tanh()), nn.Linear(5, 2)],
        "image, strided": lambda: [
            stem(),
            nn.MixtureReLU(),
            residual(conv(3, 4, stride=2, padding_type=2), nn.MixtureReLU(), shortcut=nn.Conv2d(3, 4, 2, stride=2)),
            nn.Linear(8, 2),
        ],
        "with batch norms": lambda: [
            stem(),
            residual(conv(3, 3), nn.MixtureReLU(), nn.BatchNorm2d(3)),
            residual(
                conv(3, 4, stride=2, padding_type=2),
                nn.BatchNorm2d(4),
                shortcut=nn.LayerBlock(nn.Conv2d(3, 4, 2, stride=2), nn.BatchNorm2d(4)),
            ),
            nn.Linear(8, 2),
        ],
        "dense branch beside an image": lambda: [
            stem(),
            nn.Tanh(),
            residual(nn.Linear(24, 4), nn.ReLU(), nn.Linear(4, 24)),
            conv(3, 1),
        ],
    },
    nn.Parallel: {
        "sum of three, the identity in front": lambda: [
            nn.Linear(4, 5),
            nn.Tanh(),
            nn.Parallel(None, nn.Linear(5, 5), nn.LayerBlock(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 5), nn.Tanh())),
            nn.Linear(5, 2),
        ],
        "U-Net": lambda: [
            stem(),
            nn.MixtureReLU(),
            nn.Parallel(
                nn.LayerBlock(
                    nn.Conv2d(3, 4, 2, stride=2),
                    nn.MixtureReLU(),
                    nn.ConvTranspose2d(4, 3, 2, stride=2),
                ),
                None,
                merge="concat",
            ),
            conv(6, 2),
        ],
        "Inception": lambda: [
            stem(),
            nn.Parallel(
                nn.Conv2d(3, 2, 1),
                [conv(3, 2), nn.ReLU(), conv(2, 3), nn.BatchNorm2d(3)],
                [nn.AvgPool2d(3, 1, 1, 1), nn.Conv2d(3, 1, 1), nn.Tanh()],
                merge="concat",
            ),
            nn.Linear(48, 2),
        ],
        "DenseNet, at the ends": lambda: [
            nn.Parallel(None, nn.LayerBlock(nn.Linear(3, 2), nn.ReLU()), merge="concat"),
            nn.LayerBlock(nn.Parallel(None, nn.Linear(5, 3), merge="concat"), nn.Sigmoid()),
            nn.Parallel(nn.Linear(8, 2), None, merge="concat"),
        ],
        "two inputs": lambda: [
            nn.Parallel([nn.Linear(3, 4), nn.ReLU()], nn.Linear(2, 4), None, merge="concat", split=[3, 2, 1]),
            nn.Linear(9, 4),
            nn.Parallel(nn.Tanh(), nn.Linear(2, 2), split=[2, 2]),
        ],
        "channels apart": lambda: [
            stem(),
            nn.Tanh(),
            nn.Parallel(conv(1, 2), None, merge="concat", split=[1, 2]),
            nn.Parallel(None, conv(2, 2), split=[2, 2]),
            nn.Linear(16, 2),
        ],
        "sequences": lambda: [
            nn.LSTM(2, 4, seq_len=3),
            nn.Parallel(None, nn.Linear(4, 2), nn.LSTM(4, 1, seq_len=3), merge="concat"),
            nn.Parallel(nn.LSTM(5, 3, seq_len=3), nn.Linear(2, 3), split=[5, 2]),
            nn.Linear(9, 2),
        ],
    },
}


def of_activation(kind: type) -> dict[str, Layers]:
    """Networks for any activation, so that a new one needs no entry in `EXAMPLES`."""
    settings = dict.fromkeys(kind.formula_settings, 0.3)
    return {
        "between dense layers": lambda: [nn.Linear(5, 6), kind(**settings), nn.Linear(6, 3)],
        "at the end": lambda: [nn.Linear(5, 6), kind()],
        "on an image": lambda: [stem(), kind(**settings), conv(3, 2), nn.Linear(16, 2)],
        "in a block": lambda: [nn.Linear(4, 6), nn.Tanh(), residual(nn.Linear(6, 6), kind()), nn.Linear(6, 2)],
    }


BASES = nn.BaseLayer, nn.Activation  # they compute nothing themselves


def layers_of(module: ModuleType) -> list[type]:
    """The layers among the public names of `module`."""
    found = (getattr(module, name) for name in module.__all__)
    return [kind for kind in found if inspect.isclass(kind) and issubclass(kind, nn.BaseLayer) and kind not in BASES]


def examples_of(kind: type) -> dict[str, Example]:
    """The examples of a layer, by a description of its place in the network.

    Raises:
        LookupError: there is no example.
    """
    lists = EXAMPLES.get(kind) or (of_activation(kind) if issubclass(kind, Activation) else None)
    if not lists:
        raise LookupError(
            f"{kind.__name__} has no example: add to EXAMPLES in tests/battery/layers.py a few lists of layers "
            "that have it where it belongs: among dense layers, on an image, in a block; with each setting at an "
            "unusual value once"
        )
    cancels = {"tolerance": 2e-4, "rounding": 5e-5} if kind.__name__ in CANCELLING else {}
    return {name: Example(lambda make=make: nn.Sequential(*make()), **cancels) for name, make in lists.items()}
