"""Initial priors: means drawn around zero, constant variances.

A parameter starts as a Gaussian with a random mean and a known variance

    mu ~ N(0, scale^2),    var = (gain * scale)^2

where `scale` is a standard deviation that follows from the size of the layer (`fan_scale`). The gain changes the
variance but not the drawn mean, and biases have the scale of their layer's weights.

All draws come from one generator, the 32-bit Mersenne Twister with Marsaglia's polar method in float32, in
the order in which pytagi consumes it: a seed gives the initial parameters that pytagi gives. The generator is
seeded from the operating system until `manual_seed` is called.
"""

from __future__ import annotations

import math
import os
from contextvars import ContextVar
from typing import Any

import numpy as np

from pytagi_ddp.kernels import get_kernels
from pytagi_ddp.nn.core.deferred import is_deferring
from pytagi_ddp.validate import as_integers, as_numbers

INIT_METHODS = ("He", "he", "Xavier", "xavier")
MOST_PARAMETERS = (1 << 31) - 1  # of a rank: steps count them in 32 bits
LARGEST_GAIN = 1e18

# Pairs of uniforms per call: few enough for the cache, and enough to hide the overhead of a call.
_BLOCK_PAIRS = 1 << 14


class _Stream:
    """A random stream; `seeded` says whether the program has chosen it."""

    def __init__(self) -> None:
        self.seeded = False
        self.renew()

    def renew(self) -> None:
        # The legacy class is the one whose integer seeding is that of the C++ standard's mt19937.
        self.random = np.random.RandomState()


_stream: ContextVar[_Stream] = ContextVar("stream", default=_Stream())  # noqa: B039


def _renew_in_child() -> None:
    """Children of a process without a seed would all draw the same values."""
    if not _stream.get().seeded:
        _stream.get().renew()  # another thread may hold the lock of the present generator


os.register_at_fork(after_in_child=_renew_in_child)


def manual_seed(seed: int) -> None:
    """Seed the generator of all initial parameters.

    All threads draw from this one generator, so networks that several threads build at once differ from run to run.
    Build them in one thread, or in processes with a seed each. A process that is forked from one without a seed draws
    values of its own; with a seed, all of them draw the same values until they call `manual_seed`.

    Args:
        seed: An integer in [-2**31, 2**32); a negative one means its 32-bit two's complement.

    Raises:
        TypeError: `seed` is not an integer.
        ValueError: `seed` does not fit into 32 bits.
    """
    (value,) = as_integers("manual_seed", -(2**31), 2**32 - 1, seed=seed)
    stream = _stream.get()
    stream.random.seed(value % 2**32)
    stream.seeded = True


def get_state() -> dict[str, Any]:
    """Return the generator's state, a picklable dictionary for `set_state`."""
    return _stream.get().random.get_state(legacy=False)


def set_state(state: dict[str, Any]) -> None:
    """Continue the random stream from a state that `get_state` returned.

    Raises:
        TypeError, ValueError: `state` is not the state of a 32-bit Mersenne Twister.
    """
    stream = _stream.get()
    stream.random.set_state(state)
    stream.seeded = True


def use_own_generator() -> None:
    """From now on, this thread draws from its own copy of the generator."""
    own = _Stream()
    own.random.set_state(get_state())
    own.seeded = _stream.get().seeded
    _stream.set(own)


def normal(n: int, scale: float | np.floating) -> np.ndarray:
    """`n` values of N(0, scale^2) from the stream, in float32.

    Marsaglia & Bray (1964): for x, y uniform on (-1, 1) with 0 < r2 = x^2 + y^2 <= 1, the two values y f, x f with
    f = sqrt(-2 ln(r2) / r2) are independent standard normals. Every call starts with a fresh pair: the second value of
    the last pair is dropped when `n` is odd.
    """
    if is_deferring():
        return np.zeros(n, np.float32)  # only their number matters
    get_kernels("cpu")  # here, so that `import pytagi_ddp` stays fast
    from pytagi_ddp.kernels.cpu.layers.prior import polar_pairs

    pairs = np.empty(((n + 1) // 2, 2), np.float32)
    filled = 0
    while filled < len(pairs):
        words = _stream.get().random.randint(0, 2**32, size=2 * min(len(pairs) - filled, _BLOCK_PAIRS), dtype=np.uint32)
        filled += polar_pairs(words, np.float32(scale), pairs[filled:])
    return pairs.reshape(-1)[:n]


def fan_scale(fan_in: int, fan_out: int, method: str) -> np.float32:
    """The standard deviation of the initial means. He: sqrt(1 / fan_in). Xavier: sqrt(2 / (fan_in + fan_out)).

    Args:
        fan_in: inputs that one output sums over. fan_out: outputs that one input contributes to.
        method: "He" or "Xavier", capitalised or not.

    Raises:
        ValueError: unknown `method`, or a fan below 1.
    """
    if method not in INIT_METHODS:
        raise ValueError(f"unknown init_method {method!r}; use one of {', '.join(map(repr, INIT_METHODS))}")
    if fan_in < 1 or fan_out < 1:
        raise ValueError(f"fan_in and fan_out must be at least 1, got {fan_in} and {fan_out}")
    variance = 1 / fan_in if method.lower() == "he" else 2 / (fan_in + fan_out)
    # pytagi rounds the variance to float32 before the root.
    return np.float32(math.sqrt(np.float32(variance)))


def check_count(what: str, parameters: int) -> None:
    """Raises ValueError if there are more parameters in one memory than the kernels can count."""
    if parameters > MOST_PARAMETERS:
        raise ValueError(
            f"{what} has {parameters} parameters, and at most {MOST_PARAMETERS} fit on one rank: make it smaller, or "
            "make the network inside nn.deferred_init() and share it among more ranks by FSDPSequential"
        )


def check_gains(gain_weight: float, gain_bias: float) -> None:
    """Raises ValueError if a gain is negative, or its square not finite in float32; TypeError if it is not a number."""
    as_numbers("the prior", f"[0, {LARGEST_GAIN:g}]", gain_weight=gain_weight, gain_bias=gain_bias)


def gaussian_prior(
    n_weights: int,
    n_biases: int,
    fan_in: int,
    fan_out: int,
    gain_w: float,
    gain_b: float,
    method: str,
    parts: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(mu_w, var_w, mu_b, var_b) of a layer, float32, drawn from the prior: weights, then biases.

    Means ~ N(0, scale^2) with `scale` of `fan_scale(fan_in, fan_out, method)`, for weights and biases; variances are
    (gain_w scale)^2 and (gain_b scale)^2.

    Args:
        parts: equal parts (gates) of the weights, and of the biases, that are drawn one by one; see `normal` for what
            that means where a part has an odd number of values.

    Raises:
        ValueError: unknown method, a fan below 1, a gain that is not finite, or too many values.
    """
    check_gains(gain_w, gain_b)
    check_count("a layer", n_weights + n_biases)
    scale = fan_scale(fan_in, fan_out, method)
    mu_w, mu_b = (np.concatenate([normal(n // parts, scale) for _ in range(parts)]) for n in (n_weights, n_biases))
    var_w, var_b = ((np.float32(gain) * scale) ** 2 for gain in (gain_w, gain_b))
    return mu_w, np.full_like(mu_w, var_w), mu_b, np.full_like(mu_b, var_b)
