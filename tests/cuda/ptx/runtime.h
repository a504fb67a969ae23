// Runs a translated kernel. A CUDA thread is a coroutine with a stack of its own; the blocks of a grid run one after the
// other. A thread runs until a barrier or an instruction of its whole warp, and all memory that it touches is checked:
//
// * Device memory: argument k begins at address (k + 1) << ARRAY_SHIFT, so that an index beside one array never falls
//   into another. Each word has a flag, whether it was ever written, and two tags for races.
// * Shared memory: array k begins at (k + 1) << SHARED_SHIFT. Nothing of it is written when a block begins.
// * Races: a tag says which thread last wrote (or read) the word, and between which two barriers. Two threads meet there
//   if they are of one block and between the same barriers, or of different blocks of one launch. But a block that takes
//   a ticket comes after all that took an earlier one of the same counter, with what they did before a barrier.
#include <float.h>
#include <xmmintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARGUMENTS 64       // these four as in machine.py
#define THREADS 1024
#define ARRAY_SHIFT 40
#define PROBLEMS 64
#define STACK (1u << 16)
#define SHARED_SHIFT 20
#define SHARED_WINDOW (0xF00ull << ARRAY_SHIFT)  // where shared memory lies among all addresses
#define WARP 32

typedef struct { uint64_t written, read; } Tag;
typedef struct { char *data; int64_t size; uint64_t start; uint8_t *written; Tag *tags; } Array;
typedef struct { int32_t kind, line, block[3], thread, other, argument; int64_t offset; } Problem;
typedef struct {
    uint32_t grid[3], block[3];
    int32_t arguments, order;  // order: FORWARDS, BACKWARDS or SHUFFLED
    uint64_t parameters[ARGUMENTS];
    Array arrays[ARGUMENTS];
    uint64_t serial;           // of this launch, among all
    uint64_t *counts;          // runs of each basic block
    uint8_t *barriers;         // of each line: 1: it is a barrier that ran, 2: one that was needed
    int32_t problems;
    Problem problem[PROBLEMS];
} Launch;

enum { FORWARDS, BACKWARDS, SHUFFLED };
enum { READY, AT_BARRIER, AT_WARP, GONE };

typedef struct { uint32_t factors[6]; float sums[4]; } Operands;
typedef struct { uint32_t target; int32_t line, group, size, taken; const char *source; } Copy;
typedef struct {
    void *stack;
    int state, line;           // where it waits
    uint32_t tid[3], number, interval;  // interval: between which barriers
    Operands *operands;
    Copy *copies;
    int count, capacity, group;  // of copies that are under way; the group that is open
} Thread;

static Launch *L;
static Thread threads[THREADS], *T;  // T: the one that runs
static void *scheduler;
static char *stacks;
static uint32_t ctaid[3], block_number, block_size;
static uint64_t block_serial;  // of the block, among all of this kernel
static uint64_t nowhere[2];    // where accesses beside all memory go

static inline float as_float(uint32_t x) { float f; memcpy(&f, &x, 4); return f; }
static inline uint32_t as_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }

// ---- problems: the first of its kind at each instruction of a launch ----------------------------------------------
static __attribute__((noinline, cold)) void problem(int kind, int line, int other, int argument, int64_t offset) {
    for (int i = 0; i < L->problems; i++)
        if (L->problem[i].kind == kind && L->problem[i].line == line) return;
    if (L->problems == PROBLEMS) return;
    Problem *p = &L->problem[L->problems++];
    *p = (Problem){kind, line, {ctaid[0], ctaid[1], ctaid[2]}, T->number, other, argument, offset};
}

// ---- coroutines ----------------------------------------------------------------------------------------------------
extern void ptx_switch(void **save, void *load) __attribute__((visibility("hidden")));
__asm__(".text\n.type ptx_switch,@function\nptx_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static __attribute__((noinline)) void pause_as(int state, int line) {
    Thread *t = T;
    t->state = state;
    t->line = line;
    ptx_switch(&t->stack, scheduler);
}

static void one_thread(void);  // the kernel

static __attribute__((noinline)) void thread_main(void) {
    one_thread();
    pause_as(GONE, T->line);
    abort();
}

