"""Compression for communication: float32 to bfloat16, or to float16 with a scale for every block of numbers.

Encoded numbers are uint16. Rounding is to nearest, ties to even. Infinity and NaN are kept, and subnormal numbers are
not flushed to zero.
"""

import math

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.compile import loop, portion

BLOCK = 1024  # numbers that share a scale in float16
FLOAT, BITS, HALF = np.float32, np.uint32, np.uint16
ONE, LARGEST_SMALL = FLOAT(1), FLOAT(2.0**-14)
UNIT, PER_UNIT = FLOAT(2.0**-24), FLOAT(2.0**24)  # the smallest float16, and its inverse
MAGNITUDE, INFINITE, ODD = BITS(0x7FFFFFFF), BITS(0x7F800000), BITS(1)
UPPER, BELOW_UPPER, BFLOAT_NAN = BITS(16), BITS(0x7FFF), BITS(0x7FC0)
MANTISSA, LOST, BELOW_LOST = BITS(23), BITS(13), BITS(0xFFF)
HALF_SIGN, HALF_MAGNITUDE, HALF_INFINITE, HALF_NAN = BITS(0x8000), BITS(0x7FFF), BITS(0x7C00), BITS(0x7E00)
REBIAS = BITS((127 - 15) << 23)  # between the exponents of the two formats
NORMAL, HALF_NORMAL = BITS((127 - 14) << 23), BITS(0x0400)


def _in_blocks(lengths) -> bool:
    """Whether there is one exponent for each block."""
    return lengths.k == -(-lengths.n // BLOCK)


@loop("n n")
def encode_bfloat16(thread, threads, values, half):
    """half = the upper 16 bits of each float32, rounded."""
    base, share = portion(values.size, thread, threads)
    for each in range(share):
        i = base + each
        u = FLOAT(values[i]).view(BITS)
        rounded = (u + BELOW_UPPER + ((u >> UPPER) & ODD)) >> UPPER
        half[i] = HALF(BFLOAT_NAN if (u & MAGNITUDE) > INFINITE else rounded)


@loop("n n")
def decode_bfloat16(thread, threads, half, values):
    """The reverse of `encode_bfloat16`."""
    base, share = portion(half.size, thread, threads)
    for each in range(share):
        i = base + each
        values[i] = BITS(BITS(half[i]) << UPPER).view(FLOAT)


@loop("n n k", _in_blocks, flush=False)
def encode_float16(thread, threads, values, half, exponents):
    """half = values * 2^exponent, with an exponent for each block that brings its largest number to 2^14..2^15."""
    base, share = portion(exponents.size, thread, threads)
    for each in range(share):
        k = base + each
        start, stop = k * BLOCK, min((k + 1) * BLOCK, values.size)
        largest = BITS(0)
        for i in range(start, stop):
            largest = max(largest, BITS(FLOAT(values[i]).view(BITS) & MAGNITUDE))
        exponent = min(141 - np.int32(largest >> MANTISSA), 127) if largest < INFINITE else 0
        exponents[k] = exponent
        scale = FLOAT(math.ldexp(ONE, int(exponent)))
        for i in range(start, stop):
            u = FLOAT(values[i] * scale).view(BITS)
            a = BITS(u & MAGNITUDE)
            normal = BITS((a - REBIAS + BELOW_LOST + ((a >> LOST) & ODD)) >> LOST)
            small = BITS(np.int32(np.rint(min(a.view(FLOAT), LARGEST_SMALL) * PER_UNIT)))
            special = HALF_NAN if a > INFINITE else HALF_INFINITE
            number = small if a < NORMAL else (normal if normal < HALF_INFINITE else special)
            half[i] = HALF(number | ((u >> UPPER) & HALF_SIGN))


@loop("n k n", _in_blocks, flush=False)
def decode_float16(thread, threads, half, exponents, values):
    """The reverse of `encode_float16`."""
    base, share = portion(exponents.size, thread, threads)
    for each in range(share):
        k = base + each
        scale = FLOAT(math.ldexp(ONE, -int(exponents[k])))
        for i in range(k * BLOCK, min((k + 1) * BLOCK, values.size)):
            h = BITS(half[i])
            a = BITS(h & HALF_MAGNITUDE)
            number = BITS((a << LOST) + REBIAS).view(FLOAT) if a >= HALF_NORMAL else FLOAT(a) * UNIT
            special = BITS((a << LOST) + (REBIAS << ODD)).view(FLOAT)
            magnitude = (number if a < HALF_INFINITE else special) * scale
            values[i] = -magnitude if h & HALF_SIGN else magnitude
