/* Products of float32 matrices for processors with AVX2 and FMA: the way `TAGI_AVX2` of `product` in _blas.pyx.
 *
 * Most BLAS libraries copy both operands into another order in every call, which takes a third of the time of a narrow
 * product. Here b is copied ("packed") so that the 16 numbers of each step of a sum are contiguous, and a is copied
 * only if it is transposed. A tile of 6 x 16 results stays in registers while it is summed. All results are summed in
 * the same order of k, so the bits do not depend on the division among threads.
 *
 * In this file and in bfloat16.h and amx.h, a *lane* is a column of b (in amx.h also a row of a) that is packed: lanes
 * become the numbers of a register. */
#ifndef PYTAGI_DDP_AVX2_H
#define PYTAGI_DDP_AVX2_H

#include "transpose.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define TAGI_AVX2 __attribute__((target("avx2,fma")))
#define TAGI_AVX2_INLINE TAGI_AVX2 static inline __attribute__((always_inline))

enum { TAGI_AVX_ROWS = 6, TAGI_AVX_LANES = 16, TAGI_AVX_COLUMNS = 128, TAGI_AVX_DEPTH = 512 };

/* Memory of this thread for packed operands: 128 columns of b, which stay in the second-level cache (256 KB), and 6
 * rows of a transposed a, which stay in the first-level cache (12 KB). */
static _Thread_local struct {
    float columns[TAGI_AVX_COLUMNS * TAGI_AVX_DEPTH], rows[TAGI_AVX_ROWS * TAGI_AVX_DEPTH];
} tagi_avx_memory __attribute__((aligned(64)));

/* A mask of the first n of 8 lanes. */
TAGI_AVX2_INLINE __m256i tagi_avx_first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Packs lanes that are columns of b (k x lanes, rows `stride` apart): out (k, 16), with zeros if there are fewer
 * lanes. */
TAGI_AVX2_INLINE void tagi_avx_pack_lines(const float *b, long stride, int lanes, int k, float *out) {
    __m256i low = tagi_avx_first(lanes), high = tagi_avx_first(lanes - 8);
    for (int l = 0; l < k; l++, b += stride, out += TAGI_AVX_LANES) {
        if (lanes >= TAGI_AVX_LANES) {
            _mm256_store_ps(out, _mm256_loadu_ps(b));
            _mm256_store_ps(out + 8, _mm256_loadu_ps(b + 8));
        } else {
            _mm256_store_ps(out, _mm256_maskload_ps(b, low));
            _mm256_store_ps(out + 8, _mm256_maskload_ps(b + 8, high));
        }
    }
}

/* The same for lanes that are rows of b (lanes x k). */
TAGI_AVX2_INLINE void tagi_avx_pack_rows(const float *b, long stride, int lanes, int k, float *out) {
    if (lanes >= TAGI_AVX_LANES) {
        tagi_transpose_matrix(b, TAGI_AVX_LANES, k, stride, out);
        return;
    }
    for (int l = 0; l < k; l++, out += TAGI_AVX_LANES)
        for (int i = 0; i < TAGI_AVX_LANES; i++) out[i] = i < lanes ? b[i * stride + l] : 0;
}

/* c (rows x lanes, at most 6 x 16) = a b + beta c; element (r, l) of a is a[r * row + l * step], and b is packed. If
 * beta is 0, c is not read. */
