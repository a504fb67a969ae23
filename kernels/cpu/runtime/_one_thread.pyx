"""Detects that several threads use one network at a time. kernels/one_thread.py gives each network a `OneThread`.

It is compiled because a step of 3 microseconds calls it three times. Each call runs under the interpreter's lock, so
that no other thread interrupts it; kernels run without that lock.
"""

from cpython.pythread cimport PyThread_get_thread_ident


cdef class OneThread:
    """The guard of one network: within `with guard:`, only one thread uses the network; others get an error.

    Blocks may be nested, because hooks can call the network.

    Threads that take turns must not run a forward pass between the forward pass and the step of another thread, because
    a network has one output and one set of deltas. So the guard stores which thread has begun a training step. If a
    forward pass of another thread replaces this step, the first thread gets an error when it continues. One thread may
    finish a step that another one has begun.
    """

    def __cinit__(self):
        # Threads whose step was replaced: identifier of the system -> `this_thread`. The system reuses identifiers, so
        # there are never more entries than threads at a time.
        self.displaced = {}

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
        """Called after a forward pass in training, which replaces the step of another thread."""
        if self.owner != this_thread():
            if self.owner:
                self.displaced[self.owner_place] = self.owner
            self.owner, self.owner_place = this_thread(), PyThread_get_thread_ident()
        if self.displaced:
            self.displaced.pop(self.owner_place, None)
        return 0

    cpdef int goes_on(self) except -1:
        """Called before this thread continues its training step, by a backward pass or a step.

        Raises:
            RuntimeError: another thread is using the network, or has run a forward pass since this one did.
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
        """The training step is complete: later forward passes do not replace it."""
        self.owner = 0
        return 0
