/* Vectors of TAGI_LANES float32: loads, stores, shuffles and transposes.
 *
 * The files that levels.h compiles include this one, several times in one compilation, with different TAGI_LANES: the
 * part before the first #endif is defined once, the rest once for each length. */
#ifndef PYTAGI_DDP_VECTORS_H
#define PYTAGI_DDP_VECTORS_H

#include "loops.h"

/* The vector at an address, which need not be aligned: AT to store it, FROM to load it. */
#define TAGI_AT(x) (*(tagi_vector *)(x))
#define TAGI_FROM(x) (*(const tagi_vector *)(x))

#define TAGI_INLINE TAGI_TARGET static inline __attribute__((always_inline))
#define TAGI_UNROLLED _Pragma("GCC unroll 10")

/* Prefetches a cache line of the next tile. The rows of a tile are far apart in memory, so that processors do not
 * prefetch them, and waiting for them takes longer than computing a tile. An address beyond the array is allowed. */
#define TAGI_FETCH(x) __builtin_prefetch(x)
#define TAGI_FETCH_TO_WRITE(x) __builtin_prefetch(x, 1)

/* A vector of numbers of a and b, chosen by their indices; those of b continue after those of a. */
#if defined(__clang__) || __GNUC__ >= 12
#define TAGI_PICK __builtin_shufflevector
#else
#define TAGI_PICK(a, b, ...) __builtin_shuffle(a, b, (tagi_bits){__VA_ARGS__})
#endif

/* 8 numbers: half of a vector with AVX-512. */
typedef float tagi_half __attribute__((vector_size(32), aligned(4), may_alias));
#define TAGI_HALF(x) (*(tagi_half *)(x))

#define tagi_vector TAGI_NAME(tagi_vector)
#define tagi_bits TAGI_NAME(tagi_bits)
#define tagi_part TAGI_NAME(tagi_part)
#define tagi_transpose_block TAGI_NAME(tagi_transpose_block)

#endif

typedef float tagi_vector __attribute__((vector_size(4 * TAGI_LANES), aligned(4), may_alias));
typedef int tagi_bits __attribute__((vector_size(4 * TAGI_LANES)));

/* A *block* has 8 vectors, of lines of a matrix: vector i has 8 numbers of line i and, if it has 16, those of line i + 8
 * behind them. Vectors of 4 come in two groups: 4 numbers of lines 0 to 3, then those that follow in the same lines.
 * TAGI_LINE and TAGI_COLUMN: where vector i begins. TAGI_LOAD: v = vector i of the block at x, lines `stride` apart.
 * tagi_part: the contiguous numbers of a vector. */
#undef TAGI_LINE
#undef TAGI_COLUMN
#undef TAGI_LOAD
#undef TAGI_MIX
#if TAGI_LANES == 4
#define TAGI_LINE(i) ((i) & 3)
#define TAGI_COLUMN(i) ((i) & 4)
#else
#define TAGI_LINE(i) (i)
#define TAGI_COLUMN(i) 0
#endif
#if TAGI_LANES == 16
typedef tagi_half tagi_part;
#if defined(__clang__) || __GNUC__ >= 12
#define TAGI_LOAD(v, x, stride, i)                                                                    \
    v = TAGI_PICK(TAGI_HALF((x) + (i) * (stride)), TAGI_HALF((x) + ((i) + 8) * (stride)), 0, 1, 2, 3, \
                  4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#else
#define TAGI_LOAD(v, x, stride, i)                     \
    TAGI_HALF(&(v)) = TAGI_HALF((x) + (i) * (stride)), \
                 TAGI_HALF((float *)&(v) + 8) = TAGI_HALF((x) + ((i) + 8) * (stride))
#endif
/* A vector of 8 numbers that are chosen from two vectors of 8 by their indices, 0 to 7 for x and 8 to 15 for y. Of
 * vectors of 16, each half is mixed in the same way. */
#define TAGI_LANE(i) ((i) + ((i) & 8))
#define TAGI_MIX(x, y, a, b, c, d, e, f, g, h)                                                                        \
    TAGI_PICK(x, y, TAGI_LANE(a), TAGI_LANE(b), TAGI_LANE(c), TAGI_LANE(d), TAGI_LANE(e), TAGI_LANE(f), TAGI_LANE(g), \
              TAGI_LANE(h), TAGI_LANE(a) + 8, TAGI_LANE(b) + 8, TAGI_LANE(c) + 8, TAGI_LANE(d) + 8, TAGI_LANE(e) + 8, \
              TAGI_LANE(f) + 8, TAGI_LANE(g) + 8, TAGI_LANE(h) + 8)
#else
typedef tagi_vector tagi_part;
#define TAGI_LOAD(v, x, stride, i) v = TAGI_FROM((x) + TAGI_LINE(i) * (stride) + TAGI_COLUMN(i))
#define TAGI_MIX TAGI_PICK
#endif

/* out = x transposed, where x is a block: out[k] has number k of each line. */
TAGI_INLINE void tagi_transpose_block(const tagi_vector *x, tagi_vector *out) {
    tagi_vector y[8];
#if TAGI_LANES == 4
    TAGI_UNROLLED for (int i = 0; i < 8; i += 2) {
        y[i] = TAGI_MIX(x[i], x[i + 1], 0, 4, 1, 5);
        y[i + 1] = TAGI_MIX(x[i], x[i + 1], 2, 6, 3, 7);
    }
    TAGI_UNROLLED for (int i = 0; i < 8; i += 4) TAGI_UNROLLED for (int j = 0; j < 2; j++) {
        out[i + 2 * j] = TAGI_MIX(y[i + j], y[i + j + 2], 0, 1, 4, 5);
        out[i + 2 * j + 1] = TAGI_MIX(y[i + j], y[i + j + 2], 2, 3, 6, 7);
    }
#else
    tagi_vector z[8];
    TAGI_UNROLLED for (int i = 0; i < 8; i += 2) {
        y[i] = TAGI_MIX(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        y[i + 1] = TAGI_MIX(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    TAGI_UNROLLED for (int i = 0; i < 8; i += 4) TAGI_UNROLLED for (int j = 0; j < 2; j++) {
        z[i + 2 * j] = TAGI_MIX(y[i + j], y[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        z[i + 2 * j + 1] = TAGI_MIX(y[i + j], y[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    TAGI_UNROLLED for (int i = 0; i < 4; i++) {
        out[i] = TAGI_MIX(z[i], z[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        out[i + 4] = TAGI_MIX(z[i], z[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#endif
}
