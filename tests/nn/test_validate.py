"""Checks of arrays: what passes, and what is named."""

import numpy as np
import pytest

from pytagi_ddp.nn.core.validate import check_finite, check_variances, flat_float32


def test_any_dtype_shape_and_strides_become_flat_float32():
    values = np.arange(12).reshape(3, 4)[:, ::2]
    flat = flat_float32(values, "x", 6)
    np.testing.assert_array_equal(flat, np.float32([0, 2, 4, 6, 8, 10]))
    assert flat.dtype == np.float32 and flat.flags.c_contiguous
    assert np.shares_memory(flat_float32(flat, "x"), flat)
    assert np.isinf(flat_float32([1e300], "x")).all(), "without a warning: the caller looks for it"


def test_what_is_no_number_or_too_few_is_named():
    for thing, kind in ((None, "NoneType"), ({"x": 1}, "dict"), ([None], "dtype object")):
        with pytest.raises(TypeError, match=f"x must hold real numbers, got {kind}"):
            flat_float32(thing, "x")
    with pytest.raises(TypeError, match="x must hold real numbers, got NoneType"):
        flat_float32(np.array(None), "x")
    with pytest.raises(TypeError, match="x must hold real numbers, got dtype complex128"):
        flat_float32([1j], "x")
    with pytest.raises(ValueError, match="x must hold 3 values, got 2"):
        flat_float32([1, 2], "x", 3)


def test_values_that_are_not_finite_are_counted():
    check_finite(np.float32([1, -2]), "x")
    with pytest.raises(ValueError, match="x: 2 of 3 values are NaN or infinite"):
        check_finite(np.float32([1, np.nan, -np.inf]), "x")


def test_negative_variances_are_told():
    for fine in ([], [0, 1]):
        check_variances(np.float32(fine), "x")
    with pytest.raises(ValueError, match=r"x holds variances and must not be negative, the smallest is -0\.5"):
        check_variances(np.float32([1, -0.5]), "x")
