"""Lists of kernel calls, which are recorded while they are made, and replayed from C.

graph.py records and replays the parts of a training step by them: a small network would spend most of its time in
Python otherwise. A call is the address of a C function, an `Entry`, and a block of machine words with its arguments.
Cython kernels define their entries (`forward_entry` in _linear.pyx). `loop_entry` is that of all loops that Numba has
compiled; it calls theirs (entries.py) on several threads. A kernel without an entry is recorded as a Python call.
"""

import threading

cimport numpy as cnp
from cython.parallel cimport prange
from libc.stdint cimport intptr_t
from libc.string cimport memcpy, memset

import numpy as np

from pytagi_ddp.kernels.cpu.runtime.workspace import workspace

cdef extern from "flush.h" nogil:
    enum: FLUSH_THREADS "TAGI_FLUSH_THREADS"
    enum: FLUSH_BITS "TAGI_FLUSH_BITS"
    void flush_threads "tagi_flush_threads"(int threads, size_t* words)
    void unflush_threads "tagi_unflush_threads"(int threads, const size_t* words)

cdef extern from "contention.h" nogil:
    void notice_crowd "tagi_check_contention"(int threads)
    void watch_crowd "tagi_watch_contention"(bint on)
    bint is_crowded "tagi_is_contended"()

cnp.import_array()

can_flush = FLUSH_BITS != 0  # whether kernels of this build treat subnormal numbers as zero
cdef int recorders = 0  # number of `recording` blocks of all threads
_local = threading.local()  # plan: the plan that this thread records into; allocations: see `count_allocation`


cdef class Plan:
    """A list of calls, which `run` makes in order.

    Attributes:
        calls: number of calls.
    """

    def __init__(self):
        self.steps = []
        self.calls = 0

    cdef void add(self, Entry entry, const intptr_t* words, int count, Py_ssize_t scratch, int threads, object arrays):
        if not self.steps or type(self.steps[-1]) is not _Segment:
            self.steps.append(_Segment())
        (<_Segment>self.steps[-1]).add(entry, words, count, scratch, threads, arrays)
        self.calls += 1

    def add_call(self, function, tuple arguments):
        """Adds a Python call."""
        self.steps.append((function, arguments))
        self.calls += 1

    cpdef int run(self) except -1:
        for step in self.steps:
            if type(step) is _Segment:
                (<_Segment>step).run()
            else:
                (<object>(<tuple>step)[0])(*<tuple>(<tuple>step)[1])
        return 0


cdef intptr_t[::1] grown(intptr_t[::1] words):
    """A copy of twice the length."""
    return np.concatenate([words, np.zeros_like(words)])


cdef class _Segment:
    """Consecutive calls of C functions, without Python between them."""
    cdef intptr_t[::1] entries, firsts, words  # of call k: its entry, and the start of its words in `words`
    cdef int count, used, threads  # number of calls and of words, and the largest number of threads
    cdef Py_ssize_t scratch  # the largest scratch memory that a call needs
    cdef list arrays  # kept alive, because words are addresses of them

    def __init__(self):
        self.entries, self.firsts = np.zeros((2, 16), np.intp)
        self.words = np.zeros(256, np.intp)
        self.count = self.used = 0
        self.threads = 1
        self.scratch = 0
        self.arrays = []

    cdef void add(self, Entry entry, const intptr_t* words, int count, Py_ssize_t scratch, int threads, object arrays):
        if self.count == self.entries.shape[0]:
            self.entries, self.firsts = grown(self.entries), grown(self.firsts)
        while self.used + count > self.words.shape[0]:
            self.words = grown(self.words)
        self.entries[self.count] = <intptr_t>entry
        self.firsts[self.count] = self.used
        memcpy(&self.words[self.used], words, count * sizeof(intptr_t))
        self.count += 1
        self.used += count
        self.scratch = max(self.scratch, scratch)
        self.threads = max(self.threads, threads)
        self.arrays.append(arrays)

    cdef int run(self) except -1:
        cdef int k
        cdef size_t[FLUSH_THREADS] control
        cdef float[::1] memory
        cdef float* scratch = NULL
        if self.scratch:
            memory = workspace(self.scratch)  # of the present thread, which may differ from the recording one
            scratch = &memory[0]
        with nogil:
            notice_crowd(self.threads)
            flush_threads(self.threads, control)
            for k in range(self.count):
                (<Entry>self.entries[k])(&self.words[self.firsts[k]], scratch)
            unflush_threads(self.threads, control)
        return 0


