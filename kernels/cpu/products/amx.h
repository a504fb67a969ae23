/* Products of float32 matrices for processors with AMX: the way `TAGI_AMX` of `product` in _blas.pyx.
 *
 * AMX has eight registers of 1 KB, called tiles, and an instruction that multiplies two tiles of bfloat16 and adds the
 * product to a tile of float32 sums. A float32 has 24 bits of mantissa and a bfloat16 has 8, so each number is written
 * as the sum of three bfloat16, its *parts*. Six of the nine products of the parts of two numbers are computed; the
 * other three are 2^-25 of the whole, so that errors are those of float32. The instruction has 16 times the
 * multiply-adds of a vector instruction in the same time. So six products of parts are faster than one of float32, if
 * the operands are so large that splitting them takes little time.
 *
 * A packed tile has 16 lanes (rows of a, columns of b) by 32 steps of the sum, and 32 x 32 sums stay in four tiles.
 * With one part instead of three, factors are rounded to bfloat16, as in bfloat16.h. Numbers below 1e-33 lose bits,
 * because the instruction treats their smaller parts, below 1e-38, as 0; a product with infinity is NaN. */
#ifndef PYTAGI_DDP_AMX_H
#define PYTAGI_DDP_AMX_H

#include "bfloat16.h"

#if defined(__linux__) && defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TAGI_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512bf16")))
#define TAGI_AMX_INLINE TAGI_AMX static inline __attribute__((always_inline))

/* Tells the compiler that `what` is read here. According to the headers of gcc 12, instructions that load tiles read
 * less memory than they do (ldtilecfg 8 bytes, tileloadd none), so the compiler might omit or delay earlier writes. */
#define TAGI_AMX_WRITTEN(what) __asm__ volatile("" ::"r"(what) : "memory")

enum {
    TAGI_AMX_LANES = 16,
    TAGI_AMX_STEPS = 32,
    TAGI_AMX_TILE = 256,
    TAGI_AMX_MOST = 3,
    TAGI_AMX_COLUMNS = 256,
    TAGI_AMX_DEPTH = 800
};

/* Memory of this thread: packed columns of b, 32 packed rows of a, and a block of sums that does not fill its tiles. */
static _Thread_local struct {
    int columns[TAGI_AMX_COLUMNS * TAGI_AMX_DEPTH / 2 * TAGI_AMX_MOST], rows[32 * TAGI_AMX_DEPTH / 2 * TAGI_AMX_MOST];
    float sums[32 * 32];
} tagi_amx_memory __attribute__((aligned(64)));

/* Whether this processor has AMX, and Linux lets this process use it, which a process has to request. */
static inline int tagi_has_amx(void) {
    enum { TAGI_ASK = 0x1023, TAGI_TILES = 18 };
    unsigned a, b, c, d;
    int there = __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & d >> 24 & 1; /* amx-bf16, amx-tile */
    return there && tagi_has_bfloat16() && syscall(SYS_arch_prctl, TAGI_ASK, TAGI_TILES) == 0;
}

/* Whether a product is so large that splitting the operands takes little time. */
static inline int tagi_amx_repays(int m, int n, int k) {
    return k >= 2 * TAGI_AMX_STEPS && 1. / m + 1. / n + 1. / (3. * k) < 0.030;
}

/* Splits 16 numbers into `parts` bfloat16, each in the upper half of its 32 bits: x = part[0] + part[1] + part[2], or
 * rounded if there is one part. The addition that rounds may turn a NaN into 0; then the last of three parts is NaN, so
 * that the sum is still NaN, and a single part is made NaN again. */
