"""Notices when several threads use one network at a time. kernels/one_thread.py gives each network a `OneThread`.

It is compiled since a step of 3 microseconds asks it three times. Each call here runs under the interpreter's lock, so
that no other thread comes between; kernels run without that lock.
"""

from cpython.pythread cimport PyThread_get_thread_ident


cdef class OneThread:
    """The guard of one network: within `with guard:`, a thread works alone on the network, or gets an error.

    Blocks may be nested, as hooks call the network from within its calls.

    Threads that take turns are never in such a block together, and yet they learn nonsense if one runs forward between
    the forward pass and the step of another: a network has one output and one set of deltas. So the guard notes whose
    training step is under way. A thread whose step was displaced by another thread's forward pass gets an error when it
    goes on. It is not an error that one thread finishes a step which another one has begun.
    """

    def __cinit__(self):
        # Threads whose step was displaced: identifier of the system -> `this_thread`. As the system uses identifiers
        # again, there are never more entries than threads at a time.
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
        """This thread has made a forward pass of a training step, which displaces the step of another thread."""
        if self.owner != this_thread():
            if self.owner:
                self.displaced[self.owner_place] = self.owner
            self.owner, self.owner_place = this_thread(), PyThread_get_thread_ident()
        if self.displaced:
            self.displaced.pop(self.owner_place, None)
        return 0

    cpdef int goes_on(self) except -1:
        """This thread is about to go on with its training step, by a backward pass or a step.

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
        """The training step is complete: from now on, no forward pass displaces it."""
        self.owner = 0
        return 0
