/* Vectors of sixteen numbers, and what is made of them: the compiler makes two or four of each where registers are
 * smaller. */
#ifndef PYTAGI_DDP_VECTORS_H
#define PYTAGI_DDP_VECTORS_H

#include "loops.h"

typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
typedef int bits __attribute__((vector_size(64)));
#define AT(x) (*(vector *)(x))
#define FROM(x) (*(const vector *)(x))

#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 9")

/* Of the tile after the one at hand: it lies on lines of memory that processors do not fetch ahead by themselves, and
 * waiting for them takes longer than the work on a tile. An address beyond the array does no harm. */
#define FETCH(x) __builtin_prefetch(x)
#define FETCH_TO_WRITE(x) __builtin_prefetch(x, 1)

typedef float half __attribute__((vector_size(32), aligned(4), may_alias));
#define HALF(x) (*(half *)(x))
#define LOW(x) HALF(&(x))
#define HIGH(x) HALF((float *)&(x) + 8)
#if defined(__clang__) || __GNUC__ >= 12
#define PICK __builtin_shufflevector
#define JOIN(x, a, b) x = PICK(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (bits){__VA_ARGS__})
#define JOIN(x, a, b) LOW(x) = a, HIGH(x) = b
#endif

/* Both halves of 8 vectors, each an 8 x 8 matrix, transposed. */
INLINE void transpose_halves(const vector *x, vector *out) {
    vector y[8], z[8];
    UNROLLED for (int i = 0; i < 8; i += 2) {
        y[i] = PICK(x[i], x[i + 1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
        y[i + 1] = PICK(x[i], x[i + 1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    }
    UNROLLED for (int i = 0; i < 8; i += 4) UNROLLED for (int j = i; j < i + 2; j++) {
        z[j] = PICK(y[j], y[j + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
        z[j + 2] = PICK(y[j], y[j + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
    UNROLLED for (int i = 0; i < 4; i++) {
        out[i] = PICK(z[i], z[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
        out[i + 4] = PICK(z[i], z[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    }
}

#endif
