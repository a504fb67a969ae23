/* The meeting of ranks in shared memory: who has come, in what order memory is seen, and how a rank waits. */
#ifndef PYTAGI_DDP_SHARED_SUM_H
#define PYTAGI_DDP_SHARED_SUM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

/* One cache line for each rank in each of two turns. */
typedef struct {
    uint64_t count; /* numbers the sum that the rank has come to; written after everything that belongs to it */
    uint64_t size;  /* floats that it has brought */
    char rest[48];
} seat;

static inline void come(seat *s, uint64_t count, uint64_t size) {
    s->size = size;
    __atomic_store_n(&s->count, count, __ATOMIC_RELEASE);
}

/* Whether the rank has come; looks so many times. */
static inline int has_come(const seat *s, uint64_t count, int looks) {
    while (__atomic_load_n(&s->count, __ATOMIC_ACQUIRE) != count) {
        if (--looks <= 0) return 0;
        PAUSE();
    }
    return 1;
}

/* sum += x */
static inline void add(const float *restrict x, float *restrict sum, size_t n) {
    for (size_t i = 0; i < n; i++) sum[i] += x[i];
}

#endif
