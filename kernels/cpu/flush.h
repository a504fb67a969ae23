/* Subnormal numbers as zero, operands and results, while kernels compute: a network that learns makes more and more of
 * them (deltas of units that are off), and processors are many times slower on them. In a user's own code they count:
 * so the control register of each thread is set where a kernel begins, and set back where it ends.
 *
 * Threads of a pool take it over from the thread that makes them, not from the one that gives them work. */
#ifndef PYTAGI_DDP_FLUSH_H
#define PYTAGI_DDP_FLUSH_H

#include <stddef.h>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define FLUSH_BITS 0x8040 /* results, operands */
static inline size_t control_word(void) { return _mm_getcsr(); }
static inline void set_control_word(size_t word) { _mm_setcsr((unsigned)word); }
#elif defined(__aarch64__) && defined(__GNUC__)
#define FLUSH_BITS ((size_t)1 << 24) /* both */
static inline size_t control_word(void) {
    size_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
}
static inline void set_control_word(size_t word) { __asm__ volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
#define FLUSH_BITS 0
static inline size_t control_word(void) { return 0; }
static inline void set_control_word(size_t word) { (void)word; }
#endif

enum { FLUSH_THREADS = 2048 }; /* at most; threads above keep subnormal numbers */

/* This thread, until `set_control_word` with what it returns. */
static inline size_t flush(void) {
    size_t word = control_word();
    if ((word & FLUSH_BITS) != FLUSH_BITS) set_control_word(word | FLUSH_BITS);
    return word;
}

/* The threads that a loop over so many will run on, until `unflush_threads`; each leaves its word in `words`. */
static inline void flush_threads(int threads, size_t *words) {
#if defined(_OPENMP) && FLUSH_BITS
    if (threads > 1) {
        size_t first = control_word();
        for (int k = 0; k < threads && k < FLUSH_THREADS; k++) words[k] = first; /* teams may differ in size */
#pragma omp parallel num_threads(threads)
        if (omp_get_thread_num() < FLUSH_THREADS) words[omp_get_thread_num()] = flush();
        return;
    }
#endif
    (void)threads;
    words[0] = flush();
}

static inline void unflush_threads(int threads, const size_t *words) {
#if defined(_OPENMP) && FLUSH_BITS
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        if (omp_get_thread_num() < FLUSH_THREADS) set_control_word(words[omp_get_thread_num()]);
        return;
    }
#endif
    (void)threads;
    set_control_word(words[0]);
}

#endif
