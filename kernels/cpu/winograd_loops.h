/* The transforms of winograd.h, which levels.h compiles for each length of vectors: functions that load tiles,
 * transform them along the lines and the columns, and store them. */
#include "vectors.h"
#include "winograd_points.h"

#define pixels_line NAME(pixels_line)
#define pixels_column NAME(pixels_column)
#define transform_tile NAME(transform_tile)
#define transform_run NAME(transform_run)
#define restore_column NAME(restore_column)
#define restore_pixel NAME(restore_pixel)
#define restore_line NAME(restore_line)
#define restore_tile NAME(restore_tile)
#define restore_run NAME(restore_run)
#define deltas_column NAME(deltas_column)
#define deltas_line NAME(deltas_line)
#define deltas_tile NAME(deltas_tile)
#define deltas_run NAME(deltas_run)
#define load_kernels NAME(load_kernels)
#define kernels_run NAME(kernels_run)
#define restore_kernels_run NAME(restore_kernels_run)

/* A loop over lines, columns or taps of a tile. It is unrolled for F(2) and F(4), whose tiles then stay in registers.
 * The tiles of other forms lie in memory in any case, and so do those that are not whole; unrolled, they would be no
 * faster and take a minute more to compile. */
#define EACH(form, k, n, ...)                                                                                          \
    do {                                                                                                               \
        if ((form == F2 || form == F4) && __builtin_constant_p(n)) {                                                   \
            UNROLLED for (int k = 0; k < (n); k++) { __VA_ARGS__; }                                                    \
        } else                                                                                                         \
            for (int k = 0; k < (n); k++) { __VA_ARGS__; }                                                             \
    } while (0)

/* Calls a function with the form as a constant. Forward, it makes no difference which pixels the taps meet. */
#define OF_FORM(function, adjoint, ...)                                                                                \
    do {                                                                                                               \
        if (form == F2)                                                                                                \
            function(F2, 0, __VA_ARGS__);                                                                              \
        else if (form == F4)                                                                                           \
            function(F4, 0, __VA_ARGS__);                                                                              \
        else if (form == F2_5)                                                                                         \
            function(F2_5, 0, __VA_ARGS__);                                                                            \
        else if (form == STRIDED_4 && adjoint)                                                                         \
            function(STRIDED_4, 1, __VA_ARGS__);                                                                       \
        else if (form == STRIDED_4)                                                                                    \
            function(STRIDED_4, 0, __VA_ARGS__);                                                                       \
        else if (!adjoint)                                                                                             \
            function(EVEN_3, 0, __VA_ARGS__);                                                                          \
        else if (form == EVEN_3)                                                                                       \
            function(EVEN_3, 1, __VA_ARGS__);                                                                          \
        else                                                                                                           \
            function(ODD_3, 1, __VA_ARGS__);                                                                           \
    } while (0)

/* t = the transform of a line of a window. The line is off the image if it is NULL, and so are its pixels before lo and
 * from hi on. */
INLINE void pixels_line(int form, int adjoint, const float *line, int lo, int hi, int squared, size_t pixel,
                        vector *t) {
    const int n = window_of(form, adjoint);
    vector d[WIDEST];
    UNROLLED for (int q = 0; q < n; q++) {
        vector x = line && q >= lo && q < hi ? FROM(line + q * pixel) : (vector){0};
        if (squared) x *= x;
        d[q] = x;
    }
    if (line) UNROLLED for (int q = n; q < n + step_of(form, adjoint); q++) FETCH(line + q * pixel);
    see_pixels(form, adjoint, d, t);
}

/* Transforms column q of the transformed lines t, and stores it in the planes. */
INLINE void pixels_column(int form, int adjoint, const vector *t, int q, float *out, size_t size) {
    const int n = window_of(form, adjoint), edge = edge_of(form);
    vector column[WIDEST], planes[WIDEST];
    UNROLLED for (int r = 0; r < n; r++) column[r] = t[r * edge + q];
    see_pixels(form, adjoint, column, planes);
    UNROLLED for (int r = 0; r < edge; r++) AT(out + place(form, r, q, size)) = planes[r];
}

