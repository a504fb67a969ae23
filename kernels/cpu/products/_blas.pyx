# cython: cdivision=True
"""`product`, the float32 matrix product of all Cython kernels, and its division among threads.

A product is computed by SciPy's BLAS or by our own loops: by the fastest `Way` on the processor. A BLAS usually first
copies its operands into another order, which takes a third of the time of a narrow product:

* OpenBLAS for AVX-512 has small-matrix kernels that read operands in place. It uses them for up to a million
  multiply-adds (for C = A B and A^T B, and for A B^T while C has at most 1200 elements). In tiles of that size, with
  contiguous operands, they reach 115 % of the speed of the same library on large square matrices, and 2.3 times its
  speed if one edge is 16. So `product` calls it tile by tile.
* With AVX2 only, avx2.h is faster than OpenBLAS (narrow products: 1.1 to 1.4 times).
* With AMX, amx.h computes large products (1.3 to 2 times as fast), with the errors of float32.
* Any other library gets whole products.

Products of variances may be made in bfloat16 instead (bfloat16.h), if a network is `mixed`.
"""

import os

from libc.stdint cimport intptr_t
from libc.string cimport memcpy, memset
from scipy.linalg.cython_blas cimport sgemm

from threadpoolctl import ThreadpoolController

from pytagi_ddp.blas import VARIABLE

cdef extern from "bfloat16.h" nogil:
    bint has_bfloat16 "tagi_has_bfloat16"()
    void bfloat16_product "tagi_bfloat16_product"(bint ta, bint tb, int m, int n, int k, const float* a, long lda,
                                                  const float* b, long ldb, float beta, float* c, long ldc)

cdef extern from "avx2.h" nogil:
    bint has_avx2_instructions "tagi_has_avx2"()
    void avx2_product "tagi_avx2_product"(bint ta, bint tb, int m, int n, int k, const float* a, long lda,
                                          const float* b, long ldb, float beta, float* c, long ldc)

cdef extern from "amx.h" nogil:
    bint has_amx_tiles "tagi_has_amx"()
    bint amx_repays "tagi_amx_repays"(int m, int n, int k)
    void amx_product "tagi_amx_product"(bint ta, bint tb, int m, int n, int k, const float* a, long lda,
                                        const float* b, long ldb, float beta, float* c, long ldc)
    void amx_rounded_product "tagi_amx_rounded_product"(bint ta, bint tb, int m, int n, int k, const float* a,
                                                        long lda, const float* b, long ldb, float beta, float* c,
                                                        long ldc)

cdef extern from *:
    """
    #ifdef _OPENMP
    enum { HAS_OPENMP = 1 };
    #else
    enum { HAS_OPENMP = 0 };
    #endif
    """
    enum: HAS_OPENMP

cdef enum:
    SMALL = 1000000  # multiply-adds up to which OpenBLAS reads operands in place
    SERIAL = 500000  # multiply-adds of a product below which several threads take longer than one

shared_from = int(SERIAL)  # for tests of products that are just large enough for several threads
has_openmp = bool(HAS_OPENMP)  # without OpenMP, loops over tiles run on one thread


cpdef enum Way:
    WHOLE  # products of any size, by the BLAS
    TILES  # tiles of at most SMALL multiply-adds, by an OpenBLAS that multiplies these in place
    AVX2  # avx2.h
    AMX  # amx.h, and as TILES if a product is too small for it


def has_avx2() -> bool:
    """Whether this CPU supports the way `AVX2`."""
    return has_avx2_instructions()


def has_amx() -> bool:
    """Whether this CPU and the operating system support the way `AMX`."""
    return has_amx_tiles()


def best_way() -> Way:
    """The fastest way on this CPU.

    It depends on the kernels that SciPy's OpenBLAS has selected, so OPENBLAS_CORETYPE changes it, too. NumPy's wheel
    has a separate OpenBLAS, which is not used.
    """
    pin = os.environ.get(VARIABLE)
    for library in ThreadpoolController().select(internal_api="openblas").lib_controllers:
        if "numpy.libs" not in library.filepath:
            kernels = library.info()["architecture"]
            if kernels in ("SkylakeX", "Cooperlake", "SapphireRapids"):
                return Way.AMX if pin in (None, "SapphireRapids") and has_amx() else Way.TILES
            if kernels in ("Haswell", "Zen") and has_avx2():
                return Way.AVX2
    return Way.WHOLE