TAGI_AMX_INLINE void tagi_amx_split(int parts, __m512 x, __m512i *part) {
    const __m512i tagi_half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32((int)0xffff0000);
    const __m512i nan = _mm512_set1_epi32(0x7fc00000);
    for (int p = 0; p < parts; p++) {
        part[p] = (__m512i)x; /* of the third part, the lower half is 0 */
        if (p < TAGI_AMX_MOST - 1) part[p] = _mm512_and_si512(_mm512_add_epi32(part[p], tagi_half), upper);
        if (parts == 1) part[p] = _mm512_mask_mov_epi32(part[p], _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
        x = _mm512_sub_ps(x, (__m512)part[p]);
    }
}

/* Packs lanes that are columns of x (steps x lanes, rows `stride` apart): a tile of each part, pairs of steps by lanes.
 * The tiles of the parts are two tiles apart in `out`, because those of the next 16 lanes are between them. */
TAGI_AMX_INLINE void tagi_amx_pack_lines(int parts, const float *x, long stride, int lanes, int steps, int *out) {
    __mmask16 seen = tagi_bf_first(lanes);
    for (int l = 0; l < TAGI_AMX_STEPS; l += 2, x += 2 * stride, out += TAGI_AMX_LANES) {
        __m512i even[TAGI_AMX_MOST], odd[TAGI_AMX_MOST];
        tagi_amx_split(parts, l < steps ? _mm512_maskz_loadu_ps(seen, x) : _mm512_setzero_ps(), even);
        tagi_amx_split(parts, l + 1 < steps ? _mm512_maskz_loadu_ps(seen, x + stride) : _mm512_setzero_ps(), odd);
#pragma GCC unroll 3
        for (int p = 0; p < parts; p++)
            _mm512_store_si512(out + 2 * p * TAGI_AMX_TILE,
                               _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(even[p], 16), odd[p]));
    }
}

/* The same for lanes that are rows of x (lanes x steps), but each tile is lanes by pairs of steps. */
TAGI_AMX_INLINE void tagi_amx_pack_rows(int parts, const float *x, long stride, int lanes, int steps, int *out) {
    short order[32];
    for (int i = 0; i < 32; i++) order[i] = 2 * i + 1;
    __m512i uppers = _mm512_loadu_si512(order);
    __mmask16 first = tagi_bf_first(steps), second = tagi_bf_first(steps - 16);
    for (int i = 0; i < TAGI_AMX_LANES; i++, x += stride, out += TAGI_AMX_LANES) {
        __m512i low[TAGI_AMX_MOST], high[TAGI_AMX_MOST];
        tagi_amx_split(parts, i < lanes ? _mm512_maskz_loadu_ps(first, x) : _mm512_setzero_ps(), low);
        tagi_amx_split(parts, i < lanes ? _mm512_maskz_loadu_ps(second, x + 16) : _mm512_setzero_ps(), high);
#pragma GCC unroll 3
        for (int p = 0; p < parts; p++)
            _mm512_store_si512(out + 2 * p * TAGI_AMX_TILE, _mm512_permutex2var_epi16(low[p], uppers, high[p]));
    }
}

TAGI_AMX_INLINE void tagi_amx_transpose(int *tile) {
    __m512i row[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) row[i] = _mm512_load_si512(tile + 16 * i);
    tagi_bf_transpose(row);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_store_si512(tile + 16 * i, row[i]);
}

/* Packs all lanes and k steps, 32 lanes at a time: out (32 lanes, 32 steps, parts, 2 tiles of 16 lanes). rows: lanes
 * are rows of x, else its columns. across: each tile is transposed: AMX needs tiles of a as lanes by pairs of steps,
 * and those of b as pairs of steps by lanes. */
TAGI_AMX_INLINE void tagi_amx_pack(int parts, int rows, int across, const float *x, long stride, int lanes, int k,
                                   int *out) {
    for (int first = 0; first < lanes; first += 32)
        for (int l = 0; l < k; l += TAGI_AMX_STEPS, out += 2 * parts * TAGI_AMX_TILE)
            for (int i = first; i < lanes && i < first + 32; i += TAGI_AMX_LANES) {
                int *tile = out + (i - first) / TAGI_AMX_LANES * TAGI_AMX_TILE;
                if (rows)
                    tagi_amx_pack_rows(parts, x + i * stride + l, stride, lanes - i, k - l, tile);
                else
                    tagi_amx_pack_lines(parts, x + l * stride + i, stride, lanes - i, k - l, tile);
                for (int p = 0; across && p < parts; p++) tagi_amx_transpose(tile + 2 * p * TAGI_AMX_TILE);
            }
}

