/* The loops of transpose.h, which levels.h compiles for each length of vectors. */
#include "vectors.h"

#define tagi_transpose_tile TAGI_NAME(tagi_transpose_tile)

/* Transposes the tile that begins at x into the one that begins at `out`. left_rows, left_columns: the remaining rows
 * and columns of the matrix, maybe fewer than those of a tile. rows: rows of the whole matrix, the distance between
 * rows of its transpose. next, next_out: distance of the next tile from x and `out`, for prefetching. */
TAGI_INLINE void tagi_transpose_tile(const float *x, size_t left_rows, size_t left_columns, size_t stride, float *out,
                                     size_t rows, size_t next, size_t next_out) {
    if (left_rows < TAGI_SIDE || left_columns < TAGI_SIDE) {
        for (size_t q = 0; q < TAGI_SIDE && q < left_columns; q++)
            for (size_t r = 0; r < TAGI_SIDE && r < left_rows; r++) out[q * rows + r] = x[r * stride + q];
        return;
    }
    for (int k = 0; k < TAGI_SIDE; k++) {
        TAGI_FETCH(x + next + k * stride);
        TAGI_FETCH_TO_WRITE(out + next_out + k * rows);
    }
    for (int q = 0; q < TAGI_SIDE; q += 8)
        for (int r = 0; r < TAGI_SIDE; r += TAGI_LANES) {
            tagi_vector lines[8], columns[8];
            TAGI_UNROLLED for (int k = 0; k < 8; k++) TAGI_LOAD(lines[k], x + r * stride + q, stride, k);
            tagi_transpose_block(lines, columns);
            TAGI_UNROLLED for (int k = 0; k < 8; k++) TAGI_AT(out + (q + k) * rows + r) = columns[k];
        }
}

/* The loop over tiles runs along the longer side of x. So one of the two matrices is accessed in 16 long rows, from end
 * to end, and the other one in short rows, which are close together. In the other direction, each tile would begin 16
 * other long rows, which are too far apart for the caches. */
TAGI_TARGET static void TAGI_NAME(tagi_transpose_matrix)(const float *x, size_t rows, size_t columns, size_t stride,
                                                         float *out) {
    if (rows > columns) {
        for (size_t j = 0; j < columns; j += TAGI_SIDE)
            for (size_t i = 0; i < rows; i += TAGI_SIDE)
                tagi_transpose_tile(x + i * stride + j, rows - i, columns - j, stride, out + j * rows + i, rows,
                                    TAGI_SIDE * stride, TAGI_SIDE);
    } else {
        for (size_t i = 0; i < rows; i += TAGI_SIDE)
            for (size_t j = 0; j < columns; j += TAGI_SIDE)
                tagi_transpose_tile(x + i * stride + j, rows - i, columns - j, stride, out + j * rows + i, rows,
                                    TAGI_SIDE, TAGI_SIDE * rows);
    }
}

#undef tagi_transpose_tile