static void begin_thread(uint32_t i) {
    Thread *t = &threads[i];
    uint32_t *b = L->block;
    t->tid[0] = i % b[0], t->tid[1] = i / b[0] % b[1], t->tid[2] = i / b[0] / b[1];
    t->number = i, t->interval = 0, t->state = READY, t->count = 0, t->group = 0;
    char *top = stacks + (size_t)(i + 1) * STACK - 64 - (i * 7 % 32) * 128;  // not all in one set of the cache
    void **stack = (void **)((uintptr_t)top & ~63ull);
    *--stack = 0;  // for the alignment that a call leaves behind
    *--stack = (void *)thread_main;
    for (int k = 0; k < 6; k++) *--stack = 0;
    t->stack = stack;
}

static inline void barrier(int line) { pause_as(AT_BARRIER, line); }
static inline void leave(int line) { T->line = line; }

// ---- races ---------------------------------------------------------------------------------------------------------
// tag: owner << 25 | interval << 11 | thread; owner: the block (shared memory), or launch << 20 | block.
#define SEVERAL 0x7FFu          // threads have read
#define SEVERAL_BLOCKS 0xFFFFFu
#define TICKETS 4               // counters that a block comes to, at most
#define OWNER(tag) ((tag) >> 25)
#define INTERVALS 0x4000u
#define INTERVAL(tag) ((tag) >> 11 & (INTERVALS - 1))
#define READER(tag) ((int)((tag) & 0x7FF))
#define NOW(owner) ((owner) << 25 | (uint64_t)(T->interval & (INTERVALS - 1)) << 11 | T->number)

typedef struct { uint64_t counter; uint32_t interval, thread; int last; } Ticket;
static Ticket (*tickets)[TICKETS];  // of each block of this launch; NULL before the first
static uint32_t ticket_blocks;

static int comes_after(uint64_t tag) {  // of another block: whether tickets put this thread behind it
    uint32_t block = OWNER(tag) & SEVERAL_BLOCKS;
    for (int i = 0; i < TICKETS && tickets; i++) {
        Ticket *mine = &tickets[block_number][i];
        if (!mine->counter || (T->interval <= mine->interval && T->number != mine->thread)) continue;
        if (block == SEVERAL_BLOCKS && mine->last) return 1;
        for (int j = 0; j < TICKETS && block < ticket_blocks; j++) {
            Ticket *other = &tickets[block][j];
            uint32_t own = READER(tag) == (int)other->thread;  // needs no barrier
            if (other->counter == mine->counter && INTERVAL(tag) < other->interval + own) return 1;
        }
    }
    return 0;
}

static inline int meets(uint64_t tag, uint64_t owner, int in_launch) {
    if (OWNER(tag) != owner) return in_launch && OWNER(tag) >> 20 == owner >> 20 && !comes_after(tag);
    return INTERVAL(tag) == (T->interval & (INTERVALS - 1)) && READER(tag) != (int)T->number;
}

// ---- barriers that are needed: those between two accesses that would race without them --------------------------------
static uint32_t interval_line[INTERVALS], earliest[INTERVALS];  // the barrier behind an interval; with what it may meet

static inline void kept_apart(uint64_t tag, uint64_t owner) {
    uint32_t now = T->interval & (INTERVALS - 1);
    if (OWNER(tag) == owner && INTERVAL(tag) < earliest[now] && READER(tag) != (int)T->number) earliest[now] = INTERVAL(tag);
}

static void note_barriers(uint32_t intervals) {  // of a block, at its end
    uint32_t from = intervals;
    for (uint32_t i = intervals; i > 0; i--) {
        if (earliest[i] < from) from = earliest[i];
        L->barriers[interval_line[i - 1]] |= from < i ? 3 : 1;
    }
}

static inline void note_read(Tag *tag, uint64_t owner, int in_launch, int line, int argument, int64_t offset) {
    kept_apart(tag->written, owner);
    if (__builtin_expect(meets(tag->written, owner, in_launch), 0))
        problem(P_WRITE_READ, line, READER(tag->written), argument, offset);
    if (in_launch && OWNER(tag->read) != owner && OWNER(tag->read) >> 20 == owner >> 20)
        tag->read |= (uint64_t)SEVERAL_BLOCKS << 25;
    else if (OWNER(tag->read) == owner && INTERVAL(tag->read) == (T->interval & (INTERVALS - 1))) {
        if (READER(tag->read) != (int)T->number) tag->read |= SEVERAL;
    } else
        tag->read = NOW(owner);
}

static inline void note_write(Tag *tag, uint64_t owner, int in_launch, int line, int argument, int64_t offset) {
    kept_apart(tag->written, owner);
    kept_apart(tag->read, owner);
    if (__builtin_expect(meets(tag->written, owner, in_launch), 0))
        problem(P_WRITE_WRITE, line, READER(tag->written), argument, offset);
    if (__builtin_expect(meets(tag->read, owner, in_launch), 0))
        problem(P_READ_WRITE, line, READER(tag->read), argument, offset);
    tag->written = NOW(owner);
}

