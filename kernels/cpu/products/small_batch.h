/* The forward products of a dense layer for 16 samples or a small multiple; _linear.pyx uses them where the BLAS would
 * be slower.
 *
 * Each output has one accumulator for 16 samples. So a weight is read once for all of them, and the products for means
 * and variances share what they read. */
#ifndef PYTAGI_DDP_SMALL_BATCH_H
#define PYTAGI_DDP_SMALL_BATCH_H

#include "transpose.h"

enum { TAGI_SAMPLES = 16, TAGI_OUTPUTS = 4 }; /* samples and outputs that are computed together */

#define TAGI_LOOPS "small_batch_loops.h"
#include "levels.h"

/* Outputs first:last for `rows` samples, a multiple of TAGI_SAMPLES. Arrays are those of `tagi_forward_few` (few_rows.h);
 * scratch: 2 * TAGI_SAMPLES * inputs numbers. */
static inline void tagi_forward_small(const float *mu, const float *var, const float *w, const float *s,
                                      const float *b_mu, const float *b_var, float *out_mu, float *out_var, long rows,
                                      long inputs, long outputs, long first, long last, float *scratch) {
    float *v = var ? scratch + TAGI_SAMPLES * inputs : NULL;
    for (long b = 0; b < rows; b += TAGI_SAMPLES) {
        tagi_transpose_matrix(mu + b * inputs, TAGI_SAMPLES, inputs, inputs, scratch);
        if (var) tagi_transpose_matrix(var + b * inputs, TAGI_SAMPLES, inputs, inputs, v);
        TAGI_CALL(tagi_small_outputs)
        (scratch, v, w, s, b_mu, b_var, out_mu + b * outputs, out_var + b * outputs, inputs, outputs, first, last);
    }
}

#endif