/* `transform_pixels` for one tile, whose first pixel is `at` numbers from the beginning of its rows. inside: no pixel
 * of its window is off the image. */
INLINE void transform_tile(int form, int adjoint, const float *const *rows, ptrdiff_t at, int inside, int lo, int hi,
                           int squared, size_t pixel, float *out, size_t size, size_t channels) {
    const int n = window_of(form, adjoint), edge = edge_of(form);
    for (size_t i = 0; i < channels; i += LANES, out += LANES) {
        vector t[MOST];
        EACH(form, r, n,
             pixels_line(form, adjoint, inside || rows[r] ? rows[r] + at + i : NULL, lo, hi, squared, pixel,
                         t + r * edge));
        EACH(form, q, edge, pixels_column(form, adjoint, t, q, out, size));
    }
}

/* `transform_pixels` for a constant form. Tiles in the middle of the image, most of them, have a version without tests.
 */
INLINE void transform_run(int form, int adjoint, const float *const *rows, int squared, int column, int width,
                          size_t pixel, int tiles, float *out, size_t stride, size_t size, size_t channels) {
    const int step = step_of(form, adjoint), n = window_of(form, adjoint);
    int lines = rows[0] && rows[n - 1];
    for (int tile = 0; tile < tiles; tile++, column += step, out += stride) {
        ptrdiff_t at = step * tile * (ptrdiff_t)pixel;
        int inside = lines && column >= 0 && column + n <= width;
        if (!inside)
            transform_tile(form, adjoint, rows, at, 0, -column, width - column, squared, pixel, out, size, channels);
        else
            transform_tile(form, adjoint, rows, at, 1, 0, n, squared, pixel, out, size, channels);
    }
}

TARGET static void NAME(transform_pixels)(int form, int adjoint, const float *const *rows, int squared, int column,
                                          int width, size_t pixel, int tiles, float *out, size_t stride, size_t size,
                                          size_t channels) {
    OF_FORM(transform_run, adjoint, rows, squared, column, width, pixel, tiles, out, stride, size, channels);
}

INLINE void restore_column(int form, int adjoint, const float *m, size_t size, int q, vector *t) {
    const int edge = edge_of(form);
    vector column[WIDEST], y[WIDEST];
    UNROLLED for (int k = 0; k < edge; k++) column[k] = FROM(m + place(form, k, q, size));
    make_pixels(form, adjoint, column, y);
    UNROLLED for (int r = 0; r < made_of(form, adjoint); r++) t[r * edge + q] = y[r];
}

INLINE void restore_pixel(vector z, int positive, vector offset, int more, const float *jcb, int power, float *x) {
    if (positive) z = (vector)((bits)z & ~(z < 0));
    z += more ? AT(x) : offset;
    for (int k = 0; jcb && k < power; k++) z *= FROM(jcb);
    AT(x) = z;
}

INLINE void restore_line(int form, int adjoint, const vector *t, int columns, int positive, vector offset, int more,
                         const float *jcb, int power, float *x, size_t pixel) {
    vector y[WIDEST];
    make_pixels(form, adjoint, t, y);
    EACH(form, q, columns,
         restore_pixel(y[q], positive, offset, more, jcb ? jcb + q * pixel : NULL, power, x + q * pixel));
}

INLINE void restore_tile(int form, int adjoint, const float *m, size_t size, int lines, int columns, int positive,
                         const float *start, int more, const float *jcb, int power, float *x, size_t line, size_t pixel,
                         size_t channels) {
    const int edge = edge_of(form), made = made_of(form, adjoint);
    for (size_t i = 0; i < channels; i += LANES) {
        vector t[MOST], offset = start ? FROM(start + i) : (vector){0};
        for (int r = 0; r < made; r++) UNROLLED for (int q = made; q < 2 * made; q++)
            FETCH_TO_WRITE(x + r * line + q * pixel + i);
        EACH(form, q, edge, restore_column(form, adjoint, m + i, size, q, t));
        EACH(form, r, lines,
             restore_line(form, adjoint, t + r * edge, columns, positive, offset, more,
                          jcb ? jcb + r * line + i : NULL, power, x + r * line + i, pixel));
    }
}

