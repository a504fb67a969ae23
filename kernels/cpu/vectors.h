/* Vectors of LANES numbers, and what is made of them: see levels.h, which has this read once for each length. */
#ifndef PYTAGI_DDP_VECTORS_H
#define PYTAGI_DDP_VECTORS_H

#include "loops.h"

#define AT(x) (*(vector *)(x))
#define FROM(x) (*(const vector *)(x))

#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 10")

/* Of the tile after the one at hand: it lies on lines of memory that processors do not fetch ahead by themselves, and
 * waiting for them takes longer than the work on a tile. An address beyond the array does no harm. */
#define FETCH(x) __builtin_prefetch(x)
#define FETCH_TO_WRITE(x) __builtin_prefetch(x, 1)

#if defined(__clang__) || __GNUC__ >= 12
#define PICK __builtin_shufflevector
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (bits){__VA_ARGS__})
#endif

typedef float half __attribute__((vector_size(32), aligned(4), may_alias));
#define HALF(x) (*(half *)(x))

#define vector NAME(vector)
#define bits NAME(bits)
#define transpose_eights NAME(transpose_eights)

#endif

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int bits __attribute__((vector_size(4 * LANES)));

/* EIGHTS: v = 8 numbers at x and, if a vector has more, 8 at y. MIX: 8 of the same 8 numbers of two vectors, the latter
 * counted on from 8. */
#undef EIGHTS
#undef MIX
#if LANES == 16
#if defined(__clang__) || __GNUC__ >= 12
#define EIGHTS(v, x, y) v = PICK(HALF(x), HALF(y), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#else
#define EIGHTS(v, x, y) HALF(&(v)) = HALF(x), HALF((float *)&(v) + 8) = HALF(y)
#endif
#define LANE(i) ((i) + ((i)&8))
#define MIX(x, y, a, b, c, d, e, f, g, h)                                                                           \
    PICK(x, y, LANE(a), LANE(b), LANE(c), LANE(d), LANE(e), LANE(f), LANE(g), LANE(h), LANE(a) + 8, LANE(b) + 8,       \
         LANE(c) + 8, LANE(d) + 8, LANE(e) + 8, LANE(f) + 8, LANE(g) + 8, LANE(h) + 8)
#else
#define EIGHTS(v, x, y) v = HALF(x)
#define MIX PICK
#endif

/* Each 8 numbers of 8 vectors, an 8 x 8 matrix, transposed. */
INLINE void transpose_eights(const vector *x, vector *out) {
    vector y[8], z[8];
    UNROLLED for (int i = 0; i < 8; i += 2) {
        y[i] = MIX(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        y[i + 1] = MIX(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    UNROLLED for (int i = 0; i < 8; i += 4) UNROLLED for (int j = 0; j < 2; j++) {
        z[i + 2 * j] = MIX(y[i + j], y[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        z[i + 2 * j + 1] = MIX(y[i + j], y[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    UNROLLED for (int i = 0; i < 4; i++) {
        out[i] = MIX(z[i], z[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        out[i + 4] = MIX(z[i], z[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