class recording:
    """`with recording() as plan:` records the kernel calls of this thread in the block into a new `Plan`."""

    def __enter__(self):
        global recorders
        self._outer = getattr(_local, "plan", None)
        _local.plan = plan = Plan()
        recorders += 1
        return plan

    def __exit__(self, *exc_info):
        global recorders
        recorders -= 1
        _local.plan = self._outer


cpdef Plan current():
    """The plan that this thread records into, or None."""
    return getattr(_local, "plan", None) if recorders else None


def call(function, *arguments):
    """Calls `function(*arguments)`, and records it as a Python call. Kernels that it calls are not recorded."""
    cdef Plan plan = current()
    if plan is None:
        return function(*arguments)
    _local.plan = None
    try:
        result = function(*arguments)
    finally:
        _local.plan = plan
    plan.add_call(function, arguments)
    return result


cdef int issue(Entry entry, const intptr_t* words, int count, Py_ssize_t scratch, int threads, tuple arrays) except -1:
    """Calls an entry, and records the call if this thread is recording.

    Args:
        entry, words, count: the function, and its `count` words, which are copied.
        scratch: size of its scratch memory, in float32; with 0 it gets NULL.
        threads: number of its threads, which flush subnormal numbers during the call (flush.h).
        arrays: arrays whose addresses are among the words; a plan keeps them alive.
    """
    cdef size_t[FLUSH_THREADS] control
    cdef float[::1] memory
    cdef float* start = NULL
    if scratch:
        memory = workspace(scratch)
        start = &memory[0]
    with nogil:
        notice_crowd(threads)
        flush_threads(threads, control)
        entry(words, start)
        unflush_threads(threads, control)
    cdef Plan plan
    if recorders:
        plan = current()
        if plan is not None:
            plan.add(entry, words, count, scratch, threads, arrays)
    return 0


cdef void loop_entry(const intptr_t* words, float* scratch) noexcept nogil:
    """Words: address of the entry of a compiled loop (entries.py), number of threads, words of that entry."""
    cdef int k, threads = words[1]
    cdef LoopEntry entry = <LoopEntry>words[0]
    if threads == 1:
        entry(words + 2, 0, 1)
    else:
        for k in prange(threads, num_threads=threads, schedule="static", chunksize=1):
            entry(words + 2, k, threads)


def count_words(tuple arguments):
    """Number of machine words of a compiled loop's arguments (entries.py); -1 if one is none of arrays, numbers, None.
    """
    cdef int count = 0
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            count += 5 + 2 * cnp.PyArray_NDIM(argument)
        elif argument is None or isinstance(argument, (int, np.float32, np.integer, np.bool_)):
            count += 1
        else:
            return -1
    return count


cdef void put_words(intptr_t* words, tuple arguments) except *:
    cdef cnp.ndarray array
    cdef float number
    cdef int k, n
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            array, n = argument, cnp.PyArray_NDIM(argument)
            words[0] = words[1] = 0  # its owner, which loops do not use
            words[2], words[3] = cnp.PyArray_SIZE(array), cnp.PyArray_ITEMSIZE(array)
            words[4] = <intptr_t>cnp.PyArray_DATA(array)
            for k in range(n):
                words[5 + k], words[5 + n + k] = cnp.PyArray_DIM(array, k), cnp.PyArray_STRIDE(array, k)
            words += 5 + 2 * n
            continue
        words[0] = 0
        if isinstance(argument, np.float32):
            number = argument
            memcpy(words, &number, sizeof(float))
        elif argument is not None:
            words[0] = int(argument)
        words += 1


