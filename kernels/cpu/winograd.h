/* Transforms of the Winograd forms that _winograd.pyx explains, as many channels at a time as a vector has numbers.
 * Channels and kernels come in multiples of 16. */
#ifndef PYTAGI_DDP_WINOGRAD_H
#define PYTAGI_DDP_WINOGRAD_H

#include <stddef.h>

/* No form; F(2x2, 3x3), F(4x4, 3x3) and F(2x2, 5x5); 4 x 4 outputs of 3 x 3 kernels with stride 2, of which taps 0 and
 * 2 meet even pixels, or odd ones, and of 4 x 4 kernels, of which they meet odd ones. */
enum { PLAIN, F2, F4, F2_5, EVEN_3, ODD_3, STRIDED_4 };
enum { MEAN, SQUARE, SQUARE_PLUS };
enum { PAD = 16 }; /* numbers behind each plane: planes that lie a power of two apart would share a few cache sets */
#define WIDEST 10  /* planes, and pixels of a window, along an edge */
#define MOST (WIDEST * WIDEST)

static inline int strided(int form) { return form >= EVEN_3; }
static inline int taps_of(int form) { return form == F2_5 ? 5 : form == STRIDED_4 ? 4 : 3; }

/* Along an edge of a tile: the pixels that are made; those from one window to the next, and of a window; planes; planes
 * of kernels. adjoint: from the outputs of the convolution to its inputs. */
static inline int made_of(int form, int adjoint) {
    return form == F2 || form == F2_5 ? 2 : strided(form) && adjoint ? 8 : 4;
}
static inline int step_of(int form, int adjoint) { return strided(form) ? (adjoint ? 4 : 8) : made_of(form, adjoint); }
static inline int window_of(int form, int adjoint) {
    return strided(form) ? (adjoint ? 6 : form == STRIDED_4 ? 10 : 9) : made_of(form, adjoint) + taps_of(form) - 1;
}
static inline int edge_of(int form) { return form == F2 ? 4 : !strided(form) ? 6 : form == STRIDED_4 ? 10 : 9; }
static inline int kernel_edge_of(int form) { return form == F2 ? 4 : form == STRIDED_4 ? 10 : 6; }

/* How many planes are multiplied by plane (i, j) of the kernels. */
static inline int sharing(int form, int i, int j) {
    return form == EVEN_3 || form == ODD_3 ? (i == 5 ? 4 : 1) * (j == 5 ? 4 : 1) : 1;
}

/* Where plane (i, j) of tiles starts, if each has `size` numbers. Those that share a plane of kernels follow each
 * other, so that one product serves them. */
static inline size_t place(int form, int i, int j, size_t size) {
    int edge = edge_of(form), a = i, b = j, before = i * edge + j;
    if (form == EVEN_3 || form == ODD_3) {
        a = i < 5 ? i : 5;
        b = j < 5 ? j : 5;
        before = a * edge + b * (a == 5 ? 4 : 1) + (i - a) * (b == 5 ? 4 : 1) + (j - b);
    }
    return before * size + (a * kernel_edge_of(form) + b) * PAD;
}

/* Points of interpolation, beside infinity: A, -A, B and -B, and 0 for F(4, 3) and F(2, 5). All products of these are
 * exact, and rounding errors are less than half of those that the usual 1 and 2 leave. */
#define A 0.75f
#define B 1.5f
#define N0 (1 / (A * A * B * B)) /* one over the product of a point's distances from the others, 0 among them */
#define NA (1 / (2 * A * A * (A * A - B * B)))
#define NB (1 / (2 * B * B * (B * B - A * A)))

#define LOOPS "winograd_loops.h"
#include "levels.h"

#undef A
#undef B
#undef N0
#undef NA
#undef NB

/* The planes of `tiles` windows, side by side; out: planes of (tile, channels), each of `size` numbers. rows: where the
 * first window starts in each of its lines, or NULL off the image; column: which of the `width` pixels of a line that is,
 * and less than 0 before the first one. What is off the image is 0. */
static inline void transform_pixels(int form, int adjoint, const float *const *rows, int squared, int column, int width,
                                    size_t pixel, int tiles, float *out, size_t stride, size_t size, size_t channels) {
    CALL(transform_pixels)
    (form, adjoint, rows, squared, column, width, pixel, tiles, out, stride, size, channels);
}

/* The pixels of each tile = the way back from products m + start, or += the way back; times the Jacobian's 1st or 2nd
 * power, if there is one. positive: no sum may round to less than 0. Of the pixels, `lines` and `columns` are in the
 * image. */
static inline void restore_pixels(int form, int adjoint, const float *m, size_t stride, size_t size, int tiles,
                                  int positive, const float *start, int more, const float *jcb, int power, float *x,
                                  int lines, int columns, size_t line, size_t pixel, size_t channels) {
    CALL(restore_pixels)
    (form, adjoint, m, stride, size, tiles, positive, start, more, jcb, power, x, lines, columns, line, pixel,
     channels);
}

/* The planes of the outputs of each tile, or of their squares, by which those of its pixels are multiplied for weight
 * deltas. Of the outputs, `lines` and `columns` are in the image. */
static inline void transform_deltas(int form, const float *x, int squared, int lines, int columns, size_t line,
                                    size_t pixel, int tiles, float *out, size_t stride, size_t size, size_t channels) {
    CALL(transform_deltas)(form, x, squared, lines, columns, line, pixel, tiles, out, stride, size, channels);
}

/* The planes of 16 kernels, `stride` apart; kind: of w, w^2 or w^2 + s. */
static inline void transform_kernels(int form, const float *w, const float *s, size_t stride, int kind, int flip,
                                     float *out, size_t plane) {
    CALL(transform_kernels)(form, w, s, stride, kind, flip, out, plane);
}

/* 16 kernels, one after the other, (+)= the way back from sums of products. */
static inline void restore_kernels(int form, const float *m, size_t plane, int more, float *out) {
    CALL(restore_kernels)(form, m, plane, more, out);
}

#endif
