/* The transforms of winograd.h, which levels.h compiles for each length of vectors: functions that load tiles,
 * transform them along the lines and the columns, and store them. */
#include "vectors.h"
#include "winograd_points.h"

#define tagi_pixels_line TAGI_NAME(tagi_pixels_line)
#define tagi_pixels_column TAGI_NAME(tagi_pixels_column)
#define tagi_transform_tile TAGI_NAME(tagi_transform_tile)
#define tagi_transform_run TAGI_NAME(tagi_transform_run)
#define tagi_restore_column TAGI_NAME(tagi_restore_column)
#define tagi_restore_pixel TAGI_NAME(tagi_restore_pixel)
#define tagi_restore_line TAGI_NAME(tagi_restore_line)
#define tagi_restore_tile TAGI_NAME(tagi_restore_tile)
#define tagi_restore_run TAGI_NAME(tagi_restore_run)
#define tagi_deltas_column TAGI_NAME(tagi_deltas_column)
#define tagi_deltas_line TAGI_NAME(tagi_deltas_line)
#define tagi_deltas_tile TAGI_NAME(tagi_deltas_tile)
#define tagi_deltas_run TAGI_NAME(tagi_deltas_run)
#define tagi_load_kernels TAGI_NAME(tagi_load_kernels)
#define tagi_kernels_run TAGI_NAME(tagi_kernels_run)
#define tagi_restore_kernels_run TAGI_NAME(tagi_restore_kernels_run)

/* A loop over lines, columns or taps of a tile. It is unrolled for F(2) and F(4), whose tiles then stay in registers.
 * The tiles of other forms, and tiles that are not whole, are in memory in any case; unrolling would not make them
 * faster, and would take a minute more to compile. */
#define TAGI_EACH(form, k, n, ...)                                             \
    do {                                                                       \
        if ((form == TAGI_F2 || form == TAGI_F4) && __builtin_constant_p(n)) { \
            TAGI_UNROLLED for (int k = 0; k < (n); k++) { __VA_ARGS__; }       \
        } else                                                                 \
            for (int k = 0; k < (n); k++) {                                    \
                __VA_ARGS__;                                                   \
            }                                                                  \
    } while (0)

/* Calls a function with the form as a constant. In the forward pass, it does not matter which pixels the taps multiply.
 * */
#define TAGI_OF_FORM(function, adjoint, ...)          \
    do {                                              \
        if (form == TAGI_F2)                          \
            function(TAGI_F2, 0, __VA_ARGS__);        \
        else if (form == TAGI_F4)                     \
            function(TAGI_F4, 0, __VA_ARGS__);        \
        else if (form == TAGI_F2_5)                   \
            function(TAGI_F2_5, 0, __VA_ARGS__);      \
        else if (form == TAGI_STRIDED_4 && adjoint)   \
            function(TAGI_STRIDED_4, 1, __VA_ARGS__); \
        else if (form == TAGI_STRIDED_4)              \
            function(TAGI_STRIDED_4, 0, __VA_ARGS__); \
        else if (!adjoint)                            \
            function(TAGI_EVEN_3, 0, __VA_ARGS__);    \
        else if (form == TAGI_EVEN_3)                 \
            function(TAGI_EVEN_3, 1, __VA_ARGS__);    \
        else                                          \
            function(TAGI_ODD_3, 1, __VA_ARGS__);     \
    } while (0)

/* t = the transform of a line of a window. NULL: the line is outside the image. So are its pixels before lo and from hi
 * on. */
TAGI_INLINE void tagi_pixels_line(int form, int adjoint, const float *line, int lo, int hi, int squared, size_t pixel,
                                  tagi_vector *t) {
    const int n = tagi_window_of(form, adjoint);
    tagi_vector d[TAGI_WIDEST];
    TAGI_UNROLLED for (int q = 0; q < n; q++) {
        tagi_vector x = line && q >= lo && q < hi ? TAGI_FROM(line + q * pixel) : (tagi_vector){0};
        if (squared) x *= x;
        d[q] = x;
    }
    if (line) TAGI_UNROLLED for (int q = n; q < n + tagi_step_of(form, adjoint); q++) TAGI_FETCH(line + q * pixel);
    tagi_see_pixels(form, adjoint, d, t);
}

/* Transforms column q of the transformed lines t, and stores it in the planes. */
TAGI_INLINE void tagi_pixels_column(int form, int adjoint, const tagi_vector *t, int q, float *out, size_t size) {
    const int n = tagi_window_of(form, adjoint), edge = tagi_edge_of(form);
    tagi_vector column[TAGI_WIDEST], planes[TAGI_WIDEST];
    TAGI_UNROLLED for (int r = 0; r < n; r++) column[r] = t[r * edge + q];
    tagi_see_pixels(form, adjoint, column, planes);
    TAGI_UNROLLED for (int r = 0; r < edge; r++) TAGI_AT(out + tagi_place(form, r, q, size)) = planes[r];
}

