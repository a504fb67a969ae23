/* Transposed matrices, four by four numbers at a time, so that whole vectors are read and written. */
#ifndef PYTAGI_DDP_TRANSPOSE_H
#define PYTAGI_DDP_TRANSPOSE_H

#include <stddef.h>

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

#if defined(__clang__)
#define PICK(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int four_places __attribute__((vector_size(16)));
#define PICK(a, b, i, j, k, l) __builtin_shuffle(a, b, (four_places){i, j, k, l})
#endif

static inline void transpose_four(const float *x, size_t rows, size_t stride, float *out) {
    four r[4], low[2], high[2];
    for (int i = 0; i < 4; i++) r[i] = *(const four *)(x + i * stride);
    for (int i = 0; i < 2; i++) {
        low[i] = PICK(r[2 * i], r[2 * i + 1], 0, 4, 1, 5);
        high[i] = PICK(r[2 * i], r[2 * i + 1], 2, 6, 3, 7);
    }
    *(four *)out = PICK(low[0], low[1], 0, 1, 4, 5);
    *(four *)(out + rows) = PICK(low[0], low[1], 2, 3, 6, 7);
    *(four *)(out + 2 * rows) = PICK(high[0], high[1], 0, 1, 4, 5);
    *(four *)(out + 3 * rows) = PICK(high[0], high[1], 2, 3, 6, 7);
}

enum { TILE_SIDE = 16 };

/* One tile, x in the source and `out` in the result, or what is left of it: `left_rows` by `left_columns`. */
static inline void transpose_tile(const float *x, size_t left_rows, size_t left_columns, size_t stride, float *out,
                                  size_t rows) {
    if (left_rows >= TILE_SIDE && left_columns >= TILE_SIDE) {
        for (int q = 0; q < TILE_SIDE; q += 4)
            for (int r = 0; r < TILE_SIDE; r += 4) transpose_four(x + r * stride + q, rows, stride, out + q * rows + r);
        return;
    }
    for (size_t q = 0; q < TILE_SIDE && q < left_columns; q++)
        for (size_t r = 0; r < TILE_SIDE && r < left_rows; r++) out[q * rows + r] = x[r * stride + q];
}

/* out (columns x rows) = x (rows x columns, rows `stride` apart) transposed: in tiles whose cache lines are used up
 * before the next tile. Tiles follow each other along the longer side: along the shorter one, each would begin as many
 * new rows of memory as it has lines, more at a time than a processor fetches ahead. */
static inline void transpose_matrix(const float *x, size_t rows, size_t columns, size_t stride, float *out) {
    const size_t side = TILE_SIDE;
    if (rows > columns) {
        for (size_t j = 0; j < columns; j += side)
            for (size_t i = 0; i < rows; i += side)
                transpose_tile(x + i * stride + j, rows - i, columns - j, stride, out + j * rows + i, rows);
    } else {
        for (size_t i = 0; i < rows; i += side)
            for (size_t j = 0; j < columns; j += side)
                transpose_tile(x + i * stride + j, rows - i, columns - j, stride, out + j * rows + i, rows);
    }
}

#endif
