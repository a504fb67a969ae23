/* Products of float32 matrices whose elements are rounded to bfloat16 (8 bits of mantissa), with sums in float32.
 * _blas.pyx uses it for products of variances if a network is `mixed`.
 *
 * The instruction (vdpbf16ps) takes two vectors of 16 pairs of bfloat16, multiplies pair by pair, and adds both
 * products of a pair to one of 16 float32 sums. So the operands are packed as pairs of two consecutive steps of the
 * sum: b in 32 contiguous lanes (columns), a in 12 separate rows or, if a is transposed, in contiguous lanes. Packing
 * takes a tenth of the time of the product. The instruction treats subnormal numbers (below 1e-38) as 0. */
#ifndef PYTAGI_DDP_BFLOAT16_H
#define PYTAGI_DDP_BFLOAT16_H

#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 11 : defined(__GNUC__) && __GNUC__ >= 11)

#include <immintrin.h>

#define TAGI_BFLOAT16 __attribute__((target("avx512f,avx512bw,avx512bf16")))
#define TAGI_BFLOAT16_INLINE TAGI_BFLOAT16 static inline __attribute__((always_inline))

enum {
    TAGI_BF_ROWS = 12,
    TAGI_BF_LANES = 32,
    TAGI_BF_COLUMNS = 128,
    TAGI_BF_DEPTH = 512,
    TAGI_BF_STRIDE = TAGI_BF_DEPTH / 2 + 16
};

/* Memory of this thread for packed operands. Rows of a are not a power of two apart, so that they do not share a few
 * cache sets. */
static _Thread_local struct {
    int columns[TAGI_BF_COLUMNS * TAGI_BF_DEPTH / 2], rows[TAGI_BF_ROWS * TAGI_BF_STRIDE];
} tagi_bf_memory __attribute__((aligned(64)));

static inline int tagi_has_bfloat16(void) {
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
}

/* A mask of the first n of 16 lanes. */
static inline unsigned tagi_bf_first(int n) { return n <= 0 ? 0 : n >= 16 ? 0xffff : (1u << n) - 1; }

/* The first n of 32 numbers at x, rounded to bfloat16, and zeros for the others. */
TAGI_BFLOAT16_INLINE __m512i tagi_bf_pairs(const float *x, int n) {
    __m512 low = _mm512_maskz_loadu_ps(tagi_bf_first(n), x),
           high = _mm512_maskz_loadu_ps(tagi_bf_first(n - 16), x + 16);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Packs lanes that are columns of x (k x lanes, rows `stride` apart): out (pairs of k, width), with zeros beyond. */
TAGI_BFLOAT16_INLINE void tagi_bf_pack_lines(const float *x, long stride, int lanes, int k, int width, int *out) {
    short order[32];
    for (int i = 0; i < 32; i++) order[i] = i / 2 + i % 2 * 16;
    __m512i zip = _mm512_loadu_si512(order);
    for (int l = 0; l < k; l += 2, x += 2 * stride, out += width)
        for (int i = 0; i < width; i += 16) {
            __mmask16 seen = tagi_bf_first(lanes - i);
            __m512 even = _mm512_maskz_loadu_ps(seen, x + i);
            __m512 odd = _mm512_maskz_loadu_ps(l + 1 < k ? seen : 0, x + stride + i);
            _mm512_storeu_si512(out + i, _mm512_permutexvar_epi16(zip, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
        }
}

/* Transposes r, a 16 x 16 matrix of 32-bit numbers with a row in each vector, in place. */
TAGI_BFLOAT16_INLINE void tagi_bf_transpose(__m512i *r) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
        for (int q = 0; q < 2; q++) {
            r[i + 2 * q] = _mm512_unpacklo_epi64(t[i + q], t[i + q + 2]);
            r[i + 2 * q + 1] = _mm512_unpackhi_epi64(t[i + q], t[i + q + 2]);
        }
#pragma GCC unroll 2
    for (int i = 0; i < 16; i += 8)
        for (int q = 0; q < 4; q++) {
            t[i + q] = _mm512_shuffle_i32x4(r[i + q], r[i + q + 4], 0x88);
            t[i + q + 4] = _mm512_shuffle_i32x4(r[i + q], r[i + q + 4], 0xdd);
        }
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        r[q] = _mm512_shuffle_i32x4(t[q], t[q + 8], 0x88);
        r[q + 8] = _mm512_shuffle_i32x4(t[q], t[q + 8], 0xdd);
    }
}

/* Packs lanes that are rows of x (lanes x k): out (pairs of k, width), with zeros beyond. */
TAGI_BFLOAT16_INLINE void tagi_bf_pack_rows(const float *x, long stride, int lanes, int k, int width, int *out) {
    for (int l = 0; l < k; l += 32)
        for (int i = 0; i < width; i += 16) {
            __m512i pairs[16];
#pragma GCC unroll 16
            for (int q = 0; q < 16; q++) pairs[q] = tagi_bf_pairs(x + (i + q) * stride + l, i + q < lanes ? k - l : 0);
            tagi_bf_transpose(pairs);
#pragma GCC unroll 16
            for (int q = 0; q < 16; q++)
                if (l + 2 * q < k) _mm512_storeu_si512(out + (long)(l / 2 + q) * width + i, pairs[q]);
        }
}

/* Rounds k numbers of each row of x to pairs; rows of `out` are TAGI_BF_STRIDE apart. */
TAGI_BFLOAT16_INLINE void tagi_bf_round_rows(const float *x, long stride, int rows, int k, int *out) {
    for (int i = 0; i < rows; i++, x += stride, out += TAGI_BF_STRIDE)
        for (int l = 0; l < k; l += 32) _mm512_storeu_si512(out + l / 2, tagi_bf_pairs(x + l, k - l));
}

/* c (rows x 16 `vectors`) = a b + beta c from packed operands. Only the first `stored` rows are written, and, of the
 * last vector, only the lanes of the mask `last`: the others are beyond c. by_rows: a has been packed by
 * `tagi_bf_round_rows`, else by `tagi_bf_pack_lines`. If beta is 0, c is not read. */
TAGI_BFLOAT16_INLINE void tagi_bf_tile(int rows, int vectors, int by_rows, const int *a, const int *b, int pairs,
                                       float beta, float *c, long stride, int stored, __mmask16 last) {
    __m512 sum[TAGI_BF_ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
        for (int v = 0; v < vectors; v++) __builtin_prefetch(c + r * stride + 16 * v, 1);
    }
    for (int p = 0; p < pairs; p++, a += by_rows ? 1 : TAGI_BF_ROWS, b += TAGI_BF_LANES) {
        __m512bh left = (__m512bh)_mm512_load_si512(b), right = (__m512bh)_mm512_load_si512(b + 16);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            __m512bh pair = (__m512bh)_mm512_set1_epi32(a[by_rows ? r * TAGI_BF_STRIDE : r]);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], pair, left);
            if (vectors == 2) sum[r][1] = _mm512_dpbf16_ps(sum[r][1], pair, right);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        if (r == stored) return;
        for (int v = 0; v < vectors; v++) {
            float *to = c + r * stride + 16 * v;
            __mmask16 seen = v == vectors - 1 ? last : 0xffff;
            __m512 start = _mm512_maskz_loadu_ps(beta == 0 ? 0 : seen, to);
            _mm512_mask_storeu_ps(to, seen, _mm512_fmadd_ps(_mm512_set1_ps(beta), start, sum[r][v]));
        }
    }
}