// ---- device memory -------------------------------------------------------------------------------------------------
static __attribute__((noinline, cold)) void *beside(int line, int argument, int64_t offset) {
    problem(P_BOUNDS, line, -1, argument, offset);
    memset(nowhere, 0xFF, sizeof nowhere);
    return nowhere;
}

static inline void *global_memory(uint64_t address, int size, int line, int writes) {
    uint64_t k = (address >> ARRAY_SHIFT) - 1;
    if (__builtin_expect(k >= (uint64_t)L->arguments, 0)) return beside(line, (int)k, (int64_t)address);
    Array *a = &L->arrays[k];
    int64_t offset = address - a->start;
    if (__builtin_expect(offset < 0 || offset + size > a->size, 0)) return beside(line, (int)k, offset);
    if (__builtin_expect(address & (size - 1), 0)) problem(P_MISALIGNED, line, -1, k, offset);
    uint64_t owner = (L->serial & 0x7FFFF) << 20 | block_number % SEVERAL_BLOCKS;
    for (int64_t w = offset >> 2; w < (offset + size + 3) >> 2; w++) {
        if (writes) {
            note_write(&a->tags[w], owner, 1, line, k, 4 * w);
            a->written[w] = 1;
        } else {
            note_read(&a->tags[w], owner, 1, line, k, 4 * w);
            if (__builtin_expect(!a->written[w], 0)) problem(P_UNWRITTEN, line, -1, k, 4 * w);
        }
    }
    return a->data + offset;
}

static uint32_t take_ticket(uint64_t address, uint32_t last, int line) {  // counts from 0 to last, and begins anew
    uint64_t k = (address >> ARRAY_SHIFT) - 1;
    if (k >= (uint64_t)L->arguments || (int64_t)(address - L->arrays[k].start) + 4 > L->arrays[k].size || address & 3) {
        beside(line, (int)k, (int64_t)address);
        return 0;
    }
    int64_t offset = address - L->arrays[k].start;
    if (!L->arrays[k].written[offset >> 2]) problem(P_UNWRITTEN, line, -1, k, offset);
    uint32_t *counter = (uint32_t *)(L->arrays[k].data + offset), taken = *counter;
    *counter = taken >= last ? 0 : taken + 1;
    if (!tickets) tickets = calloc(ticket_blocks = L->grid[0] * L->grid[1] * L->grid[2], sizeof *tickets);
    for (int i = 0; i < TICKETS; i++) {
        Ticket *mine = &tickets[block_number][i];
        if (mine->counter && mine->counter != address) continue;
        *mine = (Ticket){address, T->interval, T->number, taken >= last};
        break;
    }
    return taken;
}

// ---- shared memory -------------------------------------------------------------------------------------------------
typedef struct { char *data; Tag *tags; uint16_t *under_way; } Shared;  // under_way: the copying thread + 1
static Shared shared[SHARED_ARRAYS + 1];

static inline void *shared_memory(uint32_t address, int size, int line, int writes) {
    uint32_t k = (address >> SHARED_SHIFT) - 1, offset = address & ((1u << SHARED_SHIFT) - 1);
    if (__builtin_expect(k >= SHARED_ARRAYS || offset + size > shared_sizes[k], 0)) return beside(line, (int)k, offset);
    if (__builtin_expect(offset & (size - 1), 0)) problem(P_MISALIGNED, line, -1, k, offset);
    Shared *s = &shared[k];
    for (uint32_t w = offset >> 2; w < (offset + size + 3) >> 2; w++) {
        if (__builtin_expect(s->under_way[w], 0)) problem(P_UNDER_WAY, line, s->under_way[w] - 1, k, 4 * w);
        if (writes) note_write(&s->tags[w], block_serial, 0, line, k, 4 * w);
        else {
            if (__builtin_expect(OWNER(s->tags[w].written) != block_serial, 0)) problem(P_UNWRITTEN, line, -1, k, 4 * w);
            note_read(&s->tags[w], block_serial, 0, line, k, 4 * w);
        }
    }
    return s->data + offset;
}

