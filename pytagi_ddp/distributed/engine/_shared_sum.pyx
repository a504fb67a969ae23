# cython: cdivision=True
"""Sums of short float32 arrays over the ranks of one node, through memory that they share.

Each rank copies its numbers to its slot and marks its arrival. When all ranks have arrived, each of them adds the
numbers of all, in the same order, so that the result has the same bits on every rank.

Two sets of slots are used in turn. A rank that arrives at a sum has finished the previous one. So when all have
arrived, no rank reads the slots of the previous sum, and the next sum may use them.
"""

from cpython.buffer cimport (PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release,
                             PyObject_GetBuffer)
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef extern from "shared_sum.h" nogil:
    ctypedef struct slot "tagi_slot":
        uint64_t count
        uint64_t size
    void arrive "tagi_arrive"(slot* s, uint64_t count, uint64_t size)
    bint has_arrived "tagi_has_arrived"(const slot* s, uint64_t count, int looks)
    void add_places "tagi_add_places"(const float* places, size_t stride, int ranks, float* out, size_t n)

cdef enum:
    TURNS = 2
    LOOKS = 20  # how often `Test` looks for a rank, a third of a microsecond, before it returns False


def shared_bytes(int ranks, size_t floats) -> int:
    """The memory that `ranks` ranks need for sums of at most `floats` numbers, a multiple of 16."""
    return <size_t>TURNS * ranks * (sizeof(slot) + floats * sizeof(float))


def add_rows(const float[:, ::1] rows, float[::1] out):
    """out = the sum of the rows, added in the order in which a `SharedSum` adds the numbers of ranks.

    Args:
        rows: (ranks, n). out: (n,); must not overlap the rows.
    """
    if rows.shape[0] < 1 or rows.shape[1] != out.shape[0]:
        raise ValueError(f"add_rows: {rows.shape[0]} rows of {rows.shape[1]} numbers, a sum of {out.shape[0]}")
    if out.shape[0]:
        with nogil:
            add_places(&rows[0, 0], out.shape[0], rows.shape[0], &out[0], out.shape[0])


cdef class SharedSum:
    """One rank's access to the shared memory; one sum at a time.

    Args:
        memory: writable memory that all ranks share, zeros at first, of `shared_bytes(ranks, floats)` bytes.
        rank, ranks: this rank, from 0, and the number of ranks.
        floats: the largest number of values of a sum.

    Attributes:
        floats: the same.
    """

    cdef readonly Py_ssize_t floats
    cdef int rank, ranks, arrived
    cdef uint64_t count
    cdef slot* slots
    cdef float* places
    cdef Py_buffer memory, values

    def __cinit__(self, memory, int rank, int ranks, Py_ssize_t floats):
        PyObject_GetBuffer(memory, &self.memory, PyBUF_WRITABLE)
        fits = 0 <= rank < ranks and floats > 0 and floats % 16 == 0
        if not (fits and self.memory.len >= shared_bytes(ranks, floats)):
            raise ValueError(f"SharedSum: rank {rank} of {ranks}, {floats} numbers, {self.memory.len} bytes")
        self.slots = <slot*>self.memory.buf
        self.places = <float*>(self.slots + <size_t>TURNS * ranks)
        self.rank, self.ranks, self.floats = rank, ranks, floats

    def __dealloc__(self):
        PyBuffer_Release(&self.values)
        PyBuffer_Release(&self.memory)

    def start(self, values):
        """Starts a sum. The sum of all ranks replaces `values` when `Test` returns True. Returns itself.

        Args:
            values: C-contiguous, writable float32 array of 1 to `floats` numbers.
        """
        PyObject_GetBuffer(values, &self.values, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)
        if self.values.format != b"f" or not 0 < self.values.len <= self.floats * <Py_ssize_t>sizeof(float):
            PyBuffer_Release(&self.values)
            raise ValueError(f"SharedSum takes 1 to {self.floats} float32 numbers")
        self.count += 1
        self.arrived = 0
        memcpy(self.place(self.rank), self.values.buf, self.values.len)
        arrive(self.slot_of(self.rank), self.count, self.values.len // sizeof(float))
        return self

    def Test(self) -> bool:
        """Whether all ranks have arrived; then the sum is in the array of `start`. It waits for a moment at most.

        Raises:
            ValueError: the arrays of the ranks have different lengths. Every rank raises it.
            RuntimeError: no sum is under way; one that raises is over, too.
        """
        if <void*>self.values.obj == NULL:
            raise RuntimeError("SharedSum: no sum is under way")
        cdef size_t size = self.values.len // sizeof(float)
        cdef float* out = <float*>self.values.buf
        cdef int rank
        with nogil:
            while self.arrived < self.ranks and has_arrived(self.slot_of(self.arrived), self.count, LOOKS):
                self.arrived += 1
        if self.arrived < self.ranks:
            return False
        try:
            for rank in range(self.ranks):
                if self.slot_of(rank).size != size:
                    raise ValueError(f"rank {rank} adds {self.slot_of(rank).size} numbers, rank {self.rank} {size}")
            with nogil:
                add_places(self.place(0), self.floats, self.ranks, out, size)
        finally:
            PyBuffer_Release(&self.values)
        return True

    cdef slot* slot_of(self, int rank) noexcept nogil:
        """The memory in which a rank marks its arrival at the current sum."""
        return self.slots + self.count % TURNS * self.ranks + rank

    cdef float* place(self, int rank) noexcept nogil:
        """The memory of a rank's numbers for the current sum."""
        return self.places + (self.count % TURNS * self.ranks + rank) * self.floats
