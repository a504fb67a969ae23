/* The transforms of winograd.h, which levels.h compiles for each length of vectors.
 *
 * First the one-dimensional transforms, one for each of the matrices B^T, A^T, A, G and G^T, then `transform`, which
 * applies one of them along both dimensions, then the functions that load tiles, transform and store them. All
 * callers give `edge` as a constant, so that loops over a tile are unrolled. At the points p and -p of a polynomial,
 * its even powers contribute the same and its odd powers the opposite; so both values are made of one `even` and one
 * `odd` sum, those of +-B with _b. */
#include "vectors.h"

#define see_pixels NAME(see_pixels)
#define make_pixels NAME(make_pixels)
#define see_deltas NAME(see_deltas)
#define see_kernel NAME(see_kernel)
#define make_kernel NAME(make_kernel)
#define transform NAME(transform)
#define transform_tile NAME(transform_tile)
#define transform_run NAME(transform_run)
#define restore_run NAME(restore_run)
#define deltas_run NAME(deltas_run)
#define transform_lanes NAME(transform_lanes)
#define load_kernels NAME(load_kernels)
#define restore_lanes NAME(restore_lanes)
#define line_transform NAME(line_transform)

typedef void line_transform(int edge, const vector *x, vector *y);

/* t = B^T d */
INLINE void see_pixels(int edge, const vector *d, vector *t) {
    if (edge == 2) {
        t[0] = d[0] - d[2];
        t[1] = d[1] + d[2];
        t[2] = d[2] - d[1];
        t[3] = d[1] - d[3];
    } else {
        vector even = d[4] - B * B * d[2], odd = A * (d[3] - B * B * d[1]);
        vector even_b = d[4] - A * A * d[2], odd_b = B * (d[3] - A * A * d[1]);
        t[0] = A * A * B * B * d[0] - (A * A + B * B) * d[2] + d[4];
        t[1] = even + odd;
        t[2] = even - odd;
        t[3] = even_b + odd_b;
        t[4] = even_b - odd_b;
        t[5] = A * A * B * B * d[1] - (A * A + B * B) * d[3] + d[5];
    }
}

/* y = A^T m */
INLINE void make_pixels(int edge, const vector *m, vector *y) {
    if (edge == 2) {
        y[0] = m[0] + m[1] + m[2];
        y[1] = m[1] - m[2] - m[3];
    } else {
        vector even = m[1] + m[2], odd = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
        y[0] = m[0] + even + even_b;
        y[1] = A * odd + B * odd_b;
        y[2] = A * A * even + B * B * even_b;
        y[3] = A * A * A * odd + B * B * B * odd_b + m[5];
    }
}

/* t = A e */
INLINE void see_deltas(int edge, const vector *e, vector *t) {
    t[0] = e[0];
    if (edge == 2) {
        t[1] = e[0] + e[1];
        t[2] = e[0] - e[1];
        t[3] = -e[1];
    } else {
        vector even = e[0] + A * A * e[2], odd = A * e[1] + A * A * A * e[3];
        vector even_b = e[0] + B * B * e[2], odd_b = B * e[1] + B * B * B * e[3];
        t[1] = even + odd;
        t[2] = even - odd;
        t[3] = even_b + odd_b;
        t[4] = even_b - odd_b;
        t[5] = e[3];
    }
}

/* t = G g */
INLINE void see_kernel(int edge, const vector *g, vector *t) {
    if (edge == 2) {
        t[0] = g[0];
        t[1] = 0.5f * (g[0] + g[1] + g[2]);
        t[2] = 0.5f * (g[0] - g[1] + g[2]);
        t[3] = g[2];
    } else {
        vector even = NA * (g[0] + A * A * g[2]), odd = A * NA * g[1];
        vector even_b = NB * (g[0] + B * B * g[2]), odd_b = B * NB * g[1];
        t[0] = N0 * g[0];
        t[1] = even + odd;
        t[2] = even - odd;
        t[3] = even_b + odd_b;
        t[4] = even_b - odd_b;
        t[5] = g[2];
    }
}

/* g = G^T m */
INLINE void make_kernel(int edge, const vector *m, vector *g) {
    if (edge == 2) {
        vector b = 0.5f * m[1], c = 0.5f * m[2];
        g[0] = m[0] + b + c;
        g[1] = b - c;
        g[2] = b + c + m[3];
    } else {
        vector even = NA * (m[1] + m[2]), odd = NA * (m[1] - m[2]);
        vector even_b = NB * (m[3] + m[4]), odd_b = NB * (m[3] - m[4]);
        g[0] = N0 * m[0] + even + even_b;
        g[1] = A * odd + B * odd_b;
        g[2] = A * A * even + B * B * even_b + m[5];
    }
}