INLINE void restore_run(int form, int adjoint, const float *m, size_t stride, size_t size, int tiles, int positive,
                        const float *start, int more, const float *jcb, int power, float *x, int lines, int columns,
                        size_t line, size_t pixel, size_t channels) {
    const int made = made_of(form, adjoint);
    for (int tile = 0; tile < tiles; tile++, m += stride, columns -= made) {
        if (lines >= made && columns >= made)
            restore_tile(form, adjoint, m, size, made, made, positive, start, more, jcb, power, x, line, pixel,
                         channels);
        else
            restore_tile(form, adjoint, m, size, lines < made ? lines : made, columns < made ? columns : made, positive,
                         start, more, jcb, power, x, line, pixel, channels);
        x += made * pixel;
        if (jcb) jcb += made * pixel;
    }
}

TARGET static void NAME(restore_pixels)(int form, int adjoint, const float *m, size_t stride, size_t size, int tiles,
                                        int positive, const float *start, int more, const float *jcb, int power,
                                        float *x, int lines, int columns, size_t line, size_t pixel, size_t channels) {
    OF_FORM(restore_run, adjoint, m, stride, size, tiles, positive, start, more, jcb, power, x, lines, columns, line,
            pixel, channels);
}

INLINE void deltas_column(int form, const float *x, int squared, int lines, size_t line, int q, vector *t) {
    const int made = made_of(form, 0), edge = edge_of(form);
    vector e[4], column[WIDEST];
    UNROLLED for (int r = 0; r < made; r++) {
        vector z = r < lines ? FROM(x + r * line) : (vector){0};
        if (squared) z *= z;
        e[r] = z;
    }
    see_deltas(form, e, column);
    UNROLLED for (int r = 0; r < edge; r++) t[r * made + q] = column[r];
}

INLINE void deltas_line(int form, const vector *t, int k, float *out, size_t size) {
    vector planes[WIDEST];
    see_deltas(form, t, planes);
    UNROLLED for (int q = 0; q < edge_of(form); q++) AT(out + place(form, k, q, size)) = planes[q];
}

INLINE void deltas_tile(int form, const float *x, int squared, int lines, int columns, size_t line, size_t pixel,
                        float *out, size_t size, size_t channels) {
    const int made = made_of(form, 0), edge = edge_of(form);
    for (size_t i = 0; i < channels; i += LANES) {
        vector t[4 * WIDEST];
        UNROLLED for (int r = 0; r < made; r++) UNROLLED for (int q = made; q < 2 * made; q++)
            FETCH(x + r * line + q * pixel + i);
        EACH(form, q, made, deltas_column(form, x + q * pixel + i, squared, q < columns ? lines : 0, line, q, t));
        EACH(form, k, edge, deltas_line(form, t + k * made, k, out + i, size));
    }
}

INLINE void deltas_run(int form, int adjoint, const float *x, int squared, int lines, int columns, size_t line,
                       size_t pixel, int tiles, float *out, size_t stride, size_t size, size_t channels) {
    const int made = made_of(form, adjoint);
    for (int tile = 0; tile < tiles; tile++, x += made * pixel, columns -= made, out += stride) {
        if (lines >= made && columns >= made)
            deltas_tile(form, x, squared, made, made, line, pixel, out, size, channels);
        else
            deltas_tile(form, x, squared, lines, columns, line, pixel, out, size, channels);
    }
}

TARGET static void NAME(transform_deltas)(int form, const float *x, int squared, int lines, int columns, size_t line,
                                          size_t pixel, int tiles, float *out, size_t stride, size_t size,
                                          size_t channels) {
    OF_FORM(deltas_run, 0, x, squared, lines, columns, line, pixel, tiles, out, stride, size, channels);
}