/* `tagi_transform_pixels` for one tile, whose first pixel is `at` numbers from the beginning of its rows. inside: its
 * whole window is inside the image. */
TAGI_INLINE void tagi_transform_tile(int form, int adjoint, const float *const *rows, ptrdiff_t at, int inside, int lo,
                                     int hi, int squared, size_t pixel, float *out, size_t size, size_t channels) {
    const int n = tagi_window_of(form, adjoint), edge = tagi_edge_of(form);
    for (size_t i = 0; i < channels; i += TAGI_LANES, out += TAGI_LANES) {
        tagi_vector t[TAGI_MOST];
        TAGI_EACH(form, r, n,
                  tagi_pixels_line(form, adjoint, inside || rows[r] ? rows[r] + at + i : NULL, lo, hi, squared, pixel,
                                   t + r * edge));
        TAGI_EACH(form, q, edge, tagi_pixels_column(form, adjoint, t, q, out, size));
    }
}

/* `tagi_transform_pixels` for a constant form. Most tiles, in the middle of the image, use a version without tests. */
TAGI_INLINE void tagi_transform_run(int form, int adjoint, const float *const *rows, int squared, int column, int width,
                                    size_t pixel, int tiles, float *out, size_t stride, size_t size, size_t channels) {
    const int step = tagi_step_of(form, adjoint), n = tagi_window_of(form, adjoint);
    int lines = rows[0] && rows[n - 1];
    for (int tile = 0; tile < tiles; tile++, column += step, out += stride) {
        ptrdiff_t at = step * tile * (ptrdiff_t)pixel;
        int inside = lines && column >= 0 && column + n <= width;
        if (!inside)
            tagi_transform_tile(form, adjoint, rows, at, 0, -column, width - column, squared, pixel, out, size,
                                channels);
        else
            tagi_transform_tile(form, adjoint, rows, at, 1, 0, n, squared, pixel, out, size, channels);
    }
}

TAGI_TARGET static void TAGI_NAME(tagi_transform_pixels)(int form, int adjoint, const float *const *rows, int squared,
                                                         int column, int width, size_t pixel, int tiles, float *out,
                                                         size_t stride, size_t size, size_t channels) {
    TAGI_OF_FORM(tagi_transform_run, adjoint, rows, squared, column, width, pixel, tiles, out, stride, size, channels);
}

TAGI_INLINE void tagi_restore_column(int form, int adjoint, const float *m, size_t size, int q, tagi_vector *t) {
    const int edge = tagi_edge_of(form);
    tagi_vector column[TAGI_WIDEST], y[TAGI_WIDEST];
    TAGI_UNROLLED for (int k = 0; k < edge; k++) column[k] = TAGI_FROM(m + tagi_place(form, k, q, size));
    tagi_make_pixels(form, adjoint, column, y);
    TAGI_UNROLLED for (int r = 0; r < tagi_made_of(form, adjoint); r++) t[r * edge + q] = y[r];
}

TAGI_INLINE void tagi_restore_pixel(tagi_vector z, int positive, tagi_vector offset, int more, const float *jcb,
                                    int power, float *x) {
    if (positive) z = (tagi_vector)((tagi_bits)z & ~(z < 0));
    z += more ? TAGI_AT(x) : offset;
    for (int k = 0; jcb && k < power; k++) z *= TAGI_FROM(jcb);
    TAGI_AT(x) = z;
}

TAGI_INLINE void tagi_restore_line(int form, int adjoint, const tagi_vector *t, int columns, int positive,
                                   tagi_vector offset, int more, const float *jcb, int power, float *x, size_t pixel) {
    tagi_vector y[TAGI_WIDEST];
    tagi_make_pixels(form, adjoint, t, y);
    TAGI_EACH(form, q, columns,
              tagi_restore_pixel(y[q], positive, offset, more, jcb ? jcb + q * pixel : NULL, power, x + q * pixel));
}

TAGI_INLINE void tagi_restore_tile(int form, int adjoint, const float *m, size_t size, int lines, int columns,
                                   int positive, const float *start, int more, const float *jcb, int power, float *x,
                                   size_t line, size_t pixel, size_t channels) {
    const int edge = tagi_edge_of(form), made = tagi_made_of(form, adjoint);
    for (size_t i = 0; i < channels; i += TAGI_LANES) {
        tagi_vector t[TAGI_MOST], offset = start ? TAGI_FROM(start + i) : (tagi_vector){0};
        for (int r = 0; r < made; r++)
            TAGI_UNROLLED for (int q = made; q < 2 * made; q++) TAGI_FETCH_TO_WRITE(x + r * line + q * pixel + i);
        TAGI_EACH(form, q, edge, tagi_restore_column(form, adjoint, m + i, size, q, t));
        TAGI_EACH(form, r, lines,
                  tagi_restore_line(form, adjoint, t + r * edge, columns, positive, offset, more,
                                    jcb ? jcb + r * line + i : NULL, power, x + r * line + i, pixel));
    }
}

