"""Notices when several threads use one network at a time. Compiled, since a step of 3 microseconds asks three times.

Python's lock makes each call here indivisible; kernels run without it.
"""

from cpython.pythread cimport PyThread_get_thread_ident


cdef class OneThread:
    """Of one network: `with` it, a thread works alone on it. Calls within calls, from hooks, are of the same thread.

    Two threads that take turns between forward and step do not meet, and yet learn nonsense, as a network has one
    output, one set of deltas. So it is noted whose step is under way: whoever comes back to a step that was displaced
    by another thread's forward pass gets an error. Threads may well hand a network on, and one may finish what another
    has begun.
    """

    def __cinit__(self):
        self.displaced = {}  # by the system's identifiers, so that there are no more than threads at a time

    cdef int enter(self) except -1:
        cdef uint64_t me = this_thread()
        if self.depth == 0:
            self.user = me
        elif self.user != me:
            raise RuntimeError(
                "this network is being used by another thread: one network, one thread at a time. Give each thread a "
                "network of its own (copy.deepcopy), or put a lock around whole steps"
            )
        self.depth += 1
        return 0

    cdef void leave(self) noexcept:
        self.depth -= 1

    def __enter__(self):
        self.enter()

    def __exit__(self, *exc_info):
        self.leave()

    cpdef int went_forward(self) except -1:
        """This thread begins a training step, or goes on with its own."""
        if self.owner != this_thread():
            if self.owner:
                self.displaced[self.owner_place] = self.owner
            self.owner, self.owner_place = this_thread(), PyThread_get_thread_ident()
        if self.displaced:
            self.displaced.pop(self.owner_place, None)
        return 0

    cpdef int goes_on(self) except -1:
        """Before a backward pass or a step.

        Raises:
            RuntimeError: another thread is at work, or went forward since this one did.
        """
        self.enter()
        self.leave()
        if self.displaced and self.displaced.get(PyThread_get_thread_ident()) == this_thread():
            raise RuntimeError(
                "another thread has run forward() of this network since this thread did, and its outputs and deltas "
                "are gone: one network, one thread at a time. Give each thread a network of its own (copy.deepcopy), "
                "or put a lock around whole steps"
            )
        return 0

    cpdef int stepped(self) except -1:
        """A step is complete."""
        self.owner = 0
        return 0