/* Tiles 0 to 3 hold the sums, 4 and 5 a part of 32 rows of a, and 6 and 7 a part of 32 columns of b. */
#define TAGI_AMX_A(part)                                \
    _tile_loadd(4, a + 2 * (part) * TAGI_AMX_TILE, 64); \
    if (down == 2) _tile_loadd(5, a + (2 * (part) + 1) * TAGI_AMX_TILE, 64);
#define TAGI_AMX_B(part)                                \
    _tile_loadd(6, b + 2 * (part) * TAGI_AMX_TILE, 64); \
    if (along == 2) _tile_loadd(7, b + (2 * (part) + 1) * TAGI_AMX_TILE, 64);
#define TAGI_AMX_MULTIPLY                    \
    _tile_dpbf16ps(0, 4, 6);                 \
    if (along == 2) _tile_dpbf16ps(1, 4, 7); \
    if (down == 2) _tile_dpbf16ps(2, 5, 6);  \
    if (down == 2 && along == 2) _tile_dpbf16ps(3, 5, 7);
#define TAGI_AMX_SUMS(f)                                          \
    f(0, c, stride * sizeof(float));                              \
    if (along == 2) f(1, c + 16, stride * sizeof(float));         \
    if (down == 2) f(2, c + 16 * stride, stride * sizeof(float)); \
    if (down == 2 && along == 2) f(3, c + 16 * stride + 16, stride * sizeof(float));

/* c (down x along tiles of 16 x 16) = a b, or c + a b if `more`, from packed operands. The order of the products of
 * parts is such that one of the two factors is already loaded. */
TAGI_AMX_INLINE void tagi_amx_tiles(int parts, int down, int along, const int *a, const int *b, int steps, int more,
                                    float *c, long stride) {
    TAGI_AMX_WRITTEN(a);
    if (more) {
        TAGI_AMX_SUMS(_tile_loadd)
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int l = 0; l < steps; l++, a += 2 * parts * TAGI_AMX_TILE, b += 2 * parts * TAGI_AMX_TILE) {
        TAGI_AMX_A(0)
        if (parts == 3) {
            TAGI_AMX_B(2)
            TAGI_AMX_MULTIPLY TAGI_AMX_B(1) TAGI_AMX_MULTIPLY TAGI_AMX_A(1) TAGI_AMX_MULTIPLY TAGI_AMX_B(0)
                TAGI_AMX_MULTIPLY TAGI_AMX_A(2) TAGI_AMX_MULTIPLY TAGI_AMX_A(0)
        } else {
            TAGI_AMX_B(0)
        }
        TAGI_AMX_MULTIPLY
    }
    TAGI_AMX_SUMS(_tile_stored)
}

/* c (rows x columns, at most 32 x 32) = a b + beta c from packed operands. If c does not consist of whole tiles, sums
 * are computed in `rest` (32 x 32), and then added to c. */
TAGI_AMX_INLINE void tagi_amx_block(int parts, const int *a, const int *b, int steps, int rows, int columns, float beta,
                                    float *c, long stride, float *rest) {
    int whole = rows % 16 == 0 && columns % 16 == 0 && (beta == 0 || beta == 1), more = whole && beta == 1;
    float *sums = whole ? c : rest;
    long line = whole ? stride : 32;
    if (rows > 16 && columns > 16)
        tagi_amx_tiles(parts, 2, 2, a, b, steps, more, sums, line);
    else if (rows > 16)
        tagi_amx_tiles(parts, 2, 1, a, b, steps, more, sums, line);
    else if (columns > 16)
        tagi_amx_tiles(parts, 1, 2, a, b, steps, more, sums, line);
    else
        tagi_amx_tiles(parts, 1, 1, a, b, steps, more, sums, line);
    for (int i = 0; i < rows && !whole; i++, c += stride, sums += 32)
        for (int j = 0; j < columns; j += 16) {
            __mmask16 seen = tagi_bf_first(columns - j);
            __m512 start = _mm512_maskz_loadu_ps(beta == 0 ? 0 : seen, c + j), sum = _mm512_load_ps(sums + j);
            _mm512_mask_storeu_ps(c + j, seen, _mm512_fmadd_ps(_mm512_set1_ps(beta), start, sum));
        }
}

