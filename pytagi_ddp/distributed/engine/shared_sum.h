/* Synchronisation of ranks in shared memory, and the order of their sums, for _shared_sum.pyx.
 *
 * A rank writes its numbers, and then a count. The store of the count is a release and its load an acquire, so a rank
 * that reads the count can also read the numbers. */
#ifndef PYTAGI_DDP_SHARED_SUM_H
#define PYTAGI_DDP_SHARED_SUM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) || defined(__i386__)
#define TAGI_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define TAGI_PAUSE() __asm__ volatile("yield")
#else
#define TAGI_PAUSE() ((void)0)
#endif

/* The state of a rank, on a separate cache line, so that ranks do not slow each other down. */
typedef struct {
    uint64_t count; /* the number of the sum at which the rank has arrived; written last */
    uint64_t size;  /* number of float32 that it adds */
    char rest[48];
} tagi_slot;

/* Marks that this rank's numbers for sum `count` are written. */
static inline void tagi_arrive(tagi_slot *s, uint64_t count, uint64_t size) {
    s->size = size;
    __atomic_store_n(&s->count, count, __ATOMIC_RELEASE);
}

/* Whether the rank of this slot has arrived at sum `count`; looks `looks` times. */
static inline int tagi_has_arrived(const tagi_slot *s, uint64_t count, int looks) {
    while (__atomic_load_n(&s->count, __ATOMIC_ACQUIRE) != count) {
        if (--looks <= 0) return 0;
        TAGI_PAUSE();
    }
    return 1;
}

enum { TAGI_BLOCK = 512 };

/* out (n, at most BLOCK) = the sum of leaves first:first + leaves of a tree, see `tagi_add_places`. */
static void tagi_add_leaves(const float *places, size_t stride, int pairs, int first, int leaves, float *out,
                            size_t n) {
    if (leaves == 1) { /* one rank, or, of the first leaves, two */
        const float *x = places + (size_t)(first < pairs ? 2 * first : first + pairs) * stride;
        const float *y = first < pairs ? x + stride : 0;
        for (size_t i = 0; i < n; i++) out[i] = y ? x[i] + y[i] : x[i];
        return;
    }
    float other[TAGI_BLOCK];
    tagi_add_leaves(places, stride, pairs, first, leaves / 2, out, n);
    tagi_add_leaves(places, stride, pairs, first + leaves / 2, leaves / 2, other, n);
    for (size_t i = 0; i < n; i++) out[i] += other[i];
}

/* out (n) = the sum of the numbers of all ranks, whose places are `stride` apart. They are added in a binary tree,
 * neighbours first, as in MPI, so that results do not depend on which ranks share a node. The tree has a power of two
 * leaves; if there are more ranks, the first leaves are pairs of ranks. */
static inline void tagi_add_places(const float *places, size_t stride, int ranks, float *out, size_t n) {
    int leaves = 1;
    while (2 * leaves <= ranks) leaves *= 2;
    for (size_t i = 0; i < n; i += TAGI_BLOCK)
        tagi_add_leaves(places + i, stride, ranks - leaves, 0, leaves, out + i,
                        n - i < TAGI_BLOCK ? n - i : TAGI_BLOCK);
}

#endif