/* taps[k] = tap k of LANES kernels, which begin `stride` numbers apart. The transpose is made in registers: if single
 * numbers were written to memory and read back as vectors, each read would have to wait for the writes. */
INLINE void load_kernels(int form, const float *w, size_t stride, vector *taps) {
    const int size = taps_of(form) * taps_of(form);
    for (int k = 0; k + 8 <= size; k += 8) {
        vector x[8];
        UNROLLED for (int i = 0; i < 8; i++) EIGHTS(x[i], w + i * stride + k, w + (i + 8) * stride + k);
        transpose_eights(x, taps + k);
    }
    if (size % 8) {
        vector last = {0};
        for (int i = 0; i < LANES; i++) last[i] = w[i * stride + size - 1];
        taps[size - 1] = last;
    }
}

INLINE void kernels_run(int form, int adjoint, const float *w, const float *s, size_t stride, int kind, int flip,
                        float *out, size_t plane) {
    const int taps = taps_of(form), size = taps * taps, edge = kernel_edge_of(form);
    for (int lane = 0; lane < 16; lane += LANES, w += LANES * stride, out += LANES) {
        vector x[25], more[25], kernel[25], t[4 * WIDEST];
        load_kernels(form, w, stride, x);
        if (kind == SQUARE_PLUS) load_kernels(form, s + lane * stride, stride, more);
        EACH(form, k, size, {
            vector g = x[k];
            if (kind != MEAN) g *= g;
            if (kind == SQUARE_PLUS) g += more[k];
            kernel[flip ? size - 1 - k : k] = g;
        });
        EACH(form, q, taps, {
            vector column[5], planes[WIDEST];
            UNROLLED for (int r = 0; r < taps; r++) column[r] = kernel[r * taps + q];
            see_kernel(form, column, planes);
            UNROLLED for (int k = 0; k < edge; k++) t[k * taps + q] = planes[k];
        });
        EACH(form, k, edge, {
            vector planes[WIDEST];
            see_kernel(form, t + k * taps, planes);
            UNROLLED for (int q = 0; q < edge; q++) AT(out + (k * edge + q) * plane) = planes[q];
        });
    }
}

TARGET static void NAME(transform_kernels)(int form, const float *w, const float *s, size_t stride, int kind, int flip,
                                           float *out, size_t plane) {
    OF_FORM(kernels_run, 0, w, s, stride, kind, flip, out, plane);
}

INLINE void restore_kernels_run(int form, int adjoint, const float *m, size_t plane, int more, float *out) {
    const int taps = taps_of(form), size = taps * taps, edge = kernel_edge_of(form);
    for (int lane = 0; lane < 16; lane += LANES, m += LANES, out += size * LANES) {
        vector t[4 * WIDEST], kernel[25], x[8];
        EACH(form, q, edge, {
            vector column[WIDEST], g[5];
            UNROLLED for (int k = 0; k < edge; k++) column[k] = FROM(m + (k * edge + q) * plane);
            make_kernel(form, column, g);
            UNROLLED for (int r = 0; r < taps; r++) t[r * edge + q] = g[r];
        });
        EACH(form, r, taps, make_kernel(form, t + r * edge, kernel + r * taps));
        for (int tap = 0; tap + 8 <= size; tap += 8) {
            transpose_eights(kernel + tap, x);
            UNROLLED for (int i = 0; i < 8; i++) UNROLLED for (int k = 0; k < LANES; k += 8) {
                float *first = out + size * (i + k) + tap;
                half sums = HALF((float *)&x[i] + k);
                if (more) sums += HALF(first);
                HALF(first) = sums;
            }
        }
        if (size % 8)
            for (int i = 0; i < LANES; i++) {
                float *last = out + size * i + size - 1;
                *last = kernel[size - 1][i] + (more ? *last : 0);
            }
    }
}

TARGET static void NAME(restore_kernels)(int form, const float *m, size_t plane, int more, float *out) {
    OF_FORM(restore_kernels_run, 0, m, plane, more, out);
}
