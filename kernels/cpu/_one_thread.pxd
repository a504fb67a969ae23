cdef class OneThread:
    cdef unsigned long long user, owner
    cdef int depth
    cdef set displaced
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cpdef int went_forward(self) except -1
    cpdef int goes_on(self) except -1
    cpdef int stepped(self) except -1
