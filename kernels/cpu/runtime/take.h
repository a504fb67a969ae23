/* Checks and converts arrays of the user, float32 or float64, for _express.pyx. */
#ifndef PYTAGI_DDP_TAKE_H
#define PYTAGI_DDP_TAKE_H

#include <stdint.h>

#include "loops.h"

enum { TAGI_INFINITE = 1, TAGI_NOT_A_NUMBER = 2, TAGI_NEGATIVE = 4 };

/* tagi_look_float(x, n), tagi_look_double(x, n): which of these kinds occur among n numbers as float32, as a sum of the
 * flags. The loop has no branches, so that it is vectorised: an infinite number has an exponent of ones only, and NaN
 * also has a mantissa that is not 0. */
#define TAGI_LOOK(TYPE)                                                                       \
    TAGI_VECTORISED int tagi_look_##TYPE(const TYPE *x, size_t n) {                           \
        int infinite = 0, nan = 0, negative = 0;                                              \
        for (size_t i = 0; i < n; i++) {                                                      \
            float value = (float)x[i];                                                        \
            uint32_t bits;                                                                    \
            memcpy(&bits, &value, 4);                                                         \
            infinite |= (bits & 0x7fffffffu) == 0x7f800000u;                                  \
            nan |= (bits & 0x7fffffffu) > 0x7f800000u;                                        \
            negative |= value < 0;                                                            \
        }                                                                                     \
        return infinite * TAGI_INFINITE | nan * TAGI_NOT_A_NUMBER | negative * TAGI_NEGATIVE; \
    }

TAGI_LOOK(float)
TAGI_LOOK(double)

/* out = x in float32 */
static void tagi_take_double(const double *restrict x, float *restrict out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = (float)x[i];
}

#endif
