/* Pooling of channels-last images, many channels at a time: sums of a window stay in registers. */
#ifndef PYTAGI_DDP_POOL_H
#define PYTAGI_DDP_POOL_H

#include "loops.h"

typedef struct {
    int first, end;
} span;

/* Lines that the window of line `y` sees, of `height`. */
static inline span seen_by(int y, int kernel, int stride, int pad, int height) {
    int first = y * stride - pad, end = first + kernel;
    return (span){first > 0 ? first : 0, end < height ? end : height};
}

/* Windows, of `windows`, that see a line. */
static inline span seers_of(int line, int kernel, int stride, int pad, int windows) {
    int first = line + pad - kernel, end = (line + pad) / stride + 1;
    return (span){first < 0 ? 0 : first / stride + 1, end < windows ? end : windows};
}

#define LOOPS "pool_loops.h"
#include "levels.h"

/* One image: x (height x width) to out (windows), or back if `back`: then x is of windows, and out of the image. */
static inline void average_image(const float *x, int height, int width, float *out, int out_height, int out_width,
                                 size_t channels, int kernel, int stride, int pad, int back, float factor) {
    CALL(average_image)
    (x, height, width, out, out_height, out_width, channels, kernel, stride, pad, back, factor);
}

/* Of `n` channels, the pixel with the largest mean among those of some lines and columns; the numbers of pixels go line
 * by line. Another one displaces the largest so far where its mean is larger, or NaN. Sixteen channels are a loop of
 * known length, and their results local, for the compiler to make vectors of both. */
static inline __attribute__((always_inline)) void largest_pixel(const float *mu, const float *var, span lines,
                                                                span columns, int width, size_t channels, size_t n,
                                                                float *out_mu, float *out_var, int *winner) {
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

/* One image to its windows, and for each of these the number of the pixel that it took. */
VECTORISED void largest_image(const float *mu, const float *var, int height, int width, float *out_mu, float *out_var,
                              int *winner, int out_height, int out_width, size_t channels, int kernel, int stride,
                              int pad) {
    for (int y = 0; y < out_height; y++) {
        span lines = seen_by(y, kernel, stride, pad, height);
        for (int q = 0; q < out_width; q++, out_mu += channels, out_var += channels, winner += channels) {
            span columns = seen_by(q, kernel, stride, pad, width);
            if (channels < 16)
                largest_pixel(mu, var, lines, columns, width, channels, channels, out_mu, out_var, winner);
            else
                for (size_t next = 0; next < channels; next += 16) {
                    size_t c = next + 16 <= channels ? next : channels - 16; /* the last ones, some of them again */
                    largest_pixel(mu + c, var + c, lines, columns, width, channels, 16, out_mu + c, out_var + c,
                                  winner + c);
                }
        }
    }
}

/* The deltas of an image's windows go to the pixels that these took; a number of no pixel writes nothing. */
VECTORISED void scatter_image(const float *mu, const float *var, const int *winner, size_t windows, size_t channels,
                              size_t pixels, float *image_mu, float *image_var) {
    memset(image_mu, 0, pixels * channels * sizeof(float));
    memset(image_var, 0, pixels * channels * sizeof(float));
    for (; windows; windows--, mu += channels, var += channels, winner += channels)
        for (size_t c = 0; c < channels; c++)
            if (winner[c] >= 0 && (size_t)winner[c] < pixels) {
                image_mu[winner[c] * channels + c] += mu[c];
                image_var[winner[c] * channels + c] += var[c];
            }
}

#endif