cdef Way way = best_way()


def set_way(Way value):
    """Sets the way, for tests: all ways of a machine must give the same results."""
    global way
    if value == AVX2 and not has_avx2():
        raise RuntimeError("this CPU has no AVX2 instructions")
    if value == AMX and not has_amx():
        raise RuntimeError("this CPU has no AMX instructions, or the system keeps them to itself")
    way = value


cdef bint in_tiles() noexcept nogil:
    """Whether products without AMX are divided into tiles, which BLAS multiplies in place."""
    return way == TILES or way == AMX


cdef bint by_amx(int m, int n, int k) noexcept nogil:
    """Whether amx.h computes a product. Then its operands need not be packed: amx.h reads distant rows as fast."""
    return way == AMX and amx_repays(m, n, k)


cdef bint prefers_columns() noexcept nogil:
    """Whether A B is so much faster than A B^T that transposing B first saves time."""
    return way == TILES


def why_not_mixed() -> str | None:
    """The reason why products of variances cannot use bfloat16; None if they can."""
    return None if has_bfloat16() else "this CPU has no avx512_bf16 instructions, or the compiler did not know them"


cdef Product variance_product(bint mixed) except NULL:
    """The function that multiplies variances: `product`, or, if mixed, `product` with factors rounded to bfloat16."""
    if not mixed:
        return product
    if not has_bfloat16():
        raise RuntimeError(f"mixed: {why_not_mixed()}")
    return rounded_product


cdef void rounded_product(bint ta, bint tb, int m, int n, int k, const float* a, long lda, const float* b, long ldb,
                          float beta, float* c, long ldc) noexcept nogil:
    """As `product`, with factors that are rounded to bfloat16."""
    if by_amx(m, n, k):
        amx_rounded_product(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc)
    else:
        bfloat16_product(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc)


def address_of_product():
    """The address of `product`, for loops that Numba compiles to call (recurrent.py)."""
    return <intptr_t>&product


cdef int panel_width() noexcept nogil:
    """The width of a panel. A panel is a copy of a block of columns of an operand, with contiguous rows."""
    return 64 if way == TILES else 256 if way == AMX else 512


cdef int panel_of(int m, int k) noexcept nogil:
    """The width of panels for products of m rows and k terms; at most `panel_width`.

    It is smaller if OpenBLAS computes the product in tiles, because AMX would not be faster.
    """
    return 64 if way == AMX and not amx_repays(m, panel_width(), k) else panel_width()