// ---- asynchronous copies: the target is being written from the start on, and has its value after the wait -----------
static void copy_start(uint32_t target, uint64_t source, int size, int taken, int line) {
    Thread *t = T;
    if (t->count == t->capacity) {
        t->capacity = 2 * t->capacity + 64;
        t->copies = realloc(t->copies, t->capacity * sizeof(Copy));
    }
    if (source & (size - 1)) problem(P_MISALIGNED, line, -1, (int)(source >> ARRAY_SHIFT) - 1, 0);
    const char *from = taken ? global_memory(source, taken, line, 0) : 0;
    char *to = shared_memory(target, size, line, 1);
    if (to == (char *)nowhere) return;
    t->copies[t->count++] = (Copy){target, line, t->group, size, taken, from};
    uint32_t k = (target >> SHARED_SHIFT) - 1, offset = target & ((1u << SHARED_SHIFT) - 1);
    for (uint32_t w = offset >> 2; w < (offset + size) >> 2; w++) shared[k].under_way[w] = t->number + 1;
    memset(to, 0xFF, size);
}

static void copy_end(Copy *c) {
    uint32_t k = (c->target >> SHARED_SHIFT) - 1, offset = c->target & ((1u << SHARED_SHIFT) - 1);
    for (uint32_t w = offset >> 2; w < (offset + c->size) >> 2; w++) shared[k].under_way[w] = 0;
    char *to = shared_memory(c->target, c->size, c->line, 1);
    memset(to, 0, c->size);
    if (c->taken) memcpy(to, c->source, c->taken);
}

static void copies_close(void) { T->group++; }

static void copies_wait(int groups) {  // until all but the last of the closed groups are there
    Thread *t = T;
    int kept = 0;
    for (int i = 0; i < t->count; i++) {
        if (t->copies[i].group < t->group - groups) copy_end(&t->copies[i]);
        else t->copies[kept++] = t->copies[i];
    }
    t->count = kept;
}

// ---- the tensor core: products exact, their sum in double, rounded once ---------------------------------------------
static inline void multiply(Operands *w, int line) {
    T->operands = w;
    pause_as(AT_WARP, line);
}

static inline float tf32(uint32_t x) { return as_float(x & 0xFFFFE000u); }

static void warp_multiply(Thread *lanes) {
    float a[16][8], b[8][8];
    for (int n = 0; n < WARP; n++) {
        uint32_t *x = lanes[n].operands->factors;
        int g = n >> 2, t = n & 3;
        a[g][t] = tf32(x[0]), a[g + 8][t] = tf32(x[1]), a[g][t + 4] = tf32(x[2]), a[g + 8][t + 4] = tf32(x[3]);
        b[t][g] = tf32(x[4]), b[t + 4][g] = tf32(x[5]);
    }
    double d[16][8] = {{0}};
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 8; k++)
            for (int j = 0; j < 8; j++) d[i][j] += (double)a[i][k] * b[k][j];
    for (int n = 0; n < WARP; n++) {
        float *sums = lanes[n].operands->sums;
        for (int e = 0; e < 4; e++) sums[e] = (float)(d[(n >> 2) + e / 2 * 8][2 * (n & 3) + e % 2] + (double)sums[e]);
    }
}

// ---- a block: warp after warp, each as far as it comes, until all threads are gone -----------------------------------
static uint32_t random_state;
static uint32_t random_number(void) {
    random_state ^= random_state << 13, random_state ^= random_state >> 17, random_state ^= random_state << 5;
    return random_state;
}

static void run_warp(uint32_t first, uint32_t count) {
    for (;;) {
        uint32_t waiting = 0, together = 1;
        for (uint32_t j = 0; j < count; j++) {
            Thread *t = T = &threads[first + (L->order == BACKWARDS ? count - 1 - j : j)];
            if (t->state == READY) ptx_switch(&scheduler, t->stack);
            waiting += t->state == AT_WARP;
        }
        if (!waiting) return;
        for (uint32_t j = 0; j < count; j++) together &= threads[first + j].line == threads[first].line;
        if (waiting == WARP && together) warp_multiply(&threads[first]);
        for (uint32_t j = 0; j < count; j++) {
            Thread *t = T = &threads[first + j];
            if (t->state != AT_WARP) continue;
            if (waiting < WARP || !together) problem(P_WARP_APART, t->line, -1, -1, waiting);
            t->state = READY;
        }
    }
}

