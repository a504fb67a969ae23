/* Elementwise loops of the moment products, in C so that the compiler vectorises them.
 *
 * Every build is one for any x86-64. There each loop is compiled three times, and the loader picks one, once. So a wheel
 * is as fast as a build in place, with the same bits. Elsewhere (Arm, other C libraries than glibc) there is one. */
#ifndef PYTAGI_DDP_LOOPS_H
#define PYTAGI_DDP_LOOPS_H

#include <stddef.h>
#include <string.h>

#if defined(__clang__) || __GNUC__ < 12 /* know no levels, or mistake them */
#define CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && !defined(__AVX2__)
#define VECTORISED CLONES static
#pragma GCC diagnostic ignored "-Wunused-function" /* no module needs all of them; clang takes no `unused` here */
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

/* out = x: patches of few channels are made of runs too short for a call of memcpy */
static inline void copy_run(const float *x, float *out, size_t n) {
    if (n > 128) {
        memcpy(out, x, n * sizeof(float));
        return;
    }
    for (; n >= 16; n -= 16, x += 16, out += 16) memcpy(out, x, 64);
    for (; n >= 4; n -= 4, x += 4, out += 4) memcpy(out, x, 16);
    for (; n; n--) *out++ = *x++;
}

/* n runs of `size` numbers, `step` apart in x and `stride` apart in out */
static inline void copy_runs(const float *x, size_t step, float *out, size_t stride, size_t n, size_t size) {
    if (size == 4)
        for (; n; n--, x += step, out += stride) memcpy(out, x, 16);
    for (; n; n--, x += step, out += stride) copy_run(x, out, size);
}

/* total += the rows of x, which are `stride` apart, in blocks so that rounding errors of long sums stay small */
VECTORISED void sum_rows(const float *restrict x, size_t stride, float *restrict total, size_t rows, size_t width) {
    enum { COLUMNS = 64, ROWS = 512 };
    for (size_t i = 0; i < width; i += COLUMNS) {
        size_t n = width - i < COLUMNS ? width - i : COLUMNS;
        for (size_t first = 0; first < rows; first += ROWS) {
            size_t last = rows - first < ROWS ? rows : first + ROWS;
            float sum[COLUMNS] = {0};
            for (size_t row = first; row < last; row++)
                for (size_t j = 0; j < n; j++) sum[j] += x[row * stride + i + j];
            for (size_t j = 0; j < n; j++) total[i + j] += sum[j];
        }
    }
}

#endif
