/* Elementwise loops of the moment products, in C so that the compiler vectorises them.
 *
 * A build in place is tuned for its machine. A wheel is built for any x86-64: there each loop is compiled three times
 * and the loader picks one. */
#ifndef PYTAGI_DDP_LOOPS_H
#define PYTAGI_DDP_LOOPS_H

#include <stddef.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && !defined(__AVX2__)
#define VECTORISED __attribute__((target_clones("avx512f", "avx2", "default"))) static
#else
#define VECTORISED static inline
#endif

/* out = x^2 */
VECTORISED void square(const float *x, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = x[i] * x[i];
}

/* out = x^2 + y */
VECTORISED void square_plus(const float *restrict x, const float *restrict y, float *restrict out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = x[i] * x[i] + y[i];
}

/* mean = jcb mean, var = jcb^2 var */
VECTORISED void times_jacobian(float *restrict mean, float *restrict var, const float *restrict jcb, size_t n) {
    for (size_t i = 0; i < n; i++) {
        mean[i] *= jcb[i];
        var[i] *= jcb[i] * jcb[i];
    }
}

/* sum += x */
VECTORISED void add(const float *restrict x, float *restrict sum, size_t n) {
    for (size_t i = 0; i < n; i++) sum[i] += x[i];
}

#endif