/* Prefetches a block of results, whose rows are in many pages of memory. */
TAGI_AMX_INLINE void tagi_amx_fetch(float *c, long stride, int rows, int columns) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns && j < 32; j += 16) __builtin_prefetch(c + i * stride + j, 1);
}

TAGI_AMX_INLINE void tagi_amx_configure(void) {
    struct {
        unsigned char palette, start, unused[14];
        unsigned short width[16];
        unsigned char height[16];
    } tiles = {.palette = 1};
    for (int i = 0; i < 8; i++) tiles.width[i] = 64, tiles.height[i] = 16;
    TAGI_AMX_WRITTEN(&tiles);
    _tile_loadconfig(&tiles);
}

/* c (m x n) = op(a) op(b) + beta c with factors of `parts` parts; other arguments are those of `tagi_avx2_product`. */
TAGI_AMX_INLINE void tagi_amx_multiply(int parts, int ta, int tb, int m, int n, int k, const float *a, long lda,
                                       const float *b, long ldb, float beta, float *c, long ldc) {
    int pieces = (k + TAGI_AMX_DEPTH - 1) / TAGI_AMX_DEPTH, most = (k + 32 * pieces - 1) / (32 * pieces) * 32;
    int *rows = tagi_amx_memory.rows, *columns = tagi_amx_memory.columns;
    float *rest = tagi_amx_memory.sums;
    tagi_amx_configure();
    for (int l = 0; l < k; l += most, beta = 1) {
        int depth = k - l < most ? k - l : most, steps = (depth + TAGI_AMX_STEPS - 1) / TAGI_AMX_STEPS;
        for (int j = 0; j < n; j += TAGI_AMX_COLUMNS) {
            int width = n - j < TAGI_AMX_COLUMNS ? n - j : TAGI_AMX_COLUMNS;
            if (tb)
                tagi_amx_pack(parts, 1, 1, b + j * ldb + l, ldb, width, depth, columns);
            else
                tagi_amx_pack(parts, 0, 0, b + l * ldb + j, ldb, width, depth, columns);
            for (int i = 0; i < m; i += 32) {
                int height = m - i < 32 ? m - i : 32;
                float *to = c + i * ldc + j;
                tagi_amx_fetch(to, ldc, height, width);
                if (ta)
                    tagi_amx_pack(parts, 0, 1, a + l * lda + i, lda, height, depth, rows);
                else
                    tagi_amx_pack(parts, 1, 0, a + i * lda + l, lda, height, depth, rows);
                for (int q = 0; q < width; q += 32) {
                    tagi_amx_fetch(to + q + 32, ldc, height, width - q - 32);
                    tagi_amx_block(parts, rows, columns + q * parts * steps * TAGI_AMX_LANES, steps, height,
                                   width - q < 32 ? width - q : 32, beta, to + q, ldc, rest);
                }
            }
        }
    }
    _tile_release();
}

/* Products on a CPU with `tagi_has_amx`: with the errors of float32, and with factors rounded to bfloat16. */
TAGI_AMX static void tagi_amx_product(int ta, int tb, int m, int n, int k, const float *a, long lda, const float *b,
                                      long ldb, float beta, float *c, long ldc) {
    tagi_amx_multiply(3, ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
}

TAGI_AMX static void tagi_amx_rounded_product(int ta, int tb, int m, int n, int k, const float *a, long lda,
                                              const float *b, long ldb, float beta, float *c, long ldc) {
    tagi_amx_multiply(1, ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
}

#else

static inline int tagi_has_amx(void) { return 0; }
static inline int tagi_amx_repays(int m, int n, int k) { return 0; }
static void tagi_amx_product(int ta, int tb, int m, int n, int k, const float *a, long lda, const float *b, long ldb,
                             float beta, float *c, long ldc) {}
static void tagi_amx_rounded_product(int ta, int tb, int m, int n, int k, const float *a, long lda, const float *b,
                                     long ldb, float beta, float *c, long ldc) {}

#endif
#endif
