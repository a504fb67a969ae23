/* Transforms for convolutions by Winograd algorithms, for _winograd.pyx and _winograd_weight.pyx.
 *
 * F(e x e, k x k) computes a tile of e x e outputs of a convolution by a k x k kernel from its window of n x n pixels,
 * n = e + k - 1, with n^2 multiplications instead of e^2 k^2. In one dimension: the product of a polynomial with e
 * coefficients and one with k has n coefficients. It can be computed by evaluating both factors at n points (matrices A
 * and G), multiplying the values point by point, and interpolating (matrix B): n multiplications instead of e k. A
 * convolution is the transpose of that map, and so uses the transposed matrices. In two dimensions each matrix is
 * applied to the columns of a tile and to its rows:
 *
 *     outputs of a tile = A^T [(G g G^T) (B^T d B)] A         g: kernel, d: pixels of the window
 *     gradient of the kernel = G^T [(A e A^T) (B^T d B)] G    e: deltas of the outputs
 *
 * where brackets multiply element by element. Names are those of Lavin & Gray 2016 (see _winograd.pyx).
 *
 * With stride 2, the even pixels along an edge are multiplied by some taps of the kernel, and the odd pixels by the
 * others. A kernel of 4 taps is two kernels of 2 taps, each for every second pixel, and F(4, 2) computes both, with 5
 * multiplications for 4 outputs. A kernel of 3 taps is one of taps 0 and 2, and tap 1, which multiplies 4 pixels
 * without a transform. So the transformed window has 10 or 9 numbers, and A^T adds the results of the two kernels. From
 * the outputs to the inputs (adjoint), each kernel computes every second pixel from the same outputs.
 *
 * The sums over channels, or over tiles for gradients, are inside the brackets. For them, transformed numbers are
 * written as matrices, called *planes*: plane (i, j) has element (i, j) of all tiles, (tiles, channels), and each plane
 * takes one matrix product. The 4 planes of tap 1 have the same kernels, so they are contiguous and take one product
 * together. A vector has neighbouring channels of a tile, or several kernels, so both are multiples of 16. */
#ifndef PYTAGI_DDP_WINOGRAD_H
#define PYTAGI_DDP_WINOGRAD_H

#include <stddef.h>

/* No form; F(2 x 2, 3 x 3), F(4 x 4, 3 x 3) and F(2 x 2, 5 x 5); 4 x 4 outputs with stride 2 of 3 x 3 kernels whose
 * taps 0 and 2 multiply even pixels, or odd ones, and of 4 x 4 kernels, where they multiply odd ones. */
enum { TAGI_PLAIN, TAGI_F2, TAGI_F4, TAGI_F2_5, TAGI_EVEN_3, TAGI_ODD_3, TAGI_STRIDED_4 };
enum { TAGI_MEAN, TAGI_SQUARE, TAGI_SQUARE_PLUS }; /* kernels are w, w^2 or w^2 + s */
enum {
    TAGI_PAD = 16
};                     /* numbers of padding behind a plane: planes a power of two apart would share a few cache sets */
#define TAGI_WIDEST 10 /* the largest number of planes, or of pixels of a window, along an edge */
#define TAGI_MOST (TAGI_WIDEST * TAGI_WIDEST)

static inline int tagi_strided(int form) { return form >= TAGI_EVEN_3; }
static inline int tagi_taps_of(int form) { return form == TAGI_F2_5 ? 5 : form == TAGI_STRIDED_4 ? 4 : 3; }

/* Lengths along an edge of a tile: its outputs, the distance of the next window, the pixels of a window, the planes of
 * windows, and those of kernels. adjoint: from the outputs of the convolution to its inputs. */
static inline int tagi_made_of(int form, int adjoint) {
    return form == TAGI_F2 || form == TAGI_F2_5 ? 2 : tagi_strided(form) && adjoint ? 8 : 4;
}
static inline int tagi_step_of(int form, int adjoint) {
    return tagi_strided(form) ? (adjoint ? 4 : 8) : tagi_made_of(form, adjoint);
}
static inline int tagi_window_of(int form, int adjoint) {
    return tagi_strided(form) ? (adjoint                  ? 6
                                 : form == TAGI_STRIDED_4 ? 10
                                                          : 9)
                              : tagi_made_of(form, adjoint) + tagi_taps_of(form) - 1;
}
static inline int tagi_edge_of(int form) {
    return form == TAGI_F2 ? 4 : !tagi_strided(form) ? 6 : form == TAGI_STRIDED_4 ? 10 : 9;
}
static inline int tagi_kernel_edge_of(int form) { return form == TAGI_F2 ? 4 : form == TAGI_STRIDED_4 ? 10 : 6; }

/* The number of planes of windows that are multiplied by plane (i, j) of the kernels. */
static inline int tagi_sharing(int form, int i, int j) {
    return form == TAGI_EVEN_3 || form == TAGI_ODD_3 ? (i == 5 ? 4 : 1) * (j == 5 ? 4 : 1) : 1;
}

