from libc.stdint cimport uint64_t

cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    PyThreadState* PyThreadState_Get()
    uint64_t PyThreadState_GetID(PyThreadState* state)


cdef inline uint64_t this_thread() noexcept:
    """A unique number of this thread. The system reuses the identifiers of ended threads."""
    return PyThreadState_GetID(PyThreadState_Get())


cdef class OneThread:
    cdef uint64_t user, owner
    cdef unsigned long owner_place
    cdef int depth
    cdef dict displaced
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cpdef int went_forward(self) except -1
    cpdef int goes_on(self) except -1
    cpdef int stepped(self) except -1
