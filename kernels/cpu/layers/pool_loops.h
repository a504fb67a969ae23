/* Average pooling, with vectors of channels. levels.h compiles this; pool.h declares it. */
#include "vectors.h"

#define tagi_average_pixels TAGI_NAME(tagi_average_pixels)

/* out (channels) = factor * sum of lines x columns pixels, the first of which is x; an image line has `width`
 * pixels. */
TAGI_INLINE void tagi_average_pixels(const float *x, int lines, int columns, size_t width, size_t channels,
                                     float factor, float *out) {
    size_t c = 0;
    for (; c + TAGI_LANES <= channels; c += TAGI_LANES) {
        tagi_vector sum = {0};
        for (int r = 0; r < lines; r++)
            for (int q = 0; q < columns; q++) sum += TAGI_FROM(x + (r * width + q) * channels + c);
        TAGI_AT(out + c) = factor * sum;
    }
    for (; c < channels; c++) {
        float sum = 0;
        for (int r = 0; r < lines; r++)
            for (int q = 0; q < columns; q++) sum += x[(r * width + q) * channels + c];
        out[c] = factor * sum;
    }
}

TAGI_TARGET static void TAGI_NAME(tagi_average_image)(const float *x, int height, int width, float *out, int out_height,
                                                      int out_width, size_t channels, int kernel, int stride, int pad,
                                                      int back, float factor) {
    for (int y = 0; y < out_height; y++) {
        tagi_span lines =
            back ? tagi_seers_of(y, kernel, stride, pad, height) : tagi_seen_by(y, kernel, stride, pad, height);
        for (int q = 0; q < out_width; q++, out += channels) {
            tagi_span columns =
                back ? tagi_seers_of(q, kernel, stride, pad, width) : tagi_seen_by(q, kernel, stride, pad, width);
            const float *from = x + (lines.first * (size_t)width + columns.first) * channels;
            int down = lines.end - lines.first, across = columns.end - columns.first;
            if (down == 3 && across == 3) /* with common sizes as constants, the compiler unrolls the loops */
                tagi_average_pixels(from, 3, 3, width, channels, factor, out);
            else if (down == 2 && across == 2)
                tagi_average_pixels(from, 2, 2, width, channels, factor, out);
            else
                tagi_average_pixels(from, down, across, width, channels, factor, out);
        }
    }
}

#undef tagi_average_pixels
