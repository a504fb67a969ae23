from libc.stdint cimport intptr_t

# A kernel that can be replayed. It reads its arguments (addresses, sizes, numbers) from a block of machine words, and
# may use scratch memory of the calling thread.
ctypedef void (*Entry)(const intptr_t* words, float* scratch) noexcept nogil

# The entry of a loop that Numba has compiled, for one of several threads (entries.py).
ctypedef void (*LoopEntry)(const intptr_t* words, intptr_t thread, intptr_t threads) noexcept nogil

cdef enum:
    LARGE = 262144  # from this number on, several threads copy, and memory is kept

cdef void copy_floats(const float* source, float* out, Py_ssize_t n, int threads) noexcept nogil

cdef class Plan:
    cdef list steps  # each is a _Segment, or (Python function, arguments)
    cdef readonly int calls
    cdef void add(self, Entry entry, const intptr_t* words, int count, Py_ssize_t scratch, int threads, object arrays)
    cpdef int run(self) except -1

cdef int issue(Entry entry, const intptr_t* words, int count, Py_ssize_t scratch, int threads, tuple arrays) except -1
