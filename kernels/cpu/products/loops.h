/* Loops over float32 arrays that the kernels for products, convolutions and pooling share: squares, sums and copies.
 *
 * They are in C because of its attributes for compilers. `TAGI_VECTORISED` compiles a loop three times, with the vector
 * instructions of three generations of x86-64 processors, and the dynamic loader selects the version for the processor
 * when it loads the module. So a wheel for any x86-64 is as fast as a build for one machine, and gives the same bits.
 * On other systems (Arm, C libraries other than glibc) a loop is compiled once.
 *
 * Arrays that are declared `restrict` must not overlap; this lets the compiler vectorise. */
#ifndef PYTAGI_DDP_LOOPS_H
#define PYTAGI_DDP_LOOPS_H

#include <stddef.h>
#include <string.h>

#if defined(__clang__) || __GNUC__ < 12 /* these do not support the levels v3 and v4, or select the wrong one */
#define TAGI_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define TAGI_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && !defined(__AVX2__)
#define TAGI_VECTORISED TAGI_CLONES static
/* No module uses all of the loops. clang does not accept the attribute `unused` together with target_clones. */
#pragma GCC diagnostic ignored "-Wunused-function"
#else
#define TAGI_VECTORISED static inline
#endif

/* out = x^2; out may be x */
TAGI_VECTORISED void tagi_square(const float *x, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = x[i] * x[i];
}

/* out = x^2 + y */
TAGI_VECTORISED void tagi_square_plus(const float *restrict x, const float *restrict y, float *restrict out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = x[i] * x[i] + y[i];
}

/* mean = jcb mean, var = jcb^2 var: propagates moments or deltas through an activation with slopes jcb. */
TAGI_VECTORISED void tagi_times_jacobian(float *restrict mean, float *restrict var, const float *restrict jcb,
                                         size_t n) {
    for (size_t i = 0; i < n; i++) {
        mean[i] *= jcb[i];
        var[i] *= jcb[i] * jcb[i];
    }
}

/* sum += x */
TAGI_VECTORISED void tagi_add(const float *restrict x, float *restrict sum, size_t n) {
    for (size_t i = 0; i < n; i++) sum[i] += x[i];
}

/* out = x. Short runs are copied without memcpy, whose call takes longer than the copy: patches of images with few
 * channels consist of such runs. */
static inline void tagi_copy_run(const float *x, float *out, size_t n) {
    if (n > 128) {
        memcpy(out, x, n * sizeof(float));
        return;
    }
    for (; n >= 16; n -= 16, x += 16, out += 16) memcpy(out, x, 64);
    for (; n >= 4; n -= 4, x += 4, out += 4) memcpy(out, x, 16);
    for (; n; n--) *out++ = *x++;
}

/* out = x for n runs of `size` numbers; runs begin `step` numbers apart in x, and `stride` numbers apart in out. */
static inline void tagi_copy_runs(const float *x, size_t step, float *out, size_t stride, size_t n, size_t size) {
    if (size == 4)
        for (; n; n--, x += step, out += stride) memcpy(out, x, 16);
    for (; n; n--, x += step, out += stride) tagi_copy_run(x, out, size);
}

/* total (width) += the sum of the rows of x (rows x width), which begin `stride` numbers apart. At most 512 rows are
 * summed before their sum is added to `total`, so that rounding errors of long sums are small. */
TAGI_VECTORISED void tagi_sum_rows(const float *restrict x, size_t stride, float *restrict total, size_t rows,
                                   size_t width) {
    enum { TAGI_COLUMNS = 64, TAGI_ROWS = 512 };
    for (size_t i = 0; i < width; i += TAGI_COLUMNS) {
        size_t n = width - i < TAGI_COLUMNS ? width - i : TAGI_COLUMNS;
        for (size_t first = 0; first < rows; first += TAGI_ROWS) {
            size_t last = rows - first < TAGI_ROWS ? rows : first + TAGI_ROWS;
            float sum[TAGI_COLUMNS] = {0};
            for (size_t row = first; row < last; row++)
                for (size_t j = 0; j < n; j++) sum[j] += x[row * stride + i + j];
            for (size_t j = 0; j < n; j++) total[i + j] += sum[j];
        }
    }
}

#endif