def run_loop(intptr_t entry, intptr_t loop, tuple arguments, int threads, bint flush):
    """Calls a compiled loop on `threads` threads, and records the call.

    Args:
        entry, loop: addresses, see entries.py.
        flush: whether subnormal numbers count as zero meanwhile (flush.h).
    """
    cdef intptr_t[::1] block = np.empty(3 + count_words(arguments), np.intp)
    block[0], block[1], block[2] = entry, threads, loop
    put_words(&block[0] + 3, arguments)
    if flush:
        issue(loop_entry, &block[0], block.shape[0], 0, threads, arguments)
        return
    notice_crowd(threads)
    with nogil:
        loop_entry(&block[0], NULL)
    cdef Plan plan = current()
    if plan is not None:
        plan.add_call(run_loop, (entry, loop, arguments, threads, False))


def flushed(function, int threads, tuple arguments):
    """Calls `function(*arguments)`, a loop on `threads` threads, which flush subnormal numbers meanwhile (flush.h)."""
    cdef size_t[FLUSH_THREADS] control
    notice_crowd(threads)
    flush_threads(threads, control)
    try:
        return function(*arguments)
    finally:
        unflush_threads(threads, control)


def watch_cores():
    """From now on, threads spin only briefly between loops under CPU contention (contention.h)."""
    watch_crowd(True)


def cores_wanted():
    """Whether there was CPU contention when this process last computed; False without `watch_cores`."""
    return is_crowded()


def count_allocation():
    """Counts a new buffer of kernels. Recordings may use an older buffer then, and are dropped."""
    _local.allocations = getattr(_local, "allocations", 0) + 1


def allocations():
    """The number of buffers that this thread has counted."""
    return getattr(_local, "allocations", 0)


def address(cnp.ndarray array not None):
    """The address of an array's numbers."""
    return <intptr_t>cnp.PyArray_DATA(array)


cdef void copy_entry(const intptr_t* words, float* scratch) noexcept nogil:
    """Words: addresses of the copy and of the source, number of float32, threads."""
    copy_floats(<const float*>words[1], <float*>words[0], words[2], words[3])


cdef void copy_floats(const float* source, float* out, Py_ssize_t n, int threads) noexcept nogil:
    cdef int k
    if threads == 1:
        memcpy(out, source, n * sizeof(float))
    else:
        for k in prange(threads, num_threads=threads):
            copy_between(source, out, k * n // threads, (k + 1) * n // threads)


cdef void copy_between(const float* source, float* out, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    memcpy(out + start, source + start, (end - start) * sizeof(float))


cdef void clear_entry(const intptr_t* words, float* scratch) noexcept nogil:
    """Words: address and number of bytes."""
    memset(<void*>words[0], 0, words[1])


cdef bint is_plain(cnp.ndarray array):
    return cnp.PyArray_IS_C_CONTIGUOUS(array) and cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT32


def copy(source, out, int threads):
    """out[...] = source, for NumPy arrays of any type and shape. `threads` threads copy large float32 arrays."""
    cdef intptr_t words[4]
    if type(source) is cnp.ndarray and type(out) is cnp.ndarray and is_plain(source) and is_plain(out) \
            and (<cnp.ndarray>source).size == (<cnp.ndarray>out).size and out.flags.writeable:
        if cnp.PyArray_SIZE(out) < LARGE:
            threads = 1
        words = [<intptr_t>cnp.PyArray_DATA(out), <intptr_t>cnp.PyArray_DATA(source), cnp.PyArray_SIZE(out), threads]
        issue(copy_entry, words, 4, 0, threads, (source, out))
    else:
        call(np.copyto, out, source)


def clear(cnp.ndarray array not None):
    """array[...] = 0; of a contiguous float32 array, the call is recorded as a C function."""
    cdef intptr_t words[2]
    if is_plain(array) and cnp.PyArray_ISWRITEABLE(array):
        words = [<intptr_t>cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array)]
        issue(clear_entry, words, 2, 0, 1, (array,))
    else:
        call(array.fill, 0)