TAGI_AVX2_INLINE void tagi_avx_tile(int rows, const float *a, long row, long step, const float *b, int k, float beta,
                                    float *c, long stride, int lanes) {
    __m256 sum[TAGI_AVX_ROWS][2];
    _Pragma("GCC unroll 6") for (int r = 0; r < rows; r++) {
        sum[r][0] = sum[r][1] = _mm256_setzero_ps();
        __builtin_prefetch(c + r * stride, 1);
    }
    for (int l = 0; l < k; l++, a += step, b += TAGI_AVX_LANES) {
        __m256 left = _mm256_load_ps(b), right = _mm256_load_ps(b + 8);
        _Pragma("GCC unroll 6") for (int r = 0; r < rows; r++) {
            __m256 factor = _mm256_broadcast_ss(a + r * row);
            sum[r][0] = _mm256_fmadd_ps(factor, left, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(factor, right, sum[r][1]);
        }
    }
    __m256 scale = _mm256_set1_ps(beta);
    __m256i low = tagi_avx_first(lanes), high = tagi_avx_first(lanes - 8);
    _Pragma("GCC unroll 6") for (int r = 0; r < rows; r++, c += stride) {
        if (lanes < TAGI_AVX_LANES) {
            if (beta != 0) {
                sum[r][0] = _mm256_fmadd_ps(scale, _mm256_maskload_ps(c, low), sum[r][0]);
                sum[r][1] = _mm256_fmadd_ps(scale, _mm256_maskload_ps(c + 8, high), sum[r][1]);
            }
            _mm256_maskstore_ps(c, low, sum[r][0]);
            _mm256_maskstore_ps(c + 8, high, sum[r][1]);
            continue;
        }
        if (beta != 0) {
            sum[r][0] = _mm256_fmadd_ps(scale, _mm256_loadu_ps(c), sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(scale, _mm256_loadu_ps(c + 8), sum[r][1]);
        }
        _mm256_storeu_ps(c, sum[r][0]);
        _mm256_storeu_ps(c + 8, sum[r][1]);
    }
}

/* c (rows x columns) = a b + beta c for at most 6 rows of a and all packed columns of b. `rows` is a constant in each
 * call, so that the compiler keeps the sums in registers. */
TAGI_AVX2_INLINE void tagi_avx_rows_times_columns(int rows, const float *a, long row, long step, const float *b,
                                                  int columns, int k, float beta, float *c, long stride) {
    for (int j = 0; j < columns; j += TAGI_AVX_LANES, b += TAGI_AVX_LANES * k, c += TAGI_AVX_LANES) {
        int lanes = columns - j;
        switch (rows) {
            case 1:
                tagi_avx_tile(1, a, row, step, b, k, beta, c, stride, lanes);
                break;
            case 2:
                tagi_avx_tile(2, a, row, step, b, k, beta, c, stride, lanes);
                break;
            case 3:
                tagi_avx_tile(3, a, row, step, b, k, beta, c, stride, lanes);
                break;
            case 4:
                tagi_avx_tile(4, a, row, step, b, k, beta, c, stride, lanes);
                break;
            case 5:
                tagi_avx_tile(5, a, row, step, b, k, beta, c, stride, lanes);
                break;
            default:
                tagi_avx_tile(6, a, row, step, b, k, beta, c, stride, lanes);
        }
    }
}

/* c (m x n) = op(a) op(b) + beta c on a CPU that `tagi_has_avx2`. All matrices are row-major, and their rows begin lda,
 * ldb and ldc numbers apart. op(a) is a (m x k), or, if ta, the transpose of a (k x m); likewise for b (k x n) and tb.
 * */
TAGI_AVX2 static void tagi_avx2_product(int ta, int tb, int m, int n, int k, const float *a, long lda, const float *b,
                                        long ldb, float beta, float *c, long ldc) {
    float *columns = tagi_avx_memory.columns, *rows = tagi_avx_memory.rows;
    int pieces = (k + TAGI_AVX_DEPTH - 1) / TAGI_AVX_DEPTH, depth = (k + pieces - 1) / pieces;
    for (int l = 0; l < k; l += depth, beta = 1) {
        if (depth > k - l) depth = k - l;
        for (int j = 0; j < n; j += TAGI_AVX_COLUMNS) {
            int width = n - j < TAGI_AVX_COLUMNS ? n - j : TAGI_AVX_COLUMNS;
            for (int i = 0; i < width; i += TAGI_AVX_LANES)
                if (tb)
                    tagi_avx_pack_rows(b + (j + i) * ldb + l, ldb, width - i, depth, columns + i * depth);
                else
                    tagi_avx_pack_lines(b + l * ldb + j + i, ldb, width - i, depth, columns + i * depth);
            for (int i = 0; i < m; i += TAGI_AVX_ROWS) {
                int height = m - i < TAGI_AVX_ROWS ? m - i : TAGI_AVX_ROWS;
                if (ta) tagi_copy_runs(a + l * lda + i, lda, rows, TAGI_AVX_ROWS, depth, height);
                tagi_avx_rows_times_columns(height, ta ? rows : a + i * lda + l, ta ? 1 : lda, ta ? TAGI_AVX_ROWS : 1,
                                            columns, width, depth, beta, c + i * ldc + j, ldc);
            }
        }
    }
}

#else

static void tagi_avx2_product(int ta, int tb, int m, int n, int k, const float *a, long lda, const float *b, long ldb,
                              float beta, float *c, long ldc) {}

#endif
#endif