static uint32_t pass_barrier(uint32_t gone) {  // the interval that begins
    uint32_t interval = 0;
    for (uint32_t i = 0; i < block_size; i++) {
        Thread *t = T = &threads[i], *first = &threads[i / WARP * WARP];
        if (t->state != AT_BARRIER) continue;
        if (gone) problem(P_BARRIER_LEFT, t->line, -1, -1, gone);
        if (first->line != t->line) problem(P_BARRIER_APART, t->line, first->number, -1, first->line);
        interval_line[t->interval & (INTERVALS - 1)] = t->line;
        interval = ++t->interval & (INTERVALS - 1);
        t->state = READY;
    }
    earliest[interval] = interval;
    return interval;
}

static void shuffle(uint16_t *warps, uint32_t count) {
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t j = random_number() % (i + 1);
        uint16_t w = warps[i];
        warps[i] = warps[j], warps[j] = w;
    }
}

static void run_block(uint16_t *warps, uint32_t count) {
    uint32_t gone = 0, intervals = 0;
    block_serial++;
    for (int k = 0; k < SHARED_ARRAYS; k++) memset(shared[k].data, 0xFF, shared_sizes[k]);
    for (uint32_t i = 0; i < block_size; i++) begin_thread(i);
    while (gone < block_size) {
        if (L->order == SHUFFLED) shuffle(warps, count);
        for (uint32_t k = 0; k < count; k++) {
            uint32_t first = warps[k] * WARP;
            run_warp(first, block_size - first < WARP ? block_size - first : WARP);
        }
        gone = 0;
        for (uint32_t i = 0; i < block_size; i++) gone += threads[i].state == GONE;
        if (gone < block_size) intervals = pass_barrier(gone);
    }
    note_barriers(intervals);
    for (uint32_t i = 0; i < block_size; i++) {
        T = &threads[i];
        for (int c = 0; c < T->count; c++) {
            problem(P_NOT_WAITED, T->copies[c].line, -1, -1, 0);
            copy_end(&T->copies[c]);
        }
    }
}

static int prepare(void) {
    size_t size = (size_t)THREADS * STACK;
    stacks = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int k = 0; k < SHARED_ARRAYS; k++) {
        size_t words = shared_sizes[k] / 4 + 4;
        shared[k] = (Shared){aligned_alloc(64, (4 * words + 63) / 64 * 64), calloc(words, sizeof(Tag)), calloc(words, 2)};
    }
    return stacks != MAP_FAILED;
}

int ptx_launch(Launch *launch) {
    L = launch;
    block_size = L->block[0] * L->block[1] * L->block[2];
    if (block_size > THREADS || (!stacks && !prepare())) return 1;
    random_state = (uint32_t)L->serial * 2654435761u + 12345;
    free(tickets), tickets = 0;
    uint16_t warps[THREADS / WARP];
    uint32_t count = (block_size + WARP - 1) / WARP, blocks = L->grid[0] * L->grid[1] * L->grid[2];
    for (uint32_t i = 0; i < count; i++) warps[i] = L->order == BACKWARDS ? count - 1 - i : i;
    for (uint32_t n = 0; n < blocks; n++) {
        block_number = L->order == BACKWARDS ? blocks - 1 - n : n;
        ctaid[0] = block_number % L->grid[0];
        ctaid[1] = block_number / L->grid[0] % L->grid[1];
        ctaid[2] = block_number / L->grid[0] / L->grid[1];
        run_block(warps, count);
    }
    return 0;
}

// ---- arithmetic that C has no word for --------------------------------------------------------------------------------
static inline float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }
static inline float saturated(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }  // 0 for NaN
static inline int32_t truncated(float x) {                                    // 0 for NaN
    return x != x ? 0 : x <= -0x1p31f ? INT32_MIN : x >= 0x1p31f ? INT32_MAX : (int32_t)x;
}
static inline float smaller(float a, float b) {  // the operand that is a number, and -0 below 0
    return a != a ? b : b != b ? a : a == b ? (signbit(a) ? a : b) : a < b ? a : b;
}
static inline float larger(float a, float b) { return a != a ? b : b != b ? a : a == b ? (signbit(a) ? b : a) : a > b ? a : b; }

enum { DOWN = 1, TOWARDS_ZERO = 3 };  // as in MXCSR
static __attribute__((noinline)) float directed_fma(float a, float b, float c, uint32_t mode) {
    uint32_t before = _mm_getcsr();
    float r;
    _mm_setcsr((before & ~0x6000u) | mode << 13);
    __asm__ volatile("vmovss %1,%0\n\tvmovss %2,%%xmm1\n\tvfmadd213ss %3,%%xmm1,%0"
                     : "=&x"(r) : "m"(a), "m"(b), "m"(c) : "xmm1");
    _mm_setcsr(before);
    return r;
}
