"""Small networks for data-parallel tests, batches for them, and what is asked of them afterwards."""

import hashlib

import numpy as np

from pytagi_ddp import nn
from tests.nn.own_layers import own_layers

IMAGE = {"in_width": 6, "in_height": 6}


def dense(activation):
    return nn.Sequential(nn.Linear(8, 12), activation, nn.Linear(12, 4))


def conv(*middle, features):
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, **IMAGE), nn.ReLU(), *middle, nn.Linear(features, 4))


def residual(shortcut):
    strided = {} if shortcut is None else {"stride": 2, "padding_type": 2}
    main = nn.LayerBlock(nn.Conv2d(3, 3, 3, padding=1, **strided), nn.MixtureReLU(), nn.Conv2d(3, 3, 3, padding=1))
    return conv(nn.ResNetBlock(main, shortcut), features=27 if shortcut else 108)


def branch():
    return nn.LayerBlock(nn.Conv2d(3, 3, 2, stride=2), nn.MixtureReLU())


WITHOUT_BATCH_NORM = {
    "Linear": lambda: nn.Sequential(nn.Linear(8, 4)),
    "no bias": lambda: nn.Sequential(nn.Linear(8, 6, bias=False), nn.ReLU(), nn.Linear(6, 4, bias=False)),
    "LayerNorm": lambda: nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.LayerNorm([12]), nn.Linear(12, 4)),
    "Embedding": lambda: nn.Sequential(nn.Embedding(9, 4, 3), nn.RMSNorm(4), nn.Linear(4, 2)),
    "PiecewiseLinearEncoding": lambda: nn.Sequential(
        nn.PiecewiseLinearEncoding([[-1, 0, 1], *[None] * 7]), nn.Linear(9, 4)
    ),
    "MultiheadAttention": lambda: nn.Sequential(nn.MultiheadAttention(4, 2, seq_len=3), nn.Linear(4, 2)),
    "RMSNorm": lambda: nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.RMSNorm([12]), nn.Linear(12, 4)),
    "LSTM": lambda: nn.Sequential(nn.LSTM(2, 5, False, 4), nn.LSTM(5, 4, True, 4), nn.Linear(4, 4)),
    "SLSTM": lambda: nn.Sequential(nn.SLSTM(2, 5, False, 4), nn.SLSTM(5, 4, True, 4), nn.SLinear(4, 4)),
    "each time step": lambda: nn.Sequential(nn.LSTM(2, 5, False, 3), nn.Linear(5, 4), nn.Tanh(), nn.Linear(12, 4)),
    "Conv2d": lambda: conv(features=108),
    "ConvTranspose2d": lambda: conv(nn.ConvTranspose2d(3, 2, 3, stride=2, padding_type=2), features=338),
    "AvgPool2d": lambda: conv(nn.AvgPool2d(2), features=27),
    "MaxPool2d": lambda: conv(nn.MaxPool2d(2, 2), features=27),
    "Pixels": lambda: conv(nn.Pixels(), features=108),
    "LayerNorm of an image": lambda: conv(nn.LayerNorm([3, 6, 6]), features=108),
    "LayerBlock": lambda: conv(nn.LayerBlock(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()), features=108),
    "LayerBlock of one": lambda: conv(nn.LayerBlock(nn.Conv2d(3, 3, 3, padding=1)), features=108),
    "ResNetBlock": lambda: residual(None),
    "ResNetBlock with shortcut": lambda: residual(branch()),
    "Parallel": lambda: conv(
        nn.Parallel(nn.Conv2d(3, 2, 3, padding=1), [nn.MixtureReLU(), nn.Conv2d(3, 1, 1)], None, merge="concat"),
        nn.Parallel(nn.Conv2d(4, 2, 1), None, split=[4, 2]),
        features=72,
    ),
    "layers of somebody's own": own_layers,
} | {
    kind.__name__: lambda kind=kind: dense(kind())
    for kind in nn.Activation.__subclasses__()
    if kind.__name__ in nn.__all__  # none of somebody's own
}


def with_batch_norm(blocks: int = 1):
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, **IMAGE),
        nn.MixtureReLU(),
        nn.BatchNorm2d(3),
        *(
            nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(3, 3, 3, padding=1), nn.MixtureReLU(), nn.BatchNorm2d(3)))
            for _ in range(blocks)
        ),
        nn.Linear(108, 4),
    )


def batch(net, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and observations, the same on every rank."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, net.in_shape.size)).astype(np.float32)
    if isinstance(net.layers[0], nn.Embedding):
        x = rng.integers(0, net.layers[0].num_embeddings, x.shape).astype(np.float32)
    return x, rng.normal(size=(samples, net.out_shape.size)).astype(np.float32)


def difference(a: dict, b: dict) -> float:
    """Largest difference of two state dicts, relative to the largest value of the array it is in."""
    assert a.keys() == b.keys()
    pairs = [(p, q) for key in a for p, q in zip(a[key], b[key], strict=True) if p.size]
    return max(float(np.abs(p - q).max() / np.abs(p).max()) for p, q in pairs)


def digest(net) -> str:
    """What tells the parameters and statistics of a DDPSequential from others."""
    arena = net.model.arena
    return hashlib.sha256(arena.theta).hexdigest() + hashlib.sha256(arena.statistics).hexdigest()


def same_everywhere(net) -> bool:
    """Whether the replicas of a DDPSequential are equal, to the last bit. Collective."""
    return len(set(net.communicator.all_gather_object(digest(net)))) == 1


def shard(sizes: list[int], rank: int) -> slice:
    """Rows of a rank where rank r has ``sizes[r]`` of them."""
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def shares(numbers: list, ranks: int) -> list:
    """One of the numbers for each rank, over and over."""
    return [numbers[rank % len(numbers)] for rank in range(ranks)]


def error_of(call, *kinds: type[Exception]) -> str:
    """What a call says that is refused with an error of one of these kinds; nothing if it is accepted."""
    try:
        call()
    except kinds as error:
        return str(error)
    return ""