TAGI_INLINE void tagi_restore_run(int form, int adjoint, const float *m, size_t stride, size_t size, int tiles,
                                  int positive, const float *start, int more, const float *jcb, int power, float *x,
                                  int lines, int columns, size_t line, size_t pixel, size_t channels) {
    const int made = tagi_made_of(form, adjoint);
    for (int tile = 0; tile < tiles; tile++, m += stride, columns -= made) {
        if (lines >= made && columns >= made)
            tagi_restore_tile(form, adjoint, m, size, made, made, positive, start, more, jcb, power, x, line, pixel,
                              channels);
        else
            tagi_restore_tile(form, adjoint, m, size, lines < made ? lines : made, columns < made ? columns : made,
                              positive, start, more, jcb, power, x, line, pixel, channels);
        x += made * pixel;
        if (jcb) jcb += made * pixel;
    }
}

TAGI_TARGET static void TAGI_NAME(tagi_restore_pixels)(int form, int adjoint, const float *m, size_t stride,
                                                       size_t size, int tiles, int positive, const float *start,
                                                       int more, const float *jcb, int power, float *x, int lines,
                                                       int columns, size_t line, size_t pixel, size_t channels) {
    TAGI_OF_FORM(tagi_restore_run, adjoint, m, stride, size, tiles, positive, start, more, jcb, power, x, lines,
                 columns, line, pixel, channels);
}

TAGI_INLINE void tagi_deltas_column(int form, const float *x, int squared, int lines, size_t line, int q,
                                    tagi_vector *t) {
    const int made = tagi_made_of(form, 0), edge = tagi_edge_of(form);
    tagi_vector e[4], column[TAGI_WIDEST];
    TAGI_UNROLLED for (int r = 0; r < made; r++) {
        tagi_vector z = r < lines ? TAGI_FROM(x + r * line) : (tagi_vector){0};
        if (squared) z *= z;
        e[r] = z;
    }
    tagi_see_deltas(form, e, column);
    TAGI_UNROLLED for (int r = 0; r < edge; r++) t[r * made + q] = column[r];
}

TAGI_INLINE void tagi_deltas_line(int form, const tagi_vector *t, int k, float *out, size_t size) {
    tagi_vector planes[TAGI_WIDEST];
    tagi_see_deltas(form, t, planes);
    TAGI_UNROLLED for (int q = 0; q < tagi_edge_of(form); q++) TAGI_AT(out + tagi_place(form, k, q, size)) = planes[q];
}

TAGI_INLINE void tagi_deltas_tile(int form, const float *x, int squared, int lines, int columns, size_t line,
                                  size_t pixel, float *out, size_t size, size_t channels) {
    const int made = tagi_made_of(form, 0), edge = tagi_edge_of(form);
    for (size_t i = 0; i < channels; i += TAGI_LANES) {
        tagi_vector t[4 * TAGI_WIDEST];
        TAGI_UNROLLED for (int r = 0; r < made; r++) TAGI_UNROLLED for (int q = made; q < 2 * made; q++)
            TAGI_FETCH(x + r * line + q * pixel + i);
        TAGI_EACH(form, q, made,
                  tagi_deltas_column(form, x + q * pixel + i, squared, q < columns ? lines : 0, line, q, t));
        TAGI_EACH(form, k, edge, tagi_deltas_line(form, t + k * made, k, out + i, size));
    }
}

TAGI_INLINE void tagi_deltas_run(int form, int adjoint, const float *x, int squared, int lines, int columns,
                                 size_t line, size_t pixel, int tiles, float *out, size_t stride, size_t size,
                                 size_t channels) {
    const int made = tagi_made_of(form, adjoint);
    for (int tile = 0; tile < tiles; tile++, x += made * pixel, columns -= made, out += stride) {
        if (lines >= made && columns >= made)
            tagi_deltas_tile(form, x, squared, made, made, line, pixel, out, size, channels);
        else
            tagi_deltas_tile(form, x, squared, lines, columns, line, pixel, out, size, channels);
    }
}

TAGI_TARGET static void TAGI_NAME(tagi_transform_deltas)(int form, const float *x, int squared, int lines, int columns,
                                                         size_t line, size_t pixel, int tiles, float *out,
                                                         size_t stride, size_t size, size_t channels) {
    TAGI_OF_FORM(tagi_deltas_run, 0, x, squared, lines, columns, line, pixel, tiles, out, stride, size, channels);
}

