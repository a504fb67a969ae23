/* Makes processors treat subnormal numbers (below 1e-38) as zero while kernels compute, as operands and as results.
 *
 * Training produces more and more of them, as deltas of units that are off, and processors are many times slower with
 * them. A bit in the floating-point control register of a thread switches them off. The user's own code must not be
 * affected, so a kernel sets the register at its start, and restores it at its end.
 *
 * This has to be done in each thread: a thread of gcc's OpenMP pool has the register of the thread that created it, not
 * that of the thread that uses the pool. LLVM's OpenMP gives each parallel loop the register of the calling thread, and
 * restores that at the end of the loop: so the calling thread is set once more after a loop. */
#ifndef PYTAGI_DDP_FLUSH_H
#define PYTAGI_DDP_FLUSH_H

#include <stddef.h>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define TAGI_FLUSH_BITS 0x8040 /* 0x8000 is for results, 0x40 for operands */
static inline size_t tagi_control_word(void) { return _mm_getcsr(); }
static inline void tagi_set_control_word(size_t word) { _mm_setcsr((unsigned)word); }
#elif defined(__aarch64__) && defined(__GNUC__)
#define TAGI_FLUSH_BITS 0x1000000 /* for results and operands */
static inline size_t tagi_control_word(void) {
    size_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
}
static inline void tagi_set_control_word(size_t word) { __asm__ volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
#define TAGI_FLUSH_BITS 0
static inline size_t tagi_control_word(void) { return 0; }
static inline void tagi_set_control_word(size_t word) { (void)word; }
#endif

enum { TAGI_FLUSH_THREADS = 2048 }; /* number of threads of a team that are set; others keep subnormal numbers */

/* Sets this thread's register, and returns its old value, which `tagi_set_control_word` can restore. */
static inline size_t tagi_flush(void) {
    size_t word = tagi_control_word();
    if ((word & TAGI_FLUSH_BITS) != TAGI_FLUSH_BITS) tagi_set_control_word(word | TAGI_FLUSH_BITS);
    return word;
}

/* Sets the registers of the threads of a parallel loop. Writes their old values to `words` (TAGI_FLUSH_THREADS
 * numbers), which `tagi_unflush_threads` can restore. */
static inline void tagi_flush_threads(int threads, size_t *words) {
#if defined(_OPENMP) && TAGI_FLUSH_BITS
    if (threads > 1) {
        size_t first = tagi_control_word();
        for (int k = 0; k < threads && k < TAGI_FLUSH_THREADS; k++) words[k] = first; /* the next team may be larger */
#pragma omp parallel num_threads(threads)
        if (omp_get_thread_num() < TAGI_FLUSH_THREADS) words[omp_get_thread_num()] = tagi_flush();
        tagi_flush();
        return;
    }
#endif
    (void)threads;
    words[0] = tagi_flush();
}

static inline void tagi_unflush_threads(int threads, const size_t *words) {
#if defined(_OPENMP) && TAGI_FLUSH_BITS
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        if (omp_get_thread_num() < TAGI_FLUSH_THREADS) tagi_set_control_word(words[omp_get_thread_num()]);
    }
#endif
    (void)threads;
    tagi_set_control_word(words[0]);
}

#endif
