/* Transforms of the Winograd form F(2x2, 3x3), sixteen channels at a time. See _winograd.pyx. */
#ifndef PYTAGI_DDP_WINOGRAD_H
#define PYTAGI_DDP_WINOGRAD_H

#include "loops.h"

typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
typedef int bits __attribute__((vector_size(64)));
#define AT(x) (*(vector *)(x))
#define FROM(x) (*(const vector *)(x))

static inline __attribute__((always_inline)) void transform_tile(const float *const *rows, ptrdiff_t at, int inside,
                                                                 int left, int right, int squared, ptrdiff_t pixel,
                                                                 float *out, size_t plane, size_t channels) {
    for (size_t i = 0; i < channels; i += 16, out += 16) {
        vector t[4][4];
        for (int r = 0; r < 4; r++) {
            vector d[4];
            for (int q = 0; q < 4; q++) {
                int seen = inside || (rows[r] && !(left && q == 0) && !(right && q == 3));
                d[q] = seen ? FROM(rows[r] + at + (q - 1) * pixel + i) : (vector){0};
                if (squared) d[q] *= d[q];
            }
            t[r][0] = d[0] - d[2];
            t[r][1] = d[1] + d[2];
            t[r][2] = d[2] - d[1];
            t[r][3] = d[1] - d[3];
        }
        for (int q = 0; q < 4; q++) {
            AT(out + q * plane) = t[0][q] - t[2][q];
            AT(out + (4 + q) * plane) = t[1][q] + t[2][q];
            AT(out + (8 + q) * plane) = t[2][q] - t[1][q];
            AT(out + (12 + q) * plane) = t[1][q] - t[3][q];
        }
    }
}

/* B^T d B of `tiles` windows of 4 x 4 pixels, side by side and two pixels apart; out: 16 planes of (tile, channels).
 * rows: where the first window's second pixel lies in its four lines, or NULL off the image; first, last: whether the
 * run starts at the left and ends at the right edge, beyond which there are zeros. */
VECTORISED void transform_pixels(const float *const *rows, int squared, int first, int last, size_t pixel, int tiles,
                                 float *out, size_t stride, size_t plane, size_t channels) {
    int lines = rows[0] && rows[3];
    for (int tile = 0; tile < tiles; tile++, out += stride) {
        int left = first && tile == 0, right = last && tile == tiles - 1;
        ptrdiff_t at = 2 * tile * (ptrdiff_t)pixel;
        if (!lines || left || right)
            transform_tile(rows, at, 0, left, right, squared, pixel, out, plane, channels);
        else if (squared)
            transform_tile(rows, at, 1, 0, 0, 1, pixel, out, plane, channels);
        else
            transform_tile(rows, at, 1, 0, 0, 0, pixel, out, plane, channels);
    }
}

/* The 2 x 2 pixels of each tile = A^T m A + start, or += A^T m A: the way back from products; times the Jacobian's
 * 1st or 2nd power, if there is one. positive: no sum may round to less than 0. */
VECTORISED void restore_pixels(const float *m, size_t stride, size_t plane, int tiles, int positive,
                               const float *start, int more, const float *jcb, int power, float *x, size_t line,
                               size_t pixel, size_t channels) {
    for (int tile = 0; tile < tiles; tile++, m += stride)
        for (size_t i = 0; i < channels; i += 16) {
            vector t[2][4], offset = start ? FROM(start + i) : (vector){0};
            for (int q = 0; q < 4; q++) {
                const float *source = m + q * plane + i;
                vector b = FROM(source + 4 * plane), c = FROM(source + 8 * plane);
                t[0][q] = FROM(source) + b + c;
                t[1][q] = b - c - FROM(source + 12 * plane);
            }
            for (int r = 0; r < 2; r++) {
                vector y[2] = {t[r][0] + t[r][1] + t[r][2], t[r][1] - t[r][2] - t[r][3]};
                for (int q = 0; q < 2; q++) {
                    size_t at = r * line + (2 * tile + q) * pixel + i;
                    if (positive) y[q] = (vector)((bits)y[q] & ~(y[q] < 0));
                    y[q] += more ? AT(x + at) : offset;
                    for (int k = 0; jcb && k < power; k++) y[q] *= FROM(jcb + at);
                    AT(x + at) = y[q];
                }
            }
        }
}

