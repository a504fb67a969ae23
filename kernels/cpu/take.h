/* Numbers from outside, in float32 and looked through on the way. */
#ifndef PYTAGI_DDP_TAKE_H
#define PYTAGI_DDP_TAKE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { INFINITE = 1, NOT_A_NUMBER = 2, NEGATIVE = 4 }; /* what was met */

#define TAKE(NAME, TYPE)                                                    \
    static int NAME(const TYPE *restrict x, float *restrict out, size_t n) { \
        int infinite = 0, nan = 0, negative = 0;                             \
        for (size_t i = 0; i < n; i++) {                                     \
            float value = (float)x[i];                                       \
            uint32_t bits;                                                   \
            memcpy(&bits, &value, 4);                                        \
            infinite |= (bits & 0x7fffffffu) == 0x7f800000u;                 \
            nan |= (bits & 0x7fffffffu) > 0x7f800000u;                       \
            negative |= value < 0;                                           \
            out[i] = value;                                                  \
        }                                                                    \
        return infinite * INFINITE | nan * NOT_A_NUMBER | negative * NEGATIVE; \
    }

TAKE(take_float, float)
TAKE(take_double, double)

#endif
