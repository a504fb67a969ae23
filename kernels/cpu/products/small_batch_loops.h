/* The loop of small_batch.h, which levels.h compiles for each length of vectors. */
#define tagi_samples TAGI_NAME(tagi_samples)
#define tagi_some_outputs TAGI_NAME(tagi_some_outputs)
#undef TAGI_PARTS
#define TAGI_PARTS (TAGI_SAMPLES / TAGI_LANES) /* vectors of all samples */
#define TAGI_EACH(k, n) _Pragma("GCC unroll 4") for (int k = 0; k < n; k++)

typedef float tagi_samples __attribute__((vector_size(4 * TAGI_LANES), aligned(4), may_alias));

/* Moments, without the bias, of `count` outputs, at most TAGI_OUTPUTS. x, v: means and variances of the inputs, (inputs,
 * TAGI_SAMPLES); v is NULL for a deterministic input. */
TAGI_TARGET static inline __attribute__((always_inline)) void tagi_some_outputs(
    const int count, const float *x, const float *v, const float *w, const float *s, long inputs, float *mean,
    float *variance) {
    tagi_samples m[TAGI_OUTPUTS][TAGI_PARTS] = {{{0}}}, q[TAGI_OUTPUTS][TAGI_PARTS] = {{{0}}};
    for (long i = 0; i < inputs; i++)
        TAGI_EACH(p, TAGI_PARTS) {
            long at = i * TAGI_SAMPLES + p * TAGI_LANES;
            tagi_samples a = *(const tagi_samples *)(x + at), a2 = a * a, b = {0};
            if (v) b = *(const tagi_samples *)(v + at);
            TAGI_EACH(k, count) {
                float weight = w[k * inputs + i], uncertain = s[k * inputs + i];
                m[k][p] += weight * a;
                q[k][p] += uncertain * a2;
                if (v) q[k][p] += (weight * weight + uncertain) * b;
            }
        }
    TAGI_EACH(k, count)
    TAGI_EACH(p, TAGI_PARTS) {
        *(tagi_samples *)(mean + k * TAGI_SAMPLES + p * TAGI_LANES) = m[k][p];
        *(tagi_samples *)(variance + k * TAGI_SAMPLES + p * TAGI_LANES) = q[k][p];
    }
}

TAGI_TARGET static void TAGI_NAME(tagi_small_outputs)(const float *x, const float *v, const float *w, const float *s,
                                                      const float *b_mu, const float *b_var, float *out_mu,
                                                      float *out_var, long inputs, long outputs, long first,
                                                      long last) {
    float mean[TAGI_OUTPUTS * TAGI_SAMPLES], variance[TAGI_OUTPUTS * TAGI_SAMPLES];
    for (long o = first, count; o < last; o += count) {
        const float *wo = w + o * inputs, *so = s + o * inputs;
        count = last - o < TAGI_OUTPUTS ? 1 : TAGI_OUTPUTS;
        if (count == 1)
            v ? tagi_some_outputs(1, x, v, wo, so, inputs, mean, variance)
              : tagi_some_outputs(1, x, NULL, wo, so, inputs, mean, variance);
        else
            v ? tagi_some_outputs(TAGI_OUTPUTS, x, v, wo, so, inputs, mean, variance)
              : tagi_some_outputs(TAGI_OUTPUTS, x, NULL, wo, so, inputs, mean, variance);
        for (long r = 0; r < TAGI_SAMPLES; r++)
            for (long k = 0; k < count; k++) {
                out_mu[r * outputs + o + k] = mean[k * TAGI_SAMPLES + r] + (b_mu ? b_mu[o + k] : 0);
                out_var[r * outputs + o + k] = variance[k * TAGI_SAMPLES + r] + (b_var ? b_var[o + k] : 0);
            }
    }
}

#undef tagi_samples
#undef tagi_some_outputs
#undef TAGI_EACH
