/* Vectors of LANES float32, and how they are loaded, stored, shuffled and transposed.
 *
 * The files that levels.h compiles include this one. So it is read several times in one compilation, each time with
 * other LANES: what comes before the first #endif is defined once, what follows once for each length. */
#ifndef PYTAGI_DDP_VECTORS_H
#define PYTAGI_DDP_VECTORS_H

#include "loops.h"

/* The vector at an address, which need not be aligned: AT to store it, FROM to load it. */
#define AT(x) (*(vector *)(x))
#define FROM(x) (*(const vector *)(x))

#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 10")

/* Prefetch a cache line of the next tile while the present one is worked on. The rows of a tile lie far apart in
 * memory, so processors do not fetch them ahead by themselves, and to wait for them takes longer than the work on a
 * tile. An address beyond the array does no harm. */
#define FETCH(x) __builtin_prefetch(x)
#define FETCH_TO_WRITE(x) __builtin_prefetch(x, 1)

/* A vector of numbers of a and b, chosen by their indices; those of b continue after those of a. */
#if defined(__clang__) || __GNUC__ >= 12
#define PICK __builtin_shufflevector
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (bits){__VA_ARGS__})
#endif

/* 8 numbers: half of a vector with AVX-512, else a whole one. */
typedef float half __attribute__((vector_size(32), aligned(4), may_alias));
#define HALF(x) (*(half *)(x))

#define vector NAME(vector)
#define bits NAME(bits)
#define transpose_eights NAME(transpose_eights)

#endif

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int bits __attribute__((vector_size(4 * LANES)));

/* EIGHTS: v = the 8 numbers at x and, if a vector has 16, the 8 numbers at y behind them.
 * MIX: a vector of 8 numbers that are chosen from two vectors of 8 by their indices, 0 to 7 for x and 8 to 15 for y. Of
 * vectors of 16, each half is mixed in the same way. */
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

/* out = x transposed, where x[0] to x[7] are the rows of an 8 x 8 matrix. Vectors of 16 hold two such matrices side by
 * side, and each is transposed by itself. */
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