/* The start of plane (i, j) among the planes of windows or of sums, each of `size` numbers. */
static inline size_t tagi_place(int form, int i, int j, size_t size) {
    int edge = tagi_edge_of(form), a = i, b = j, before = i * edge + j;
    if (form == TAGI_EVEN_3 || form == TAGI_ODD_3) {
        a = i < 5 ? i : 5;
        b = j < 5 ? j : 5;
        before = a * edge + b * (a == 5 ? 4 : 1) + (i - a) * (b == 5 ? 4 : 1) + (j - b);
    }
    return before * size + (a * tagi_kernel_edge_of(form) + b) * TAGI_PAD;
}

/* The points are A, -A, B, -B and infinity, and also 0 for F(4, 3) and F(2, 5). Their powers are exact in float32, and
 * rounding errors are less than half of those with the usual points +-1 and +-2. (F(2, 3) uses 0, 1, -1 and infinity.)
 * TAGI_N0, TAGI_NA and TAGI_NB are one over the product of the distances of 0, of A or -A, and of B or -B from the
 * other points, including 0, for the interpolation. */
#define TAGI_A 0.75f
#define TAGI_B 1.5f
#define TAGI_N0 (1 / (TAGI_A * TAGI_A * TAGI_B * TAGI_B))
#define TAGI_NA (1 / (2 * TAGI_A * TAGI_A * (TAGI_A * TAGI_A - TAGI_B * TAGI_B)))
#define TAGI_NB (1 / (2 * TAGI_B * TAGI_B * (TAGI_B * TAGI_B - TAGI_A * TAGI_A)))

#define TAGI_LOOPS "winograd_loops.h"
#include "levels.h"

#undef TAGI_A
#undef TAGI_B
#undef TAGI_N0
#undef TAGI_NA
#undef TAGI_NB

/* out (planes, tiles, channels) = B^T d B, for a run of tiles side by side, whose windows d begin step_of(form) pixels
 * apart. A plane has `size` numbers, and tiles are `stride` numbers apart.
 *
 * rows: the lines of the image in the windows, each from the first pixel of the first window on, or NULL for a line
 * outside the image. A pixel is `pixel` numbers from the next one. column: the index of that first pixel among the
 * `width` pixels of a line, maybe negative. Pixels outside the image are 0. squared: d is the square of the pixels. */
static inline void tagi_transform_pixels(int form, int adjoint, const float *const *rows, int squared, int column,
                                         int width, size_t pixel, int tiles, float *out, size_t stride, size_t size,
                                         size_t channels) {
    TAGI_CALL(tagi_transform_pixels)
    (form, adjoint, rows, squared, column, width, pixel, tiles, out, stride, size, channels);
}

/* x = jcb^power (A^T m A + start), or x = jcb^power (x + A^T m A) if `more`, for a run of tiles side by side.
 *
 * m (planes, tiles, channels) are the sums of products. x is the first pixel of the first tile; lines are `line`
 * numbers apart, and pixels `pixel` numbers. From there on the image has `lines` lines and `columns` pixels in each;
 * outputs beyond are dropped. start (channels) and jcb (with the layout of x) may be NULL, for 0 and 1. positive:
 * negative sums are rounding errors, and become 0. */
static inline void tagi_restore_pixels(int form, int adjoint, const float *m, size_t stride, size_t size, int tiles,
                                       int positive, const float *start, int more, const float *jcb, int power,
                                       float *x, int lines, int columns, size_t line, size_t pixel, size_t channels) {
    TAGI_CALL(tagi_restore_pixels)
    (form, adjoint, m, stride, size, tiles, positive, start, more, jcb, power, x, lines, columns, line, pixel,
     channels);
}

/* out (planes, tiles, channels) = A e A^T, where e are the outputs of each tile of a run, or their squares, and 0
 * beyond the image. x has the layout of `tagi_restore_pixels`, and `out` that of `tagi_transform_pixels`. */
static inline void tagi_transform_deltas(int form, const float *x, int squared, int lines, int columns, size_t line,
                                         size_t pixel, int tiles, float *out, size_t stride, size_t size,
                                         size_t channels) {
    TAGI_CALL(tagi_transform_deltas)(form, x, squared, lines, columns, line, pixel, tiles, out, stride, size, channels);
}

/* out (planes, 16) = G g G^T of 16 kernels g, which begin `stride` numbers apart in w and s. kind: g is w, w^2 or
 * w^2 + s. flip: kernels are rotated by 180 degrees, for the backward pass of a convolution. */
static inline void tagi_transform_kernels(int form, const float *w, const float *s, size_t stride, int kind, int flip,
                                          float *out, size_t plane) {
    TAGI_CALL(tagi_transform_kernels)(form, w, s, stride, kind, flip, out, plane);
}

/* out (16, taps, taps) = G^T m G, or += if `more`: the kernel gradients from the sums of products m (planes, 16). */
static inline void tagi_restore_kernels(int form, const float *m, size_t plane, int more, float *out) {
    TAGI_CALL(tagi_restore_kernels)(form, m, plane, more, out);
}

#endif
