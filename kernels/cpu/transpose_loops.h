/* The loops of transpose.h, which levels.h compiles for each length of vectors. */
#include "vectors.h"

#define transpose_tile NAME(transpose_tile)

/* Transposes the tile that begins at x into the one that begins at `out`. left_rows, left_columns: how many are left of
 * the matrix from here on, which may be fewer than a tile has. rows: those of the whole matrix, by which rows of its
 * transpose are apart. next, next_out: how far from x and `out` the next tile begins, to be prefetched. */
INLINE void transpose_tile(const float *x, size_t left_rows, size_t left_columns, size_t stride, float *out,
                           size_t rows, size_t next, size_t next_out) {
    if (left_rows < SIDE || left_columns < SIDE) {
        for (size_t q = 0; q < SIDE && q < left_columns; q++)
            for (size_t r = 0; r < SIDE && r < left_rows; r++) out[q * rows + r] = x[r * stride + q];
        return;
    }
    for (int k = 0; k < SIDE; k++) {
        FETCH(x + next + k * stride);
        FETCH_TO_WRITE(out + next_out + k * rows);
    }
    for (int q = 0; q < SIDE; q += 8)
        for (int r = 0; r < SIDE; r += LANES) {
            vector lines[8], columns[8];
            UNROLLED for (int k = 0; k < 8; k++)
                EIGHTS(lines[k], x + (r + k) * stride + q, x + (r + k + 8) * stride + q);
            transpose_eights(lines, columns);
            UNROLLED for (int k = 0; k < 8; k++) AT(out + (q + k) * rows + r) = columns[k];
        }
}

/* Tiles follow each other along the longer side of x. So one of the two matrices is worked on in 16 long rows, from end
 * to end, and the other one in short rows, which lie close together. In the other direction, each tile would begin 16
 * other long rows, and these lie too far apart for a processor to keep them all at hand. */
TARGET static void NAME(transpose_matrix)(const float *x, size_t rows, size_t columns, size_t stride, float *out) {
    if (rows > columns) {
        for (size_t j = 0; j < columns; j += SIDE)
            for (size_t i = 0; i < rows; i += SIDE)
                transpose_tile(x + i * stride + j, rows - i, columns - j, stride, out + j * rows + i, rows,
                               SIDE * stride, SIDE);
    } else {
        for (size_t i = 0; i < rows; i += SIDE)
            for (size_t j = 0; j < columns; j += SIDE)
                transpose_tile(x + i * stride + j, rows - i, columns - j, stride, out + j * rows + i, rows, SIDE,
                               SIDE * rows);
    }
}

#undef transpose_tile