/* taps[k] = tap k of TAGI_LANES kernels, which begin `stride` numbers apart. The transpose is made in registers: a read
 * of a vector would have to wait for the writes of its numbers. */
TAGI_INLINE void tagi_load_kernels(int form, const float *w, size_t stride, tagi_vector *taps) {
    const int size = tagi_taps_of(form) * tagi_taps_of(form);
    for (int k = 0; k + 8 <= size; k += 8) {
        tagi_vector x[8];
        TAGI_UNROLLED for (int i = 0; i < 8; i++) TAGI_LOAD(x[i], w + k, stride, i);
        tagi_transpose_block(x, taps + k);
    }
    if (size % 8) {
        tagi_vector last = {0};
        for (int i = 0; i < TAGI_LANES; i++) last[i] = w[i * stride + size - 1];
        taps[size - 1] = last;
    }
}

TAGI_INLINE void tagi_kernels_run(int form, int adjoint, const float *w, const float *s, size_t stride, int kind,
                                  int flip, float *out, size_t plane) {
    const int taps = tagi_taps_of(form), size = taps * taps, edge = tagi_kernel_edge_of(form);
    for (int lane = 0; lane < 16; lane += TAGI_LANES, w += TAGI_LANES * stride, out += TAGI_LANES) {
        tagi_vector x[25], more[25], kernel[25], t[4 * TAGI_WIDEST];
        tagi_load_kernels(form, w, stride, x);
        if (kind == TAGI_SQUARE_PLUS) tagi_load_kernels(form, s + lane * stride, stride, more);
        TAGI_EACH(form, k, size, {
            tagi_vector g = x[k];
            if (kind != TAGI_MEAN) g *= g;
            if (kind == TAGI_SQUARE_PLUS) g += more[k];
            kernel[flip ? size - 1 - k : k] = g;
        });
        TAGI_EACH(form, q, taps, {
            tagi_vector column[5], planes[TAGI_WIDEST];
            TAGI_UNROLLED for (int r = 0; r < taps; r++) column[r] = kernel[r * taps + q];
            tagi_see_kernel(form, column, planes);
            TAGI_UNROLLED for (int k = 0; k < edge; k++) t[k * taps + q] = planes[k];
        });
        TAGI_EACH(form, k, edge, {
            tagi_vector planes[TAGI_WIDEST];
            tagi_see_kernel(form, t + k * taps, planes);
            TAGI_UNROLLED for (int q = 0; q < edge; q++) TAGI_AT(out + (k * edge + q) * plane) = planes[q];
        });
    }
}

TAGI_TARGET static void TAGI_NAME(tagi_transform_kernels)(int form, const float *w, const float *s, size_t stride,
                                                          int kind, int flip, float *out, size_t plane) {
    TAGI_OF_FORM(tagi_kernels_run, 0, w, s, stride, kind, flip, out, plane);
}

TAGI_INLINE void tagi_restore_kernels_run(int form, int adjoint, const float *m, size_t plane, int more, float *out) {
    const int taps = tagi_taps_of(form), size = taps * taps, edge = tagi_kernel_edge_of(form);
    for (int lane = 0; lane < 16; lane += TAGI_LANES, m += TAGI_LANES, out += size * TAGI_LANES) {
        tagi_vector t[4 * TAGI_WIDEST], kernel[25], x[8];
        TAGI_EACH(form, q, edge, {
            tagi_vector column[TAGI_WIDEST], g[5];
            TAGI_UNROLLED for (int k = 0; k < edge; k++) column[k] = TAGI_FROM(m + (k * edge + q) * plane);
            tagi_make_kernel(form, column, g);
            TAGI_UNROLLED for (int r = 0; r < taps; r++) t[r * edge + q] = g[r];
        });
        TAGI_EACH(form, r, taps, tagi_make_kernel(form, t + r * edge, kernel + r * taps));
        for (int tap = 0; tap + 8 <= size; tap += 8) {
            tagi_transpose_block(kernel + tap, x);
            TAGI_UNROLLED for (int i = 0; i < 8; i++) TAGI_UNROLLED for (int k = 0; k < TAGI_LANES; k += 8) {
                float *first = out + size * (TAGI_LINE(i) + k) + tap + TAGI_COLUMN(i);
                tagi_part sums = *(tagi_part *)((float *)&x[i] + k);
                if (more) sums += *(tagi_part *)first;
                *(tagi_part *)first = sums;
            }
        }
        if (size % 8)
            for (int i = 0; i < TAGI_LANES; i++) {
                float *last = out + size * i + size - 1;
                *last = kernel[size - 1][i] + (more ? *last : 0);
            }
    }
}

TAGI_TARGET static void TAGI_NAME(tagi_restore_kernels)(int form, const float *m, size_t plane, int more, float *out) {
    TAGI_OF_FORM(tagi_restore_kernels_run, 0, m, plane, more, out);
}
