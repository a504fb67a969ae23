"""Matrix products: every way to make them against NumPy, with what lies around the operands left alone."""

import ctypes
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.products import _blas

MATRIX = ctypes.POINTER(ctypes.c_float)
PRODUCT = ctypes.CFUNCTYPE(
    None,
    *[ctypes.c_int] * 5,
    *[MATRIX, ctypes.c_long, MATRIX, ctypes.c_long],
    *[ctypes.c_float, MATRIX, ctypes.c_long],
)
AROUND = 3  # numbers after each row of an operand, which are not part of it
SIZES = [(1, 1, 1), (6, 16, 8), (7, 17, 9), (5, 10, 33), (13, 129, 70), (64, 48, 513), (3, 300, 1030), (97, 31, 100)]
SIZES += [(65, 130, 97), (48, 300, 1030), (97, 528, 100)]  # large enough for AMX, with parts of tiles
HAS = {_blas.Way.AVX2: _blas.has_avx2, _blas.Way.AMX: _blas.has_amx}


@pytest.fixture(params=list(_blas.Way), ids=lambda way: way.name.lower())
def product(request):
    """`product`, in one of its ways."""
    if not HAS.get(request.param, lambda: True)():
        pytest.skip(f"this CPU has no {request.param.name}")
    _blas.set_way(request.param)
    yield PRODUCT(_blas.address_of_product())
    _blas.set_way(_blas.best_way())


def matrix(rows: int, columns: int, seed: int):
    """A matrix of random numbers, and the memory that it lies in: nan wherever the matrix is not."""
    memory = np.full((rows, columns + AROUND), np.nan, np.float32)
    memory[:, :columns] = np.random.default_rng(seed).standard_normal((rows, columns))
    return memory[:, :columns], memory


def address(memory: np.ndarray):
    return memory.ctypes.data_as(MATRIX)


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_are_those_of_numpy(product, sizes, beta):
    m, n, k = sizes
    for ta, tb in itertools.product([False, True], repeat=2):
        a, in_a = matrix(*((k, m) if ta else (m, k)), 1)
        b, in_b = matrix(*((n, k) if tb else (k, n)), 2)
        c, in_c = matrix(m, n, 3)
        start = c.astype(np.float64)
        if beta == 0:
            c[:] = np.nan  # what was there does not count
        product(
            *(ta, tb, m, n, k),
            *(address(in_a), in_a.shape[1], address(in_b), in_b.shape[1]),
            *(beta, address(in_c), in_c.shape[1]),
        )
        factors = (a.T if ta else a).astype(np.float64), (b.T if tb else b).astype(np.float64)
        largest = np.abs(factors[0]) @ np.abs(factors[1])
        assert (np.abs(c - factors[0] @ factors[1] - beta * start) < 2e-6 * largest + 1e-6).all()
        assert np.isnan(in_c[:, n:]).all()


def test_every_nan_stays_nan(product):
    size = 96
    (a, in_a), (b, in_b), (c, in_c) = matrix(size, size, 1), matrix(size, size, 2), matrix(size, size, 3)
    a.view(np.uint32)[5, 7] = b.view(np.uint32)[90, 3] = 0x7FFFFFFF  # its last parts for AMX are those of -0
    stride = size + AROUND
    product(False, False, size, size, size, address(in_a), stride, address(in_b), stride, 0, address(in_c), stride)
    expected = np.zeros((size, size), bool)
    expected[5] = expected[:, 3] = True
    np.testing.assert_array_equal(np.isnan(c), expected)


@pytest.mark.parametrize("product", [_blas.Way.AVX2], indirect=True, ids=["avx2"])
def test_bits_do_not_depend_on_how_a_product_is_cut(product):
    m, n, k = 45, 150, 700
    in_a, in_b = matrix(m, k, 1)[1], matrix(k, n, 2)[1]
    whole, parts = np.empty((2, m, n), np.float32)

    def multiply(out, r0, r1, c0, c1):
        product(
            *(False, False, r1 - r0, c1 - c0, k),
            *(address(in_a[r0:]), in_a.shape[1], address(in_b[:, c0:]), in_b.shape[1]),
            *(0, address(out[r0:, c0:]), n),
        )

    multiply(whole, 0, m, 0, n)
    for (r0, r1), (c0, c1) in itertools.product(itertools.pairwise([0, 1, 20, m]), itertools.pairwise([0, 15, 140, n])):
        multiply(parts, r0, r1, c0, c1)
    assert whole.tobytes() == parts.tobytes()


@pytest.mark.parametrize("product", [_blas.Way.AMX], indirect=True, ids=["amx"])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False)])
def test_three_bfloat16_keep_every_bit_of_a_number(product, ta, tb):
    size = 96
    (a, in_a), (b, in_b), (c, in_c) = matrix(size, size, 1), matrix(size, size, 2), matrix(size, size, 3)
    a *= 10.0 ** np.random.default_rng(4).integers(-20, 20, (size, size))
    b[:] = np.eye(size)
    stride = size + AROUND
    product(ta, tb, size, size, size, address(in_a), stride, address(in_b), stride, 0, address(in_c), stride)
    np.testing.assert_array_equal(c, a.T if ta else a)


@pytest.mark.parametrize("product", [_blas.Way.AMX], indirect=True, ids=["amx"])
def test_errors_of_variances_by_amx_are_those_of_float32(product):
    size = 256
    (a, in_a), (b, in_b), (c, in_c) = matrix(size, size, 1), matrix(size, size, 2), matrix(size, size, 3)
    stride = size + AROUND
    for x in (a, b):
        x[:] = x**2
    product(False, False, size, size, size, address(in_a), stride, address(in_b), stride, 0, address(in_c), stride)
    exact = a.astype(np.float64) @ b
    errors = c / exact - 1
    assert np.sqrt(np.mean(errors**2)) < 3e-7
    assert abs(errors.mean()) < 3e-8  # parts are rounded to nearest, so that sums of many terms have no bias


@pytest.mark.parametrize("way", HAS, ids=lambda way: way.name.lower())
def test_a_way_that_this_cpu_has_not_is_refused(monkeypatch, way):
    monkeypatch.setattr(_blas, f"has_{way.name.lower()}", lambda: False)
    with pytest.raises(RuntimeError, match=f"no {way.name}"):
        _blas.set_way(way)
    assert _blas.best_way() != way


@pytest.mark.parametrize(("pin", "name"), [(None, "AMX"), ("SkylakeX", "TILES"), ("SapphireRapids", "AMX")])
def test_amx_is_pinned_with_the_kernels(monkeypatch, pin, name):
    library = SimpleNamespace(filepath="scipy.libs/libscipy_openblas.so", info=lambda: {"architecture": "SkylakeX"})
    libraries = SimpleNamespace(lib_controllers=[library])
    monkeypatch.setattr(_blas, "ThreadpoolController", lambda: SimpleNamespace(select=lambda **_: libraries))
    monkeypatch.setattr(_blas, "has_amx", lambda: True)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    if pin:
        monkeypatch.setenv("OPENBLAS_CORETYPE", pin)
    assert _blas.best_way() == _blas.Way[name]
