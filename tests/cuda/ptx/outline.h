// Runs the outline of a kernel, see outline.py: threads one after the other, as none waits for another.

typedef struct {
    uint64_t issued[2];    // bytes of all loads, of all stores
    uint64_t of_blocks[2]; // each word once for each block that loads it, that stores it
    uint64_t of_launch[2]; // each word once
    uint64_t serial;       // of the last block: tags below that of the first are of earlier launches
    int64_t beside;        // accesses beside the arrays
} Totals;

static Totals *totals;
static uint64_t first_block;
static Thread the_thread;

// Tickets of this launch, and shared words that hold them: thread 0 takes and stores them before the others read.
static struct { uint64_t counter; uint32_t taken; } counters[4096];
static uint32_t shared_words[SHARED_ARRAYS + 1];

static inline uint32_t next_ticket(uint64_t address, uint32_t last) {
    totals->issued[0] += 4;
    uint32_t k = 0;
    while (counters[k].counter && counters[k].counter != address && k < 4095) k++;
    uint32_t taken = counters[k].taken;
    counters[k].counter = address, counters[k].taken = taken >= last ? 0 : taken + 1;
    return taken;
}

static inline uint32_t *shared_word(uint32_t address) {  // of an array that is one word
    uint32_t k = (address >> SHARED_SHIFT) - 1;
    return &shared_words[k < SHARED_ARRAYS ? k : SHARED_ARRAYS];
}

static inline char *touch(uint64_t address, int size, int writes) {
    uint64_t k = (address >> ARRAY_SHIFT) - 1;
    if (__builtin_expect(k >= (uint64_t)L->arguments, 0)) return totals->beside++, (char *)nowhere;
    Array *a = &L->arrays[k];
    int64_t offset = address - a->start;
    if (__builtin_expect(offset < 0 || offset + size > a->size, 0)) return totals->beside++, (char *)nowhere;
    totals->issued[writes] += size;
    for (int64_t w = offset >> 2; w < (offset + size + 3) >> 2; w++) {
        uint64_t *tag = writes ? &a->tags[w].written : &a->tags[w].read;
        if (*tag == block_serial) continue;
        totals->of_blocks[writes] += 4;
        if (*tag < first_block) totals->of_launch[writes] += 4;
        *tag = block_serial;
    }
    return a->data + offset;
}

void ptx_outline(Launch *launch, Totals *out) {
    L = launch, T = &the_thread, totals = out;
    memset(counters, 0, sizeof counters);
    uint32_t *b = L->block, *g = L->grid;
    block_serial = out->serial, first_block = out->serial + 1;
    for (ctaid[2] = 0; ctaid[2] < g[2]; ctaid[2]++)
        for (ctaid[1] = 0; ctaid[1] < g[1]; ctaid[1]++)
            for (ctaid[0] = 0; ctaid[0] < g[0]; ctaid[0]++) {
                block_serial++;
                for (T->tid[2] = 0; T->tid[2] < b[2]; T->tid[2]++)
                    for (T->tid[1] = 0; T->tid[1] < b[1]; T->tid[1]++)
                        for (T->tid[0] = 0; T->tid[0] < b[0]; T->tid[0]++) one_thread();
            }
    out->serial = block_serial;
}
