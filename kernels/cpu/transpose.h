/* Transposed matrices, in tiles of 16 x 16 numbers whose lines of memory are used up before the next tile. */
#ifndef PYTAGI_DDP_TRANSPOSE_H
#define PYTAGI_DDP_TRANSPOSE_H

enum { SIDE = 16 };

#define LOOPS "transpose_loops.h"
#include "levels.h"

/* out (columns x rows) = x (rows x columns, rows `stride` apart) transposed. */
static inline void transpose_matrix(const float *x, size_t rows, size_t columns, size_t stride, float *out) {
    CALL(transpose_matrix)(x, rows, columns, stride, out);
}

#endif