/* y = the transform `along` of the columns of x, and then of the rows. x is `from` x `from`, and y `to` x `to`. */
INLINE void transform(line_transform *along, int edge, int from, int to, const vector *x, vector *y) {
    vector t[MOST];
    UNROLLED for (int q = 0; q < from; q++) {
        vector column[6], result[6];
        UNROLLED for (int r = 0; r < from; r++) column[r] = x[r * from + q];
        along(edge, column, result);
        UNROLLED for (int r = 0; r < to; r++) t[r * from + q] = result[r];
    }
    UNROLLED for (int r = 0; r < to; r++) along(edge, t + r * from, y + r * to);
}

/* `transform_pixels` for one tile, whose second pixel is `at` numbers from the beginning of its rows. inside: no pixel
 * of its window is off the image. left, right: the window's first or last column is. */
INLINE void transform_tile(int edge, const float *const *rows, ptrdiff_t at, int inside, int left, int right,
                           int squared, ptrdiff_t pixel, float *out, size_t plane, size_t channels) {
    const int n = edge + 2;
    for (size_t i = 0; i < channels; i += LANES, out += LANES) {
        vector d[MOST], t[MOST]; /* stored by columns */
        UNROLLED for (int r = 0; r < n; r++) UNROLLED for (int q = 0; q < n; q++) {
            int seen = inside || (rows[r] && !(left && q == 0) && !(right && q == n - 1));
            vector x = seen ? FROM(rows[r] + at + (q - 1) * pixel + i) : (vector){0};
            if (squared) x *= x;
            d[q * n + r] = x;
        }
        UNROLLED for (int r = 0; r < n; r++) if (inside || rows[r]) UNROLLED for (int q = n; q < n + edge; q++)
            FETCH(rows[r] + at + (q - 1) * pixel + i);
        transform(see_pixels, edge, n, n, d, t);
        UNROLLED for (int r = 0; r < n; r++) UNROLLED for (int q = 0; q < n; q++)
            AT(out + (r * n + q) * plane) = t[q * n + r];
    }
}

/* `transform_pixels` for a constant edge. Tiles in the middle of the image, most of them, have a version without
 * tests. */
INLINE void transform_run(int edge, const float *const *rows, int squared, int first, int last, size_t pixel, int tiles,
                          float *out, size_t stride, size_t plane, size_t channels) {
    int lines = rows[0] && rows[edge + 1];
    for (int tile = 0; tile < tiles; tile++, out += stride) {
        int left = first && tile == 0, right = last && tile == tiles - 1;
        ptrdiff_t at = edge * tile * (ptrdiff_t)pixel;
        if (!lines || left || right)
            transform_tile(edge, rows, at, 0, left, right, squared, pixel, out, plane, channels);
        else if (squared)
            transform_tile(edge, rows, at, 1, 0, 0, 1, pixel, out, plane, channels);
        else
            transform_tile(edge, rows, at, 1, 0, 0, 0, pixel, out, plane, channels);
    }
}

TARGET static void NAME(transform_pixels)(int edge, const float *const *rows, int squared, int first, int last,
                                          size_t pixel, int tiles, float *out, size_t stride, size_t plane,
                                          size_t channels) {
    if (edge == 2)
        transform_run(2, rows, squared, first, last, pixel, tiles, out, stride, plane, channels);
    else
        transform_run(4, rows, squared, first, last, pixel, tiles, out, stride, plane, channels);
}

INLINE void restore_run(int edge, const float *m, size_t stride, size_t plane, int tiles, int positive,
                        const float *start, int more, const float *jcb, int power, float *x, size_t line, size_t pixel,
                        size_t channels) {
    const int n = edge + 2;
    for (int tile = 0; tile < tiles; tile++, m += stride)
        for (size_t i = 0; i < channels; i += LANES) {
            vector sums[MOST], y[16], offset = start ? FROM(start + i) : (vector){0};
            UNROLLED for (int k = 0; k < n; k++) UNROLLED for (int q = 0; q < n; q++)
                sums[k * n + q] = FROM(m + (k * n + q) * plane + i);
            UNROLLED for (int r = 0; r < edge; r++) UNROLLED for (int q = edge; q < 2 * edge; q++)
                FETCH_TO_WRITE(x + r * line + (edge * tile + q) * pixel + i);
            transform(make_pixels, edge, n, edge, sums, y);
            UNROLLED for (int r = 0; r < edge; r++) UNROLLED for (int q = 0; q < edge; q++) {
                size_t at = r * line + (edge * tile + q) * pixel + i;
                vector z = y[r * edge + q];
                if (positive) z = (vector)((bits)z & ~(z < 0));
                z += more ? AT(x + at) : offset;
                for (int k = 0; jcb && k < power; k++) z *= FROM(jcb + at);
                AT(x + at) = z;
            }
        }
}

TARGET static void NAME(restore_pixels)(int edge, const float *m, size_t stride, size_t plane, int tiles,
                                        int positive, const float *start, int more, const float *jcb, int power,
                                        float *x, size_t line, size_t pixel, size_t channels) {
    if (edge == 2)
        restore_run(2, m, stride, plane, tiles, positive, start, more, jcb, power, x, line, pixel, channels);
    else
        restore_run(4, m, stride, plane, tiles, positive, start, more, jcb, power, x, line, pixel, channels);
}

