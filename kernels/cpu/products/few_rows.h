/* The moment products of a dense layer for one or two samples; _linear.pyx uses them for small layers.
 *
 * For so few samples, copying operands, as a BLAS does, takes too long. Here weights are read in place, once per
 * sample, and squares are computed in the same loop. Arrays are row-major: units of the input (rows, inputs), of the
 * output (rows, outputs), weights (outputs, inputs). No two arrays may overlap. */
#ifndef PYTAGI_DDP_FEW_ROWS_H
#define PYTAGI_DDP_FEW_ROWS_H

#include "loops.h"

/* out_mu = mu W^T + b, out_var = var (W^2 + S)^T + mu^2 S^T + s_b. var is NULL if the input is deterministic; b_mu and
 * b_var are NULL without a bias. */
TAGI_VECTORISED void tagi_forward_few(const float *mu, const float *var, const float *w, const float *s,
                                      const float *b_mu, const float *b_var, float *out_mu, float *out_var, long rows,
                                      long inputs, long outputs) {
    for (long b = 0; b < rows; b++, mu += inputs, var = var ? var + inputs : var)
        for (long o = 0; o < outputs; o++) {
            const float *wo = w + o * inputs, *so = s + o * inputs;
            float mean = 0, variance = 0, passed_on = 0; /* apart, so that var = 0 has the bits of NULL */
            if (var) {
#pragma omp simd reduction(+ : mean, variance, passed_on)
                for (long i = 0; i < inputs; i++) {
                    mean += wo[i] * mu[i];
                    variance += so[i] * mu[i] * mu[i];
                    passed_on += var[i] * (wo[i] * wo[i] + so[i]);
                }
            } else {
#pragma omp simd reduction(+ : mean, variance)
                for (long i = 0; i < inputs; i++) {
                    mean += wo[i] * mu[i];
                    variance += so[i] * mu[i] * mu[i];
                }
            }
            out_mu[b * outputs + o] = mean + (b_mu ? b_mu[o] : 0);
            out_var[b * outputs + o] = variance + passed_on + (b_var ? b_var[o] : 0);
        }
}

/* in_mu = jcb (delta_mu W), in_var = jcb^2 (delta_var W^2); NULL for jcb means 1. */
TAGI_VECTORISED void tagi_state_few(const float *delta_mu, const float *delta_var, const float *w, const float *jcb,
                                    float *restrict in_mu, float *restrict in_var, long rows, long inputs,
                                    long outputs) {
    memset(in_mu, 0, rows * inputs * sizeof(float));
    memset(in_var, 0, rows * inputs * sizeof(float));
    for (long b = 0; b < rows; b++) {
        float *restrict mean = in_mu + b * inputs, *restrict variance = in_var + b * inputs;
        for (long o = 0; o < outputs; o++) {
            const float *wo = w + o * inputs;
            float m = delta_mu[b * outputs + o], v = delta_var[b * outputs + o];
            for (long i = 0; i < inputs; i++) {
                mean[i] += m * wo[i];
                variance[i] += v * wo[i] * wo[i];
            }
        }
        if (jcb) tagi_times_jacobian(mean, variance, jcb + b * inputs, inputs);
    }
}

/* g = delta_mu^T mu, h = delta_var^T mu^2, g_b = sum of delta_mu, h_b = sum of delta_var; or added to the content, if
 * `accumulate`. g_b and h_b are NULL without a bias. */
TAGI_VECTORISED void tagi_weight_few(const float *mu, const float *delta_mu, const float *delta_var, float *restrict g,
                                     float *restrict h, float *restrict g_b, float *restrict h_b, int accumulate,
                                     long rows, long inputs, long outputs) {
    if (!accumulate) {
        memset(g, 0, outputs * inputs * sizeof(float));
        memset(h, 0, outputs * inputs * sizeof(float));
        if (g_b) memset(g_b, 0, outputs * sizeof(float));
        if (g_b) memset(h_b, 0, outputs * sizeof(float));
    }
    for (long o = 0; o < outputs; o++) {
        float *restrict go = g + o * inputs, *restrict ho = h + o * inputs;
        for (long b = 0; b < rows; b++) {
            const float *x = mu + b * inputs;
            float m = delta_mu[b * outputs + o], v = delta_var[b * outputs + o];
            for (long i = 0; i < inputs; i++) {
                go[i] += m * x[i];
                ho[i] += v * x[i] * x[i];
            }
            if (g_b) g_b[o] += m;
            if (g_b) h_b[o] += v;
        }
    }
}

#endif
