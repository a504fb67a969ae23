/* Average pooling, as many channels at a time as a vector has numbers. levels.h compiles this; pool.h says what it
 * does. */
#include "vectors.h"

#define average_pixels NAME(average_pixels)

/* out (channels) = factor * sum of lines x columns pixels, the first of which is x; an image line has `width`
 * pixels. */
INLINE void average_pixels(const float *x, int lines, int columns, size_t width, size_t channels, float factor,
                           float *out) {
    size_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        vector sum = {0};
        for (int r = 0; r < lines; r++)
            for (int q = 0; q < columns; q++) sum += FROM(x + (r * width + q) * channels + c);
        AT(out + c) = factor * sum;
    }
    for (; c < channels; c++) {
        float sum = 0;
        for (int r = 0; r < lines; r++)
            for (int q = 0; q < columns; q++) sum += x[(r * width + q) * channels + c];
        out[c] = factor * sum;
    }
}

TARGET static void NAME(average_image)(const float *x, int height, int width, float *out, int out_height, int out_width,
                                       size_t channels, int kernel, int stride, int pad, int back, float factor) {
    for (int y = 0; y < out_height; y++) {
        span lines = back ? seers_of(y, kernel, stride, pad, height) : seen_by(y, kernel, stride, pad, height);
        for (int q = 0; q < out_width; q++, out += channels) {
            span columns = back ? seers_of(q, kernel, stride, pad, width) : seen_by(q, kernel, stride, pad, width);
            const float *from = x + (lines.first * (size_t)width + columns.first) * channels;
            int down = lines.end - lines.first, across = columns.end - columns.first;
            if (down == 3 && across == 3) /* with common sizes as constants, the compiler unrolls the loops */
                average_pixels(from, 3, 3, width, channels, factor, out);
            else if (down == 2 && across == 2)
                average_pixels(from, 2, 2, width, channels, factor, out);
            else
                average_pixels(from, down, across, width, channels, factor, out);
        }
    }
}

#undef average_pixels