INLINE void deltas_run(int edge, const float *x, int squared, size_t line, size_t pixel, int tiles, float *out,
                       size_t stride, size_t plane, size_t channels) {
    const int n = edge + 2;
    for (int tile = 0; tile < tiles; tile++, x += edge * pixel, out += stride)
        for (size_t i = 0; i < channels; i += LANES) {
            vector e[16], t[MOST];
            UNROLLED for (int r = 0; r < edge; r++) UNROLLED for (int q = 0; q < edge; q++) {
                vector z = FROM(x + r * line + q * pixel + i);
                if (squared) z *= z;
                e[r * edge + q] = z;
            }
            UNROLLED for (int r = 0; r < edge; r++) UNROLLED for (int q = edge; q < 2 * edge; q++)
                FETCH(x + r * line + q * pixel + i);
            transform(see_deltas, edge, edge, n, e, t);
            UNROLLED for (int k = 0; k < n; k++) UNROLLED for (int q = 0; q < n; q++)
                AT(out + (k * n + q) * plane + i) = t[k * n + q];
        }
}

TARGET static void NAME(transform_deltas)(int edge, const float *x, int squared, size_t line, size_t pixel,
                                          int tiles, float *out, size_t stride, size_t plane, size_t channels) {
    if (edge == 2)
        deltas_run(2, x, squared, line, pixel, tiles, out, stride, plane, channels);
    else
        deltas_run(4, x, squared, line, pixel, tiles, out, stride, plane, channels);
}

INLINE void transform_lanes(int edge, const vector *g, float *out, size_t plane) {
    vector t[MOST];
    transform(see_kernel, edge, 3, edge + 2, g, t);
    for (int k = 0; k < (edge + 2) * (edge + 2); k++) AT(out + k * plane) = t[k];
}

/* taps[k] = tap k of LANES kernels of 3 x 3, which begin `stride` numbers apart. The transpose is made in registers: if
 * single numbers were written to memory and read back as vectors, each read would have to wait for the writes. */
INLINE void load_kernels(const float *w, size_t stride, vector *taps) {
    vector x[8], last = {0};
    UNROLLED for (int i = 0; i < 8; i++) EIGHTS(x[i], w + i * stride, w + (i + 8) * stride);
    transpose_eights(x, taps);
    for (int i = 0; i < LANES; i++) last[i] = w[i * stride + 8];
    taps[8] = last;
}

TARGET static void NAME(transform_kernels)(int edge, const float *w, const float *s, size_t stride, int kind, int flip,
                                           float *out, size_t plane) {
    for (int lane = 0; lane < 16; lane += LANES, w += LANES * stride, out += LANES) {
        vector taps[9], more[9], kernel[9];
        load_kernels(w, stride, taps);
        if (kind == SQUARE_PLUS) load_kernels(s + lane * stride, stride, more);
        UNROLLED for (int k = 0; k < 9; k++) {
            vector x = taps[k];
            if (kind != MEAN) x *= x;
            if (kind == SQUARE_PLUS) x += more[k];
            kernel[flip ? 8 - k : k] = x;
        }
        if (edge == 2)
            transform_lanes(2, kernel, out, plane);
        else
            transform_lanes(4, kernel, out, plane);
    }
}

INLINE void restore_lanes(int edge, const float *m, size_t plane, vector *g) {
    vector sums[MOST];
    for (int k = 0; k < (edge + 2) * (edge + 2); k++) sums[k] = FROM(m + k * plane);
    transform(make_kernel, edge, edge + 2, 3, sums, g);
}

TARGET static void NAME(restore_kernels)(int edge, const float *m, size_t plane, int more, float *out) {
    for (int lane = 0; lane < 16; lane += LANES, m += LANES, out += 9 * LANES) {
        vector kernel[9], x[8];
        if (edge == 2)
            restore_lanes(2, m, plane, kernel);
        else
            restore_lanes(4, m, plane, kernel);
        transpose_eights(kernel, x);
        UNROLLED for (int i = 0; i < 8; i++) UNROLLED for (int k = 0; k < LANES; k += 8) {
            float *first = out + 9 * (i + k);
            half taps = HALF((float *)&x[i] + k);
            if (more) taps += HALF(first);
            HALF(first) = taps;
        }
        for (int i = 0; i < LANES; i++) out[9 * i + 8] = kernel[8][i] + (more ? out[9 * i + 8] : 0);
    }
}

#undef see_pixels
#undef make_pixels
#undef see_deltas
#undef see_kernel
#undef make_kernel
#undef transform
#undef transform_tile
#undef transform_run
#undef restore_run
#undef deltas_run
#undef transform_lanes
#undef load_kernels
#undef restore_lanes
#undef line_transform
