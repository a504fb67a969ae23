/* Transforms of the Winograd forms F(2x2, 3x3) and F(4x4, 3x3), as many channels at a time as a vector has numbers. See
 * _winograd.pyx. Channels and kernels come in multiples of 16. */
#ifndef PYTAGI_DDP_WINOGRAD_H
#define PYTAGI_DDP_WINOGRAD_H

#define MOST 36 /* planes */

/* The one-dimensional transforms of F(edge, 3). F(4, 3) interpolates at 0, 3/4, -3/4, 3/2, -3/2 and infinity: all
 * products of these are exact, and rounding errors are less than half of those that the usual 1 and 2 leave. */
#define A 0.75f
#define B 1.5f
#define N0 (1 / (A * A * B * B)) /* one over the product of a point's distances from the others */
#define NA (1 / (2 * A * A * (A * A - B * B)))
#define NB (1 / (2 * B * B * (B * B - A * A)))

enum { MEAN, SQUARE, SQUARE_PLUS };

#define LOOPS "winograd_loops.h"
#include "levels.h"

#undef A
#undef B
#undef N0
#undef NA
#undef NB

/* B^T d B of `tiles` windows of (edge + 2)^2 pixels, side by side and `edge` pixels apart; out: planes of (tile,
 * channels). rows: where the first window's second pixel lies in its lines, or NULL off the image; first, last: whether
 * the run starts at the left and ends at the right edge, beyond which there are zeros. */
static inline void transform_pixels(int edge, const float *const *rows, int squared, int first, int last, size_t pixel,
                                    int tiles, float *out, size_t stride, size_t plane, size_t channels) {
    CALL(transform_pixels)(edge, rows, squared, first, last, pixel, tiles, out, stride, plane, channels);
}

/* The pixels of each tile = A^T m A + start, or += A^T m A: the way back from products; times the Jacobian's 1st or 2nd
 * power, if there is one. positive: no sum may round to less than 0. */
static inline void restore_pixels(int edge, const float *m, size_t stride, size_t plane, int tiles, int positive,
                                  const float *start, int more, const float *jcb, int power, float *x, size_t line,
                                  size_t pixel, size_t channels) {
    CALL(restore_pixels)
    (edge, m, stride, plane, tiles, positive, start, more, jcb, power, x, line, pixel, channels);
}

/* A e A^T of the pixels of each tile, or of their squares; out: planes. */
static inline void transform_deltas(int edge, const float *x, int squared, size_t line, size_t pixel, int tiles,
                                    float *out, size_t stride, size_t plane, size_t channels) {
    CALL(transform_deltas)(edge, x, squared, line, pixel, tiles, out, stride, plane, channels);
}

/* G g G^T of 16 kernels of 3 x 3, `stride` apart; kind: g = w, w^2 or w^2 + s; out: planes. */
static inline void transform_kernels(int edge, const float *w, const float *s, size_t stride, int kind, int flip,
                                     float *out, size_t plane) {
    CALL(transform_kernels)(edge, w, s, stride, kind, flip, out, plane);
}

/* 16 kernels of 3 x 3, one after the other, (+)= G^T m G: the way back from sums of products. */
static inline void restore_kernels(int edge, const float *m, size_t plane, int more, float *out) {
    CALL(restore_kernels)(edge, m, plane, more, out);
}

#endif
