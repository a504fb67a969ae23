"""Numbers on the wire: float32 as bfloat16."""

import numpy as np
from numba import prange

from pytagi_ddp.kernels.cpu.compile import loop

ROUND, ODD, SHIFT = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
EXPONENT, QUIET_NAN = np.uint32(0x7F800000), np.uint16(0x7FC0)
SIGNLESS = np.uint32(0x7FFFFFFF)


@loop
def encode_bfloat16(bits, out):
    """out = the upper half of float32, given as uint32, rounded to nearest, ties to even; NaN stays NaN."""
    for i in prange(bits.size):
        u = bits[i]
        rounded = np.uint16((u + ROUND + ((u >> SHIFT) & ODD)) >> SHIFT)
        out[i] = QUIET_NAN if (u & SIGNLESS) > EXPONENT else rounded


@loop
def decode_bfloat16(half, out_bits):
    """The reverse of `encode_bfloat16`."""
    for i in prange(half.size):
        out_bits[i] = np.uint32(half[i]) << SHIFT
