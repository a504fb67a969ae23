/* Transposes float32 matrices, for the order of images (_transpose.pyx), weights (_linear.pyx) and packed operands
 * (avx2.h). It uses tiles of 16 x 16 numbers: 16 float32 are a cache line, so that each line is read and written once.
 * */
#ifndef PYTAGI_DDP_TRANSPOSE_H
#define PYTAGI_DDP_TRANSPOSE_H

enum { TAGI_SIDE = 16 };

#define TAGI_LOOPS "transpose_loops.h"
#include "levels.h"

/* out (columns x rows, contiguous) = the transpose of x (rows x columns, rows `stride` numbers apart); the two must not
 * overlap. */
static inline void tagi_transpose_matrix(const float *x, size_t rows, size_t columns, size_t stride, float *out) {
    TAGI_CALL(tagi_transpose_matrix)(x, rows, columns, stride, out);
}

#endif
