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

enum { BLOCK = 512 };

/* out = the sum over the leaves first to first + leaves of a tree, for n numbers of each place, at most BLOCK. */
static void add_leaves(const float *places, size_t stride, int pairs, int first, int leaves, float *out, size_t n) {
    if (leaves == 1) { /* the first leaves are two ranks each */
        const float *x = places + (size_t)(first < pairs ? 2 * first : first + pairs) * stride;
        const float *y = first < pairs ? x + stride : 0;
        for (size_t i = 0; i < n; i++) out[i] = y ? x[i] + y[i] : x[i];
        return;
    }
    float other[BLOCK];
    add_leaves(places, stride, pairs, first, leaves / 2, out, n);
    add_leaves(places, stride, pairs, first + leaves / 2, leaves / 2, other, n);
    for (size_t i = 0; i < n; i++) out[i] += other[i];
}

/* out = the sum of the places of all ranks: neighbours first, as MPI adds them, so that where ranks run does not matter.
 * A tree has a power of two leaves; where there are more ranks, the first ones are pairs. */
static inline void add_places(const float *places, size_t stride, int ranks, float *out, size_t n) {
    int leaves = 1;
    while (2 * leaves <= ranks) leaves *= 2;
    for (size_t i = 0; i < n; i += BLOCK)
        add_leaves(places + i, stride, ranks - leaves, 0, leaves, out + i, n - i < BLOCK ? n - i : BLOCK);
}

#endif
