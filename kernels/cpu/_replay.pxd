from libc.stdint cimport intptr_t

# A kernel that can be replayed: a block of words (addresses, sizes, numbers), and scratch memory of the calling thread.
ctypedef void (*Entry)(const intptr_t* words, float* scratch) noexcept nogil

cdef int issue(Entry entry, const intptr_t* words, int count, Py_ssize_t scratch, tuple arrays) except -1
