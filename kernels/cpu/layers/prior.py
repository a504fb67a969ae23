"""Random normal numbers for the initial means, drawn on the host as in pytagi."""

import math

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import loop

ONE, TWO, MINUS_TWO = np.float32(1), np.float32(2), np.float32(-2)
PER_WORD = np.float32(2.0**-32)
BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


@loop("w _ p2", lambda n: n.p >= n.w // 2, fastmath=set(), flush=False)
def polar_pairs(words, scale, pairs):
    """Writes pairs of samples from N(0, scale^2) to the start of `pairs`, and returns the number of pairs.

    Marsaglia's polar method: two random words give a point of the square (-1, 1)^2, and points outside the unit circle
    are dropped.
    """
    accepted = 0
    for i in range(words.size // 2):
        # A word close to 2**32 rounds up to 1, which is outside [0, 1).
        x = TWO * min(np.float32(words[2 * i]) * PER_WORD, BELOW_ONE) - ONE
        y = TWO * min(np.float32(words[2 * i + 1]) * PER_WORD, BELOW_ONE) - ONE
        radius2 = x * x + y * y
        if 0 < radius2 <= ONE:
            factor = np.float32(math.sqrt(MINUS_TWO * math.log(radius2) / radius2))  # the C library's logf
            pairs[accepted, 0] = y * factor * scale
            pairs[accepted, 1] = x * factor * scale
            accepted += 1
    return accepted
