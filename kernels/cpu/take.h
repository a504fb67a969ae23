/* Checks and converts arrays that a program hands over, float32 or float64, for _express.pyx. */
#ifndef PYTAGI_DDP_TAKE_H
#define PYTAGI_DDP_TAKE_H

#include <stdint.h>

#include "loops.h"

enum { INFINITE = 1, NOT_A_NUMBER = 2, NEGATIVE = 4 };

/* look_float(x, n), look_double(x, n): which of these kinds occur among n numbers as float32, as a sum of the flags.
 * The loop has no branches, so that it is vectorised: an infinite number has an exponent of ones only, and NaN has,
 * besides, a mantissa that is not 0. */
#define LOOK(TYPE)                                                                  \
    VECTORISED int look_##TYPE(const TYPE *x, size_t n) {                           \
        int infinite = 0, nan = 0, negative = 0;                                    \
        for (size_t i = 0; i < n; i++) {                                            \
            float value = (float)x[i];                                              \
            uint32_t bits;                                                          \
            memcpy(&bits, &value, 4);                                               \
            infinite |= (bits & 0x7fffffffu) == 0x7f800000u;                        \
            nan |= (bits & 0x7fffffffu) > 0x7f800000u;                              \
            negative |= value < 0;                                                  \
        }                                                                           \
        return infinite * INFINITE | nan * NOT_A_NUMBER | negative * NEGATIVE;      \
    }

LOOK(float)
LOOK(double)

/* out = x in float32 */
static void take_double(const double *restrict x, float *restrict out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = (float)x[i];
}

#endif
