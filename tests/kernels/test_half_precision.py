"""float32 as 16 bits and back, against NumPy."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import half_precision


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(20_001) * np.exp(rng.normal(0, 8, 20_001))).astype(np.float32)
    values[5000], values[7000], values[9000] = np.inf, np.nan, -np.inf
    values[1024:2048] = 0
    values[2048:3072] = -1e-42  # below the smallest normal float32
    values[3072:4096] *= np.float32(3e38) / np.abs(values[3072:4096]).max()
    return values


def test_bfloat16_rounds_to_nearest_even(values):
    half, back = np.empty(values.size, np.uint16), np.empty_like(values)
    half_precision.encode_bfloat16(values, half)
    half_precision.decode_bfloat16(half, back)
    bits = values.view(np.uint32).astype(np.int64)
    upper = bits >> 16
    up = ((bits & 0xFFFF) > 0x8000) | (((bits & 0xFFFF) == 0x8000) & (upper & 1 == 1))
    expected = ((upper + up) << 16).astype(np.uint32).view(np.float32)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(back[number], expected[number])
    assert np.isnan(back[7000])
    tie = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    half_precision.encode_bfloat16(tie, half[:2])
    assert half[:2].tolist() == [0x3F80, 0x3F82]


def test_float16_is_that_of_numpy_scaled_by_powers_of_two(values):
    blocks = -(-values.size // half_precision.BLOCK)
    half, exponents, back = np.empty(values.size, np.uint16), np.empty(blocks, np.int32), np.empty_like(values)
    half_precision.encode_float16(values, half, exponents)
    half_precision.decode_float16(half, exponents, back)
    scales = np.ldexp(np.ones(blocks), exponents).repeat(half_precision.BLOCK)[: values.size]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (values * scales).astype(np.float32).astype(np.float16)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(half.view(np.float16)[number], expected[number])
    np.testing.assert_array_equal(back[number], (expected / scales)[number].astype(np.float32))
    assert np.isnan(back[7000]) and np.isnan(half.view(np.float16)[7000])
    largest = np.abs(expected[: 4 * half_precision.BLOCK].reshape(4, -1)).max(1)
    assert largest[1] == 0 and all(2**14 <= largest[k] <= 2**15 for k in (0, 3))