cdef void product(bint ta, bint tb, int m, int n, int k, const float* a, long lda, const float* b, long ldb,
                  float beta, float* c, long ldc) noexcept nogil:
    """c (m x n) = op(a) op(b) + beta c, for k > 0; c must not overlap a or b.

    All matrices are row-major, and lda, ldb and ldc are the distances between rows. op(a) is a (m x k), or, if ta, the
    transpose of a (k x m); likewise for b (k x n) and tb. If beta is 0, c is not read. It is fastest if rows of a and b
    are contiguous.
    """
    cdef int mt = m, nt = n, kt = k, i, j, l
    if way == AVX2:
        avx2_product(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc)
        return
    if by_amx(m, n, k):
        amx_product(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc)
        return
    if in_tiles():
        if tb:
            if k >= 32:
                mt = even(m, 32)
                nt = even(n, 1200 // mt // 16 * 16)
                kt = even(k, SMALL // (mt * nt))
        elif ta:
            mt = even(m, 64)
            nt = even(n, 48)
            kt = even(k, 256)
        else:
            nt = even(n, 64)
            kt = even(k, 576)
            mt = even(m, SMALL // (nt * kt) // 16 * 16)
    for l from 0 <= l < k by kt:
        for i from 0 <= i < m by mt:
            for j from 0 <= j < n by nt:
                tile(ta, tb, min(mt, m - i), min(nt, n - j), min(kt, k - l), a + (l * lda + i if ta else i * lda + l),
                     lda, b + (j * ldb + l if tb else l * ldb + j), ldb, 1 if l else beta, c + i * ldc + j, ldc)


cdef inline void tile(bint ta, bint tb, int m, int n, int k, const float* a, int lda, const float* b, int ldb,
                      float beta, float* c, int ldc) noexcept nogil:
    """`product` by BLAS. Fortran sees each row-major matrix transposed, so c^T = op(b)^T op(a)^T is computed."""
    cdef char* flags = b"NT"
    cdef float one = 1
    sgemm(flags + tb, flags + ta, &n, &m, &k, &one, <float*>b, &ldb, <float*>a, &lda, &beta, c, &ldc)


cdef void times_panels(Product multiply, const float* a, int m, int k, const float* b, int n, float beta, float* c,
                       long ldc) noexcept nogil:
    """c (m x n) = a b + beta c, where b (k x n) is in panels of `panel_width` columns, one after the other."""
    cdef long first, width, panel = panel_width()
    for first from 0 <= first < n by panel:
        width = min(panel, n - first)
        multiply(False, False, m, width, k, a, k, b + <long>first * k, width, beta, c + first, ldc)


cdef double serial = SERIAL


def set_serial(double terms=SERIAL):
    """Sets the multiply-adds from which several threads compute a product, for tests; without `terms`, the default.

    Results must be the same except for rounding.
    """
    global serial
    serial = terms


cdef int threads_for(double terms, int threads) noexcept nogil:
    """The number of threads for a product with this number of multiply-adds."""
    return 1 if terms < serial else threads


cdef Grid best_grid(long rows, long columns, int tiles) noexcept nogil:
    """Divides a result into `tiles` tiles with the smallest edges, which minimises the numbers that are read."""
    cdef Grid grid = Grid(1, tiles)
    cdef int parts
    cdef double cost, best = rows + <double>columns / tiles
    for parts in range(2, tiles + 1):
        if tiles % parts == 0:
            cost = <double>rows / parts + <double>columns / (tiles // parts)
            if cost < best:
                best = cost
                grid.row_parts, grid.column_parts = parts, tiles // parts
    return grid


cdef long cut(long size, int part, int parts) noexcept nogil:
    """The start of part `part` of `parts`, between 0 and size: a multiple of 16, so that parts are whole vectors."""
    cdef long at = (size * part // parts + 8) // 16 * 16
    return size if part == parts or at > size else at


cdef void sum_columns(const float* x, long rows, long columns, float* total, bint accumulate, int part,
                      int parts) noexcept nogil:
    """total (columns) = the sums of x (rows x columns) over its rows, or += if `accumulate`: for one part of the columns.

    Each thread computes one part. Parts do not overlap, even if there are more parts than columns.
    """
    cdef long first = cut(columns, part, parts), width = cut(columns, part + 1, parts) - first
    if not accumulate:
        memset(total + first, 0, width * sizeof(float))
    sum_rows(x + first, columns, total + first, rows, width)


cdef size_t lines(size_t size) noexcept nogil:
    """The size, in float32, rounded up to whole cache lines."""
    return (size + 15) // 16 * 16


cdef int even(long size, long limit) noexcept nogil:
    """The length of the fewest equal pieces of at most `limit`: `size` itself, or a multiple of 16 (whole vectors)."""
    cdef long pieces = (size + limit - 1) // limit
    return size if pieces <= 1 else ((size + pieces - 1) // pieces + 15) // 16 * 16


cdef void copy_rows(const float* x, long stride, float* out, int rows, int width) noexcept nogil:
    """out (rows x width, contiguous) = x, whose rows are `stride` apart."""
    cdef long row
    for row in range(rows):
        copy_run(x + row * stride, out + row * width, width)


cdef const float* packed(const float* x, long stride, int rows, int width, float* out) noexcept nogil:
    """x (rows x width) in contiguous memory: x itself if it is contiguous, else a copy in `out`."""
    if stride == width:
        return x
    copy_rows(x, stride, out, rows, width)
    return out


cdef void fill_rows(float* out, long stride, const float* row, int rows, int width) noexcept nogil:
    """Every row of out = `row`, or 0 if that is NULL. Rows of out are `stride` apart."""
    cdef long n
    for n in range(rows):
        if row:
            memcpy(out + n * stride, row, width * sizeof(float))
        else:
            memset(out + n * stride, 0, width * sizeof(float))