/* A e A^T of the 2 x 2 pixels of each tile, or of their squares; out: 16 planes. */
VECTORISED void transform_deltas(const float *x, int squared, size_t line, size_t pixel, int tiles, float *out,
                                 size_t stride, size_t plane, size_t channels) {
    for (int tile = 0; tile < tiles; tile++, x += 2 * pixel, out += stride)
        for (size_t i = 0; i < channels; i += 16) {
            vector a[2] = {FROM(x + i), FROM(x + pixel + i)}, b[2] = {FROM(x + line + i), FROM(x + line + pixel + i)};
            vector t[4][2];
            float *target = out + i;
            for (int q = 0; q < 2; q++) {
                if (squared) a[q] *= a[q], b[q] *= b[q];
                t[0][q] = a[q];
                t[1][q] = a[q] + b[q];
                t[2][q] = a[q] - b[q];
                t[3][q] = -b[q];
            }
            for (int r = 0; r < 4; r++, target += 4 * plane) {
                AT(target) = t[r][0];
                AT(target + plane) = t[r][0] + t[r][1];
                AT(target + 2 * plane) = t[r][0] - t[r][1];
                AT(target + 3 * plane) = -t[r][1];
            }
        }
}

enum { MEAN, SQUARE, SQUARE_PLUS };

/* G g G^T of 16 kernels of 3 x 3, `stride` apart; kind: g = w, w^2 or w^2 + s; out: 16 planes. */
VECTORISED void transform_kernels(const float *w, const float *s, size_t stride, int kind, int flip, float *out,
                                  size_t plane) {
    float g[9][16];
    vector t[4][3];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 9; k++) {
            float x = w[i * stride + k];
            if (kind != MEAN) x *= x;
            if (kind == SQUARE_PLUS) x += s[i * stride + k];
            g[flip ? 8 - k : k][i] = x;
        }
    for (int k = 0; k < 3; k++) {
        vector a = FROM(g[k]), b = FROM(g[3 + k]), c = FROM(g[6 + k]);
        t[0][k] = a;
        t[1][k] = 0.5f * (a + b + c);
        t[2][k] = 0.5f * (a - b + c);
        t[3][k] = c;
    }
    for (int r = 0; r < 4; r++, out += 4 * plane) {
        vector a = t[r][0], b = t[r][1], c = t[r][2];
        AT(out) = a;
        AT(out + plane) = 0.5f * (a + b + c);
        AT(out + 2 * plane) = 0.5f * (a - b + c);
        AT(out + 3 * plane) = c;
    }
}

/* 16 kernels of 3 x 3, one after the other, (+)= G^T m G: the way back from sums of products. */
VECTORISED void restore_kernels(const float *m, size_t plane, int more, float *out) {
    vector t[3][4];
    float g[9][16];
    for (int q = 0; q < 4; q++) {
        const float *source = m + q * plane;
        vector b = 0.5f * FROM(source + 4 * plane), c = 0.5f * FROM(source + 8 * plane);
        t[0][q] = FROM(source) + b + c;
        t[1][q] = b - c;
        t[2][q] = b + c + FROM(source + 12 * plane);
    }
    for (int r = 0; r < 3; r++) {
        vector b = 0.5f * t[r][1], c = 0.5f * t[r][2];
        AT(g[3 * r]) = t[r][0] + b + c;
        AT(g[3 * r + 1]) = b - c;
        AT(g[3 * r + 2]) = b + c + t[r][3];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 9; k++) out[9 * i + k] = g[k][i] + (more ? out[9 * i + k] : 0);
}

#endif