/* c (rows x columns) = a b + beta c for at most 12 packed rows of a and all packed columns of b. The calls have
 * constant sizes, so that the compiler keeps the sums in registers. */
TAGI_BFLOAT16_INLINE void tagi_bf_rows_times_columns(int by_rows, const int *a, const int *b, int rows, int columns,
                                                     int pairs, float beta, float *c, long stride) {
    for (int j = 0; j < columns; j += TAGI_BF_LANES, b += TAGI_BF_LANES * pairs)
        for (int i = 0; i < rows;) {
            const int *first = a + i * (by_rows ? TAGI_BF_STRIDE : 1);
            float *to = c + i * stride + j;
            int wide = columns - j > 16, many = rows - i > 8;
            __mmask16 last = tagi_bf_first(columns - j - 16 * wide);
            if (many && wide) tagi_bf_tile(TAGI_BF_ROWS, 2, by_rows, first, b, pairs, beta, to, stride, rows - i, last);
            if (many && !wide)
                tagi_bf_tile(TAGI_BF_ROWS, 1, by_rows, first, b, pairs, beta, to, stride, rows - i, last);
            if (!many && wide) tagi_bf_tile(4, 2, by_rows, first, b, pairs, beta, to, stride, rows - i, last);
            if (!many && !wide) tagi_bf_tile(4, 1, by_rows, first, b, pairs, beta, to, stride, rows - i, last);
            i += many ? TAGI_BF_ROWS : 4;
        }
}

/* c (m x n) = op(a) op(b) + beta c on a CPU with `tagi_has_bfloat16`; arguments are those of `tagi_avx2_product`. */
TAGI_BFLOAT16 static void tagi_bfloat16_product(int ta, int tb, int m, int n, int k, const float *a, long lda,
                                                const float *b, long ldb, float beta, float *c, long ldc) {
    int *packed_rows = tagi_bf_memory.rows, *packed_columns = tagi_bf_memory.columns;
    for (int l = 0; l < k; l += TAGI_BF_DEPTH) {
        int depth = k - l < TAGI_BF_DEPTH ? k - l : TAGI_BF_DEPTH, pairs = (depth + 1) / 2;
        for (int j = 0; j < n; j += TAGI_BF_COLUMNS) {
            int columns = n - j < TAGI_BF_COLUMNS ? n - j : TAGI_BF_COLUMNS;
            for (int i = 0; i < columns; i += TAGI_BF_LANES) {
                int *out = packed_columns + (long)i * pairs;
                if (tb)
                    tagi_bf_pack_rows(b + (j + i) * ldb + l, ldb, columns - i, depth, TAGI_BF_LANES, out);
                else
                    tagi_bf_pack_lines(b + l * ldb + j + i, ldb, columns - i, depth, TAGI_BF_LANES, out);
            }
            for (int i = 0; i < m; i += TAGI_BF_ROWS) {
                int rows = m - i < TAGI_BF_ROWS ? m - i : TAGI_BF_ROWS;
                float more = l ? 1 : beta, *to = c + i * ldc + j;
                if (ta) {
                    tagi_bf_pack_lines(a + l * lda + i, lda, rows, depth, TAGI_BF_ROWS, packed_rows);
                    tagi_bf_rows_times_columns(0, packed_rows, packed_columns, rows, columns, pairs, more, to, ldc);
                } else {
                    tagi_bf_round_rows(a + i * lda + l, lda, rows, depth, packed_rows);
                    tagi_bf_rows_times_columns(1, packed_rows, packed_columns, rows, columns, pairs, more, to, ldc);
                }
            }
        }
    }
}

#else

static inline int tagi_has_bfloat16(void) { return 0; }
static void tagi_bfloat16_product(int ta, int tb, int m, int n, int k, const float *a, long lda, const float *b,
                                  long ldb, float beta, float *c, long ldc) {}

#endif
#endif
