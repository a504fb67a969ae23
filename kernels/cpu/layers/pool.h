/* Pooling of one channels-last image (height, width, channels), as _pooling.pyx calls it. The innermost loop runs over
 * channels, which are contiguous, so that it is vectorised and the sum of a window stays in registers.
 *
 * Window (y, x) begins at line y * stride - pad and column x * stride - pad, and is kernel x kernel pixels large;
 * pixels outside the image are skipped. */
#ifndef PYTAGI_DDP_POOL_H
#define PYTAGI_DDP_POOL_H

#include "loops.h"

typedef struct {
    int first, end;
} tagi_span;

/* The lines, of an image of `height` lines, that windows of index y contain; also used for columns. */
static inline tagi_span tagi_seen_by(int y, int kernel, int stride, int pad, int height) {
    int first = y * stride - pad, end = first + kernel;
    return (tagi_span){first > 0 ? first : 0, end < height ? end : height};
}

/* The indices of the windows that contain a line (or column). */
static inline tagi_span tagi_seers_of(int line, int kernel, int stride, int pad, int windows) {
    int first = line + pad - kernel, end = (line + pad) / stride + 1;
    return (tagi_span){first < 0 ? 0 : first / stride + 1, end < windows ? end : windows};
}

#define TAGI_LOOPS "pool_loops.h"
#include "levels.h"

/* out = factor * sum of the pixels of each window: from an image x (height, width, channels) to windows (out_height,
 * out_width, channels). back: from windows x to an image, out = factor * sum of the windows that contain each pixel. */
static inline void tagi_average_image(const float *x, int height, int width, float *out, int out_height, int out_width,
                                      size_t channels, int kernel, int stride, int pad, int back, float factor) {
    TAGI_CALL(tagi_average_image)
    (x, height, width, out, out_height, out_width, channels, kernel, stride, pad, back, factor);
}

/* Finds the pixel with the largest mean in a window of these lines and columns, for each of the first n channels (16 at
 * most): its moments, and its index line * width + column. The first of equal means is selected, and NaN counts as
 * larger than every other number. Callers pass 16 as a constant, and results are local until the end, so that the
 * compiler vectorises this. */
static inline __attribute__((always_inline)) void tagi_largest_pixel(const float *mu, const float *var, tagi_span lines,
                                                                     tagi_span columns, int width, size_t channels,
                                                                     size_t n, float *out_mu, float *out_var,
                                                                     int *winner) {
    float best[16], its_var[16];
    int its_pixel[16];
    int first = lines.first * width + columns.first;
    for (size_t c = 0; c < n; c++) {
        best[c] = mu[first * channels + c];
        its_var[c] = var[first * channels + c];
        its_pixel[c] = first;
    }
    for (int r = lines.first; r < lines.end; r++)
        for (int pixel = r * width + columns.first; pixel < r * width + columns.end; pixel++) {
            const float *x = mu + pixel * channels, *s = var + pixel * channels;
            for (size_t c = 0; c < n; c++) {
                int over = (x[c] > best[c]) | (x[c] != x[c]);
                best[c] = over ? x[c] : best[c];
                its_var[c] = over ? s[c] : its_var[c];
                its_pixel[c] = over ? pixel : its_pixel[c];
            }
        }
    memcpy(out_mu, best, n * sizeof(float));
    memcpy(out_var, its_var, n * sizeof(float));
    memcpy(winner, its_pixel, n * sizeof(int));
}

/* The moments of the pixel with the largest mean in each window of an image (height, width, channels). winner: its
 * index line * width + column. All results are (out_height, out_width, channels). */
TAGI_VECTORISED void tagi_largest_image(const float *mu, const float *var, int height, int width, float *out_mu,
                                        float *out_var, int *winner, int out_height, int out_width, size_t channels,
                                        int kernel, int stride, int pad) {
    for (int y = 0; y < out_height; y++) {
        tagi_span lines = tagi_seen_by(y, kernel, stride, pad, height);
        for (int q = 0; q < out_width; q++, out_mu += channels, out_var += channels, winner += channels) {
            tagi_span columns = tagi_seen_by(q, kernel, stride, pad, width);
            if (channels < 16)
                tagi_largest_pixel(mu, var, lines, columns, width, channels, channels, out_mu, out_var, winner);
            else
                for (size_t next = 0; next < channels; next += 16) {
                    size_t c = next + 16 <= channels ? next : channels - 16; /* the last 16: some for a second time */
                    tagi_largest_pixel(mu + c, var + c, lines, columns, width, channels, 16, out_mu + c, out_var + c,
                                       winner + c);
                }
        }
    }
}

/* Backward: an image (pixels, channels) of zeros, to which the deltas (mu, var) of each window are added at the
 * pixel `winner` of that window. A winner that is not an index of a pixel is skipped, so that nothing outside the image is
 * written. */
TAGI_VECTORISED void tagi_scatter_image(const float *mu, const float *var, const int *winner, size_t windows,
                                        size_t channels, size_t pixels, float *image_mu, float *image_var) {
    memset(image_mu, 0, pixels * channels * sizeof(float));
    memset(image_var, 0, pixels * channels * sizeof(float));
    for (; windows; windows--, mu += channels, var += channels, winner += channels)
        for (size_t c = 0; c < channels; c++)
            if ((size_t)winner[c] < pixels) { /* a negative int becomes a large size_t */
                image_mu[winner[c] * channels + c] += mu[c];
                image_var[winner[c] * channels + c] += var[c];
            }
}

#endif
