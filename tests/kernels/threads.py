"""Random networks on one thread and on several: `python -m tests.kernels.threads --cases 2000 --seed 0`.

Products are made by one thread if they are small, so each case has a batch that is just large enough for several. There
are few inputs or outputs, or one sample, in many cases: then some of the threads have nothing to do.

A case goes by the numbers (seed, number of the case) alone: `--first 17 --cases 1` repeats case 17.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.kernels.cpu.products import _blas
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
from pytagi_ddp.nn.layers.activation import Activation
from tests.battery.layers import layers_of
from tests.kernels.scratch import bounded
from tests.nn.networks import assert_same, learned, random_batch, repeated_passes
from tests.nn.reference_activation import CANCELLING

THREADS = (2, 3, 4, 8, 16)
MOST = 1_500_000  # numbers of the input or output of a batch
SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64, 84, 100, 127, 130)
CHANNELS = (1, 2, 3, 7, 8, 16, 17, 32, 48)
WINOGRAD = ((3, 1, 1), (3, 1, 0), (5, 1, 2), (3, 2, 1), (3, 2, 0), (4, 2, 1))  # kernel, stride, padding
# Threads cut sums in other places, so that the same float32 terms are added in another order: in blocks of up to 512
# terms this changes results by about 1e-6 of the largest number of an array, in Winograd forms by 3e-6; a few layers
# may amplify it. A tile that is left out or made twice changes some results by as much as they are.
TOLERANCE = 5e-5
Layers = Callable[[], list[nn.BaseLayer]]


@dataclass(frozen=True)
class Case:
    """A network.

    Attributes:
        kind, name: its layer, and what a message says of it. make: makes its layers.
        terms: multiply-adds of a sample in a large product.
        exact: whether means behind the first layer shall be sums without rounding errors. Then all threads see the same
            side of a kink, and the same largest unit.
        tolerance: how far results may be apart, as a share of the largest number of an array.
    """

    kind: str
    name: str
    make: Layers
    terms: int
    exact: bool = False
    tolerance: float = TOLERANCE


class Draw:
    """Random choices."""

    def __init__(self, seed: int, number: int):
        self.rng = np.random.default_rng([seed, number])

    def one(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def sizes(self, n: int, choices: tuple[int, ...] = SIZES) -> list[int]:
        return [self.one(*choices) for _ in range(n)]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)


def dense(draw: Draw) -> Case:
    i, o = draw.sizes(2) if draw.chance(0.8) else [draw.one(710, 900, 1200), draw.one(705, 820)]
    bias = draw.chance(0.9)
    return Case("Linear", f"Linear({i},{o},bias={bias})", lambda: [nn.Linear(i, o, bias)], i * o)


def convolution(draw: Draw) -> Case:
    if draw.chance(0.5):
        (c, o), (k, s, p), side = draw.sizes(2, (16, 32, 48)), draw.one(*WINOGRAD), draw.one(4, 6, 7, 8, 12)
    else:
        (c, o), k, side = draw.sizes(2, CHANNELS), draw.one(1, 2, 3, 4, 5), draw.one(3, 4, 5, 7, 9, 14)
        k = min(k, side)
        s, p = draw.one(1, 1, 2), draw.one(0, k // 2)
    size = dict(kernel_size=k, stride=s, padding=p, padding_type=3, in_width=side, in_height=side)
    out = (side + 2 * p - k) // s + 1
    return Case("Conv2d", f"Conv2d({c},{o},{size})", lambda: [nn.Conv2d(c, o, **size)], c * o * k * k * out * out)


def transposed(draw: Draw) -> Case:
    k, s, p = draw.one((1, 1, 0), (2, 2, 0), (3, 1, 1), (3, 2, 0), (4, 2, 1), (5, 1, 2), (5, 2, 1))
    (c, o), side = draw.sizes(2, CHANNELS), draw.one(2, 3, 4, 7)
    size = dict(kernel_size=k, stride=s, padding=p, padding_type=1, in_width=side, in_height=side)
    name = f"ConvTranspose2d({c},{o},{size})"
    return Case("ConvTranspose2d", name, lambda: [nn.ConvTranspose2d(c, o, **size)], c * o * k * k * side * side)


def attention(draw: Draw) -> Case:
    heads, steps, width = draw.one(1, 2, 4), draw.one(1, 2, 5, 9, 40), draw.one(2, 4, 6, 16)
    keys = draw.one(*(n for n in (1, 2, 4) if heads % n == 0))
    causal, size = draw.chance(0.5), heads * width
    make = lambda: [nn.MultiheadAttention(size, heads, keys, seq_len=steps, causal=causal)]  # noqa: E731
    name = f"MultiheadAttention({size},{heads},{keys},seq_len={steps},causal={causal})"
    return Case("MultiheadAttention", name, make, steps * max(size * size, draw.one(1, steps * size)))


def recurrent(draw: Draw) -> Case:
    kind, steps = draw.one(nn.LSTM, nn.LSTM, nn.SLSTM), draw.one(1, 2, 6)
    i, o = draw.sizes(2, (1, 2, 3, 7, 8, 12, 20))
    head = [] if kind is nn.LSTM else [nn.SLinear]
    make = lambda: [kind(i, o, seq_len=steps), *(layer(steps * o, 2) for layer in head)]  # noqa: E731
    return Case(kind.__name__, f"{kind.__name__}({i},{o},seq_len={steps})", make, steps * 4 * o * (i + o))


def norm(draw: Draw) -> Case:
    kind, f = draw.one(nn.BatchNorm2d, nn.LayerNorm, nn.RMSNorm), draw.one(*SIZES[1:])
    make = lambda: [nn.Linear(3, f), kind(f) if kind is nn.BatchNorm2d else kind([f]), nn.Tanh()]  # noqa: E731
    return Case(kind.__name__, f"Linear(3,{f}), {kind.__name__}", make, 3 * f)


def pooling(draw: Draw) -> Case:
    kind, c, side = draw.one(nn.AvgPool2d, nn.MaxPool2d), draw.one(*CHANNELS), draw.one(4, 6, 9)
    k, s = draw.one(2, 3), draw.one(1, 2)
    make = lambda: [  # noqa: E731
        nn.Conv2d(1, c, 3, padding=1, in_width=side, in_height=side),
        kind(k, s, 1, 3),
    ]
    name = f"Conv2d(1,{c},3), {kind.__name__}({k},{s}), {side} pixels"
    return Case(kind.__name__, name, make, 9 * c * side**2, exact=True)


def activation(draw: Draw) -> Case:
    kind, f = draw.one(*(kind for kind in layers_of(nn) if issubclass(kind, Activation))), draw.one(2, 6, 16, 34)
    tolerance = 10 * TOLERANCE if kind.__name__ in CANCELLING else TOLERANCE
    make = lambda: [nn.Linear(3, f), kind(), nn.Linear(f, 5)]  # noqa: E731
    return Case(kind.__name__, f"Linear(3,{f}), {kind.__name__}, Linear({f},5)", make, 5 * f, True, tolerance)


def embedding(draw: Draw) -> Case:
    f, steps = draw.one(1, 3, 16, 17, 40), draw.one(1, 4)
    make = lambda: [nn.Embedding(7, f, steps), nn.Linear(f, 3)]  # noqa: E731
    return Case("Embedding", f"Embedding(7,{f},{steps}), Linear({f},3)", make, 3 * f * steps)


def encoding(draw: Draw) -> Case:
    inputs, bins = draw.one(1, 3, 17), draw.one(1, 2, 16)
    edges = [[*range(bins + 1)], None] * inputs
    make = lambda: [nn.PiecewiseLinearEncoding(edges), nn.Linear((bins + 1) * inputs, 3)]  # noqa: E731
    name = f"PiecewiseLinearEncoding of {2 * inputs} inputs, {bins} bins"
    return Case("PiecewiseLinearEncoding", name, make, 3 * (bins + 1) * inputs)


def block(draw: Draw) -> Case:
    c, side = draw.one(3, 8, 16, 17), draw.one(4, 6)
    conv = lambda: nn.Conv2d(c, c, 3, padding=1)  # noqa: E731
    make = lambda: [  # noqa: E731
        nn.Conv2d(1, c, 3, padding=1, in_width=side, in_height=side),
        nn.ResNetBlock(nn.LayerBlock(conv(), nn.BatchNorm2d(c), nn.Tanh(), conv()), nn.Conv2d(c, c, 1)),
        nn.Tanh(),
    ]
    return Case("ResNetBlock", f"ResNetBlock of {c} channels, {side} pixels", make, 9 * c * c * side**2)


PRODUCTS = (dense, dense, convolution, convolution, transposed)  # no loops that Numba would compile for threads
KINDS = (*PRODUCTS, attention, recurrent, norm, pooling, activation, embedding, encoding, block)


def run_case(seed: int, number: int, kinds: tuple[Callable[[Draw], Case], ...] = KINDS) -> str:
    """Compares the case on one thread and on several. Returns its kind, or raises an AssertionError with its sizes."""
    draw = Draw(seed, number)
    case = draw.one(*kinds)(draw)
    return compare(case, draw, draw.one(*THREADS))


def compare(case: Case, draw: Draw, threads: int) -> str:
    """Compares a case on one thread and on so many; draws the batch."""
    precision = "mixed" if draw.chance(0.1) and _blas.why_not_mixed() is None else "float32"
    before = get_threads()

    def network() -> nn.Sequential:
        manual_seed(1)
        net = nn.Sequential(*case.make(), precision=precision)
        if case.exact:
            first = learned(net)[0]
            first.mu_w, first.mu_b = np.round(4 * first.mu_w) / 4, np.round(4 * first.mu_b) / 4
        return net

    net = network()
    batch = -(-_blas.shared_from // case.terms) * draw.one(1, 1, 1, 2) + draw.one(0, 0, 1, 3)
    batch = max(1, 2 if net.arena.running else 1, min(batch, MOST // max(net.in_shape.size, net.out_shape.size)))
    x, *others = random_batch(net, batch, int(draw.rng.integers(1000)), with_variance=draw.chance(0.5))
    if case.exact:
        x = np.round(4 * x) / 4
    where = f"{case.name}, {precision}, batch {batch}, {threads} threads"
    try:
        set_threads(1)
        expected = repeated_passes(net, x, *others)
        set_threads(threads)
        with bounded():
            actual = repeated_passes(network(), x, *others)
        # Factors near the middle between two numbers of bfloat16 are rounded either way after different last bits.
        assert_same(actual, expected, max(case.tolerance, 2.0**-8) if precision == "mixed" else case.tolerance)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from None
    finally:
        set_threads(before)
    return case.kind


def main() -> int:
    """Prints how many cases of each kind there were, or the first one that differs; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.threads", description=__doc__)
    parser.add_argument("--cases", type=int, default=500, help="how many (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=np.inf, help="end after the case in which these have passed")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    args = parser.parse_args()
    begin, kinds = time.monotonic(), Counter[str]()
    for number in range(args.first, args.first + args.cases):
        if time.monotonic() - begin > args.seconds:
            break
        try:
            kinds[run_case(args.seed, number)] += 1
        except Exception:
            traceback.print_exc()
            print(f"case {number} of seed {args.seed} fails: --seed {args.seed} --first {number} --cases 1", flush=True)
            return 1
    listed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    print(f"{kinds.total()} cases, the same on one thread and on several, {time.monotonic() - begin:.0f} s: {listed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
