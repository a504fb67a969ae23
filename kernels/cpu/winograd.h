/* Transforms for convolutions in the Winograd form, as _winograd.pyx and _winograd_weight.pyx call them.
 *
 * F(e x e, 3 x 3), with e = 2 or 4, makes a tile of e x e outputs of a convolution by a 3 x 3 kernel from the window of
 * n x n pixels that the tile depends on, n = e + 2, with n^2 multiplications instead of 9 e^2. The idea, in one
 * dimension: the product of a polynomial with e coefficients and one with 3 has n coefficients. It can be made by
 * evaluating both factors at n points (matrices A and G), multiplying the values point by point, and interpolating
 * (matrix B): n multiplications instead of 3 e. A convolution is the transpose of that map, and so is made by the
 * transposed matrices. In two dimensions each matrix is applied to the columns of a tile and to its rows:
 *
 *     outputs of a tile = A^T [(G g G^T) (B^T d B)] A         g: kernel, d: pixels of the window
 *     gradient of the kernel = G^T [(A e A^T) (B^T d B)] G    e: deltas of the outputs
 *
 * where brackets multiply element by element. Names are those of Lavin & Gray 2016 (see _winograd.pyx).
 *
 * The sums over channels, or over tiles for gradients, are made within the brackets. For that, transformed numbers are
 * written as n^2 matrices, called *planes*: plane k holds element k of all tiles, (tiles, channels), and each plane
 * takes one matrix product. A vector holds neighbouring channels of a tile, or several kernels, so both come in
 * multiples of 16. `edge` is e everywhere. */
#ifndef PYTAGI_DDP_WINOGRAD_H
#define PYTAGI_DDP_WINOGRAD_H

#define MOST 36 /* planes, of edge 4 */

/* F(4, 3) uses the points 0, A, -A, B, -B and infinity. Their powers are exact in float32, and rounding errors are less
 * than half of those that the usual points +-1 and +-2 leave. (F(2, 3) uses 0, 1, -1 and infinity.) N0, NA and NB are
 * one over the product of the distances of 0, of A or -A, and of B or -B from the other points, as interpolation needs
 * them. */
#define A 0.75f
#define B 1.5f
#define N0 (1 / (A * A * B * B))
#define NA (1 / (2 * A * A * (A * A - B * B)))
#define NB (1 / (2 * B * B * (B * B - A * A)))

enum { MEAN, SQUARE, SQUARE_PLUS }; /* kernels are w, w^2 or w^2 + s */

#define LOOPS "winograd_loops.h"
#include "levels.h"

#undef A
#undef B
#undef N0
#undef NA
#undef NB

/* out (planes, tiles, channels) = B^T d B, for a run of tiles side by side, whose windows d begin `edge` pixels apart.
 * Planes are `plane` numbers apart, and tiles `stride` numbers.
 *
 * rows: the edge + 2 lines of the image that the windows see, each from the second pixel of the first window on, or
 * NULL if the line is off the image. A pixel is `pixel` numbers from the next one. first, last: whether the run begins
 * at the left edge of the image and ends at the right one; the windows see one column of zeros beyond these. squared: d
 * is the square of the pixels. */
static inline void transform_pixels(int edge, const float *const *rows, int squared, int first, int last, size_t pixel,
                                    int tiles, float *out, size_t stride, size_t plane, size_t channels) {
    CALL(transform_pixels)(edge, rows, squared, first, last, pixel, tiles, out, stride, plane, channels);
}

/* x = jcb^power (A^T m A + start), or x = jcb^power (x + A^T m A) if `more`, for a run of tiles side by side.
 *
 * m (planes, tiles, channels) are the sums of products. x is the first pixel of the first tile; lines are `line`
 * numbers apart, and pixels `pixel` numbers. start (channels) and jcb (laid out as x) may be NULL, for 0 and 1.
 * positive: sums are not negative, but for rounding, and such as round to less than 0 become 0. */
static inline void restore_pixels(int edge, const float *m, size_t stride, size_t plane, int tiles, int positive,
                                  const float *start, int more, const float *jcb, int power, float *x, size_t line,
                                  size_t pixel, size_t channels) {
    CALL(restore_pixels)
    (edge, m, stride, plane, tiles, positive, start, more, jcb, power, x, line, pixel, channels);
}

/* out (planes, tiles, channels) = A e A^T, where e are the pixels of each tile of a run, or their squares. x is laid
 * out as in `restore_pixels`, and `out` as in `transform_pixels`. */
static inline void transform_deltas(int edge, const float *x, int squared, size_t line, size_t pixel, int tiles,
                                    float *out, size_t stride, size_t plane, size_t channels) {
    CALL(transform_deltas)(edge, x, squared, line, pixel, tiles, out, stride, plane, channels);
}

/* out (planes, 16) = G g G^T of 16 kernels g of 3 x 3, which begin `stride` numbers apart in w and s. kind: g is w, w^2
 * or w^2 + s. flip: kernels are turned by 180 degrees, as the way back through a convolution needs them. */
static inline void transform_kernels(int edge, const float *w, const float *s, size_t stride, int kind, int flip,
                                     float *out, size_t plane) {
    CALL(transform_kernels)(edge, w, s, stride, kind, flip, out, plane);
}

/* out (16, 3, 3) = G^T m G, or += if `more`: the kernel gradients from the sums of products m (planes, 16). */
static inline void restore_kernels(int edge, const float *m, size_t plane, int more, float *out) {
    CALL(restore_kernels)(edge, m, plane, more, out);
}

#endif
