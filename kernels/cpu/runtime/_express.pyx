# cython: wraparound=False
"""C versions of the public calls of a training step, used if arguments and modes match a recorded pass.

When passes are replayed (_replay.pyx), a step of a small network spends most of its time on checks of arguments,
conversions, views and copies. Here these are C. `Sequential` and `OutputUpdater` call these functions first. In all
other cases, including errors, a function here changes no result and returns None or False; then the caller runs the
general code.
"""

cimport numpy as cnp
from cython.parallel cimport prange
from cpython.object cimport PyObject
from libc.float cimport FLT_MAX as MOST
from libc.stdint cimport int64_t, intptr_t, uint64_t
from libc.string cimport memcpy

from pytagi_ddp.kernels.cpu.runtime._one_thread cimport OneThread, this_thread
from pytagi_ddp.kernels.cpu.runtime._replay cimport LARGE, LoopEntry, Plan, copy_floats

import numpy as np

from pytagi_ddp.kernels.cpu.runtime import threads
from pytagi_ddp.kernels.cpu.runtime.compile import PARALLEL_MIN as _parallel_min

cdef extern from "take.h" nogil:
    enum: INFINITE "TAGI_INFINITE"
    enum: NOT_A_NUMBER "TAGI_NOT_A_NUMBER"
    enum: NEGATIVE "TAGI_NEGATIVE"
    int look_float "tagi_look_float"(const float* x, size_t n)
    int look_double "tagi_look_double"(const double* x, size_t n)
    void take_double "tagi_take_double"(const double* x, float* out, size_t n)

cdef extern from "Python.h":
    PyObject* PyList_GET_ITEM(list items, Py_ssize_t k)  # a borrowed reference
    Py_ssize_t Py_REFCNT(PyObject* something)

cdef extern from "flush.h" nogil:
    size_t flush "tagi_flush"()
    void set_control_word "tagi_set_control_word"(size_t word)

cnp.import_array()

cdef Py_ssize_t PARALLEL_MIN = _parallel_min
cdef tuple NUMBERS = (float, int, np.floating)
cdef dict settings = threads.__dict__  # "_threads" is the current number of threads


cdef class _Pass:
    """A recorded forward pass, and its backward passes."""
    cdef Plan plan
    cdef object key, out  # (batch size, mode, input `State`), and the output `State`: objects of the network
    cdef cnp.ndarray mu, var, out_mu, out_var  # their arrays; var may be None
    cdef Py_ssize_t batch, size, out_size  # samples, and numbers of the whole input and output
    cdef bint training
    cdef dict backward  # (input_state_update, adds) -> (plan, memory of the deltas at the output, at the input)


cdef class Express:
    """The fast path of one network. The network registers its recordings by `offer_...`.

    Attributes:
        one_thread: the guard of the network, which sets it.
    """
    cdef public OneThread one_thread
    cdef dict passes  # (size of the input, whether it has variances, training) -> _Pass
    cdef _Pass last  # the pass that ran or was registered last
    cdef Plan step_plan
    cdef cnp.ndarray factors, non_finite
    cdef list mu_kept, var_kept  # the last returned copies of large outputs, see `copied`
    cdef uint64_t thread  # the thread that recorded, and its number of threads
    cdef object num_threads

    def __init__(self):
        self.clear()

    def clear(self):
        """Drops all registered recordings."""
        self.passes, self.last, self.step_plan = {}, None, None
        self.mu_kept, self.var_kept = [], []

    cdef bint as_recorded(self):
        """Whether this thread recorded, with the same number of threads."""
        return self.thread == this_thread() and self.num_threads == settings["_threads"]

    cdef record(self):
        """Stores the current thread, and drops recordings of another thread or another number of threads."""
        if not self.as_recorded():
            self.clear()
            self.thread, self.num_threads = this_thread(), settings["_threads"]

    def offer_forward(self, plan, key, state, out):
        """Registers a recorded forward pass from `state` to `out`, if `forward` can run it.

        key: (batch size, training, state). `forward` copies its input to the memory of `state`.
        """
        if plan is None or out.var is None or not (plain(out.mu, out.mu.size) and plain(out.var, out.mu.size)) \
                or not (plain(state.mu, state.mu.size) and (state.var is None or plain(state.var, state.mu.size))):
            return
        cdef _Pass found = _Pass()
        found.plan, found.key, found.out = plan, key, out
        found.mu, found.var, found.out_mu, found.out_var = state.mu, state.var, out.mu, out.var
        found.batch, found.training = key[0], key[1]
        found.size, found.out_size = state.mu.size, out.mu.size
        found.backward = {}
        self.record()
        self.passes[found.size, state.var is not None, found.training] = self.last = found

    def forward(self, net, passes, mu_x, var_x, bint training):
        """`Sequential.forward` in this mode: (mu, var), flat; None if this is not the common case."""
        cdef _Pass found = self.last
        if found is None or not self.as_recorded():
            return None
        mu_x, var_x = as_array(mu_x), as_array(var_x)
        if type(mu_x) is not cnp.ndarray:
            return None
        cdef Py_ssize_t size = cnp.PyArray_SIZE(mu_x)
        if size != found.size or training != found.training or (found.var is None) != (var_x is None):
            found = self.passes.get((size, var_x is not None, training))
            if found is None:
                return None
        if not (in_rows(mu_x, found.batch) and (var_x is None or in_rows(var_x, found.batch))):
            return None
        if look(mu_x, size) & ~NEGATIVE or (var_x is not None and look(var_x, size)):
            return None
        self.one_thread.enter()
        try:
            self.last = found
            passes.batch, passes.went_back = None, False
            take(mu_x, cnp.PyArray_DATA(found.mu))
            if var_x is not None:
                take(var_x, cnp.PyArray_DATA(found.var))
            passes.last = found.key
            found.plan.run()
            if not training and (look(found.out_mu, found.out_size) | look(found.out_var, found.out_size)) & ~NEGATIVE:
                return None  # the general way raises the error
            states, deltas = net.output_z_buffer, net.input_delta_z_buffer
            if states.state is not found.out:
                states.hold(found.out, net.device)
            if not holds(deltas, found.batch, found.out_size):
                deltas.set_size(found.out_size, found.batch)
            deltas.outdated = True
            if training:
                passes.batch = found.batch
                self.one_thread.went_forward()
            return copied(found.out_mu, self.mu_kept), copied(found.out_var, self.var_kept)
        finally:
            self.one_thread.leave()

    def offer_backward(self, plan, forward_key, key, start, end):
        """Registers a recorded backward pass, from deltas in the memory `start` to deltas in `end`.

        It needs its forward pass. So it is ignored if `forward_key` is not that of the last forward pass here.
        """
        if plan is not None and self.last is not None and self.last.key is forward_key and self.as_recorded():
            self.last.backward[key] = (plan, start, end)

    def backward(self, net, passes):
        """`Sequential.backward` in the common case; returns whether it was made."""
        cdef _Pass found = self.last
        if found is None or passes.batch != found.batch or passes.last is not found.key or not self.as_recorded():
            return False
        if not net._training:
            return False  # the general way raises the error
        if passes.accumulating or passes.average is not None:
            return False
        recorded = found.backward.get((net.input_state_update, False))
        if recorded is None:
            return False
        plan, start, end = recorded
        source = net.input_delta_z_buffer
        if source.memory is not start or not holds(source, found.batch, found.out_size):
            return False
        if source.outdated:
            return False  # the general way raises the error
        self.one_thread.enter()
        try:
            self.one_thread.goes_on()
            if end is not None:
                target = net.output_delta_z_buffer
                if target.memory is not end:
                    return False
                target.set_size(found.size, found.batch)
            try:
                (<Plan>plan).run()
            except:
                passes.begin()
                raise
            passes.went_back = True
            passes.samples = passes.waiting = found.batch
            return True
        finally:
            self.one_thread.leave()

    def offer_step(self, plan, factors, non_finite):
        """Registers the recorded step, with the arrays of its factors and of its counts of non-finite deltas."""
        if plan is not None:
            self.record()
            self.step_plan, self.factors, self.non_finite = plan, factors, non_finite

    def step(self, passes, float samples, float rate, cnp.ndarray made):
        """`Sequential.step` for a number of samples, with a pull to the prior; returns whether all deltas were finite.

        None if it was not made. made: an int64 that counts the steps with finite deltas, or None; no interrupt comes
        between a step and its count.
        """
        cdef Py_ssize_t k
        if self.step_plan is None or not self.as_recorded():
            return None
        cdef float* factors = <float*>cnp.PyArray_DATA(self.factors)
        self.one_thread.enter()
        try:
            passes.batch = None  # no backward pass can follow a forward pass with other parameters
            factors[0], factors[1], factors[2], factors[3] = 1, samples, 1, rate
            self.step_plan.run()
            self.one_thread.stepped()
        finally:
            self.one_thread.leave()
        cdef int* bad = <int*>cnp.PyArray_DATA(self.non_finite)
        for k in range(cnp.PyArray_SIZE(self.non_finite)):
            if bad[k]:
                return False
        if made is not None:
            (<long long*>cnp.PyArray_DATA(made))[0] += 1
        return True


cdef object as_array(values):
    """A number or a list of numbers as an array, as in streams of single samples; anything else as it is."""
    if type(values) is cnp.ndarray or not (type(values) is list or isinstance(values, NUMBERS)):
        return values
    if type(values) is list:
        for value in values:
            if not isinstance(value, NUMBERS):
                return values
    values = np.array(values)
    return values.astype(np.float32) if values.dtype.kind in "biu" else values


cdef bint in_rows(array, Py_ssize_t batch):
    """Whether the shape of an array fits this number of samples; the general code handles images and sequences."""
    return type(array) is cnp.ndarray and (
        cnp.PyArray_NDIM(array) < 2 or cnp.PyArray_NDIM(array) == 2 and cnp.PyArray_DIM(array, 0) == batch)


cdef int threads_for(Py_ssize_t size):
    """The number of threads for a loop over this number of values."""
    return threads.threads_in_force() if size >= LARGE else 1


cdef int look(array, Py_ssize_t size):
    """Flags (INFINITE, ...) for the contents of an array as float32; all flags if `take` cannot read it."""
    if type(array) is cnp.ndarray and cnp.PyArray_SIZE(array) == size and cnp.PyArray_ISCARRAY_RO(array):
        if cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT32 or cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT64:
            return look_at(<const char*>cnp.PyArray_DATA(array), is_single(array), size, threads_for(size))
    return INFINITE | NOT_A_NUMBER | NEGATIVE


cdef int look_at(const char* data, bint single, Py_ssize_t size, int threads) noexcept nogil:
    cdef int k, found = 0
    if threads == 1:
        return look_between(data, single, 0, size)
    for k in prange(threads, num_threads=threads):
        found |= look_between(data, single, k * size // threads, (k + 1) * size // threads)
    return found


cdef int look_between(const char* data, bint single, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    if single:
        return look_float(<const float*>data + start, end - start)
    return look_double(<const double*>data + start, end - start)


cdef void take(cnp.ndarray source, void* out):
    """out = source in float32, for an array that `look` could read."""
    cdef Py_ssize_t size = cnp.PyArray_SIZE(source)
    take_at(<const char*>cnp.PyArray_DATA(source), is_single(source), <float*>out, size, threads_for(size))


cdef void take_at(const char* data, bint single, float* out, Py_ssize_t size, int threads) noexcept nogil:
    cdef int k
    if single:
        copy_floats(<const float*>data, out, size, threads)
    elif threads == 1:
        take_double(<const double*>data, out, size)
    else:
        for k in prange(threads, num_threads=threads):
            take_doubles(<const double*>data, out, k * size // threads, (k + 1) * size // threads)


cdef void take_doubles(const double* data, float* out, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    take_double(data + start, out + start, end - start)


cdef bint is_single(cnp.ndarray array):
    return cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT32


cdef object copied(cnp.ndarray source, list kept):
    """A flat copy of contiguous float32 values, in an array without other references.

    A large copy uses the array of the last call, in `kept`, if the program has released it: new memory comes from the
    operating system page by page, which takes longer than the copy.
    """
    cdef cnp.npy_intp size = cnp.PyArray_SIZE(source)
    cdef object array = None
    if size >= LARGE and kept and Py_REFCNT(PyList_GET_ITEM(kept, 0)) == 1:
        array = kept[0]
        if cnp.PyArray_NDIM(array) != 1 or not cnp.PyArray_ISCARRAY(array) or not plain(array, size):
            array = None  # the program has changed its shape or made it read-only
    if array is None:
        array = cnp.PyArray_EMPTY(1, &size, cnp.NPY_FLOAT32, 0)
    take(source, cnp.PyArray_DATA(array))
    if size >= LARGE:
        kept[:] = [array]
    return array


cdef enum:
    SOME = 1024  # observations in a call of the loop; they are converted to float32 on the stack
    ARRAY = 7  # words of a flat array: its owner (2 words), number of elements, size of one, address, length, stride

cdef struct Observed:  # the arguments of an update
    const float* mu  # of the outputs, as var and jcb
    const float* var
    const float* jcb  # NULL means 1
    const char* obs  # observations
    const char* var_obs  # NULL: `variance` for all
    bint obs_single, var_obs_single  # whether observations and their variances are float32 (otherwise float64)
    float variance, weight  # the weight is a factor on the deltas
    float* delta_mu
    float* delta_var

# `update` calls the loop that Numba has compiled from output_update._update, by its entry (entries.py). The words are
# the address of the loop, then 7 flat arrays.
cdef intptr_t update_loop = 0
cdef LoopEntry update_entry = NULL
cdef cnp.ndarray ones = np.ones(SOME, np.float32)  # the Jacobian of outputs without one
cdef intptr_t one_each = <intptr_t>cnp.PyArray_DATA(ones)


def offer_update(intptr_t entry, intptr_t loop):
    """Registers the loop output_update._update for flat arrays, and its entry."""
    global update_loop, update_entry
    update_loop, update_entry = loop, <LoopEntry>entry


def update(states, mu_obs, var_obs, deltas, double weight):
    """`OutputUpdater.update` in the common case, with deltas times a weight; returns whether it was made."""
    cdef cnp.npy_intp size
    cdef Py_ssize_t batch
    cdef Observed all
    if update_entry is NULL or not 0 <= weight <= MOST:
        return False
    mu, var, jcb = states.state
    block = deltas.memory
    if type(mu) is not cnp.ndarray or type(var) is not cnp.ndarray or type(block) is not cnp.ndarray:
        return False
    size = cnp.PyArray_SIZE(mu)
    if not (plain(mu, size) and plain(var, size) and holds_deltas(block, size)):
        return False
    if jcb is not None and not (type(jcb) is cnp.ndarray and plain(jcb, size)):
        return False
    batch, mu_obs = states.block_size, as_array(mu_obs)
    if not (holds(deltas, batch, size) and in_rows(mu_obs, batch)) or look(mu_obs, size) & INFINITE:
        return False
    all.var_obs, all.variance, all.weight = NULL, 0, <float>weight
    if isinstance(var_obs, float) or type(var_obs) is int and 0 <= var_obs <= MOST:
        all.variance = <float><double>var_obs
        if not all.variance >= 0:
            return False
    elif in_rows(var_obs, batch) and not look(var_obs, size) & (NEGATIVE | NOT_A_NUMBER):
        all.var_obs, all.var_obs_single = <const char*>cnp.PyArray_DATA(var_obs), is_single(var_obs)
    else:
        return False
    all.mu, all.var = <const float*>cnp.PyArray_DATA(mu), <const float*>cnp.PyArray_DATA(var)
    all.jcb = NULL if jcb is None else <const float*>cnp.PyArray_DATA(jcb)
    all.obs, all.obs_single = <const char*>cnp.PyArray_DATA(mu_obs), is_single(mu_obs)
    all.delta_mu = <float*>cnp.PyArray_DATA(block)
    all.delta_var = all.delta_mu + cnp.PyArray_DIM(block, 1)
    deltas.outdated = False
    observe(&all, size, threads_for(size))
    return True


cdef void observe(const Observed* all, Py_ssize_t size, int threads) noexcept nogil:
    cdef int k
    if threads == 1:
        observe_between(all, 0, size)
    else:
        for k in prange(threads, num_threads=threads):
            observe_between(all, k * size // threads, (k + 1) * size // threads)


cdef void observe_between(const Observed* all, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    """Computes the deltas of outputs start:end."""
    cdef intptr_t[1 + 7 * ARRAY] words
    cdef intptr_t[7] addresses
    cdef float[SOME] obs
    cdef float[SOME] var_obs
    cdef Py_ssize_t n, i
    cdef int k
    cdef size_t control = flush()
    words[0] = update_loop
    if all.var_obs is NULL:
        for i in range(min(SOME, end - start)):
            var_obs[i] = all.variance
    while start < end:
        n = min(SOME, end - start)
        addresses = [<intptr_t>(all.mu + start), <intptr_t>(all.var + start),
                     one_each if all.jcb is NULL else <intptr_t>(all.jcb + start),
                     as_single(all.obs, all.obs_single, obs, start, n),
                     <intptr_t>var_obs if all.var_obs is NULL else as_single(all.var_obs, all.var_obs_single, var_obs,
                                                                             start, n),
                     <intptr_t>(all.delta_mu + start), <intptr_t>(all.delta_var + start)]
        for k in range(7):
            put(words + 1 + k * ARRAY, addresses[k], n)
        update_entry(words, 0, 1)
        if all.weight != 1:
            for i in range(start, start + n):
                all.delta_mu[i] *= all.weight
                all.delta_var[i] *= all.weight
        start += n
    set_control_word(control)


# `categorical` calls the loop likelihood._categorical, as `update` calls its loop.
cdef enum:
    ROWS = 9  # words of an array of rows: as `ARRAY`, with two lengths and two strides
    CATEGORICAL = 1 + 5 * ROWS + 2 * ARRAY + 2  # words of a call

cdef intptr_t categorical_loop = 0
cdef LoopEntry categorical_entry = NULL


def has_categorical():
    """Whether `offer_categorical` was successful."""
    return categorical_entry is not NULL


def offer_categorical(intptr_t entry, intptr_t loop):
    """Registers the loop likelihood._categorical, and its entry."""
    global categorical_loop, categorical_entry
    categorical_loop, categorical_entry = loop, <LoopEntry>entry


def categorical(states, labels, weight, deltas, Py_ssize_t classes):
    """`Categorical.update` in the common case; returns whether it was made."""
    cdef Py_ssize_t batch, rows
    cdef cnp.npy_intp size
    cdef int[SOME] room
    cdef float[SOME] weights
    cdef intptr_t index, each
    cdef float* delta
    if categorical_entry is NULL or type(labels) is not cnp.ndarray:
        return False
    mu, var, jcb = states.state
    block = deltas.memory
    if type(mu) is not cnp.ndarray or type(var) is not cnp.ndarray or type(block) is not cnp.ndarray:
        return False
    size, rows, batch = cnp.PyArray_SIZE(mu), cnp.PyArray_SIZE(labels), states.block_size
    if rows * classes != size or rows > SOME or batch * <Py_ssize_t>states.seq_len != rows or threads_of_loop(size) > 1:
        return False
    if jcb is None:
        jcb = states._ones[1]  # at least this number, otherwise the general code makes them
        if type(jcb) is not cnp.ndarray or cnp.PyArray_SIZE(jcb) < size:
            return False
    if not (plain(mu, size) and plain(var, size) and plain(jcb, cnp.PyArray_SIZE(jcb)) and holds_deltas(block, size)):
        return False
    if not (holds(deltas, batch, size) and in_rows(labels, rows)):
        return False
    index = classes_from(labels, room, rows, classes)
    if index == 0:
        return False
    if isinstance(weight, (float, int)):
        weights[0], each = <float><double>weight, 0
        if not 0 <= weights[0] <= MOST:
            return False
    else:
        if not in_rows(weight, rows) or cnp.PyArray_SIZE(weight) != rows or look(weight, rows):
            return False
        each = rows
    delta = <float*>cnp.PyArray_DATA(block)
    deltas.outdated = False
    cdef intptr_t[CATEGORICAL] words
    words[0] = categorical_loop
    put_rows(words + 1, <intptr_t>cnp.PyArray_DATA(mu), rows, classes)
    put_rows(words + 1 + ROWS, <intptr_t>cnp.PyArray_DATA(var), rows, classes)
    put_rows(words + 1 + 2 * ROWS, <intptr_t>cnp.PyArray_DATA(jcb), rows, classes)
    put(words + 1 + 3 * ROWS, index, rows)
    if each:
        each = as_single(<const char*>cnp.PyArray_DATA(weight), is_single(weight), weights, 0, rows)
        put(words + 1 + 3 * ROWS + ARRAY, each, rows)
    else:
        put(words + 1 + 3 * ROWS + ARRAY, <intptr_t>weights, 1)
    put_rows(words + 1 + 3 * ROWS + 2 * ARRAY, <intptr_t>delta, rows, classes)
    put_rows(words + 1 + 4 * ROWS + 2 * ARRAY, <intptr_t>(delta + cnp.PyArray_DIM(block, 1)), rows, classes)
    words[CATEGORICAL - 2], words[CATEGORICAL - 1] = 0, classes
    cdef size_t control = flush()
    categorical_entry(words, 0, 1)
    set_control_word(control)
    return True


cdef int threads_of_loop(Py_ssize_t size):
    """The number of threads for a loop over this number of values (`compile.loop`)."""
    return threads.threads_in_force() if size >= PARALLEL_MIN else 1


cdef intptr_t classes_from(cnp.ndarray labels, int* room, Py_ssize_t rows, Py_ssize_t classes):
    """The address of classes as int32, in the array or in a copy in `room`; 0 if one is not a class in range."""
    cdef Py_ssize_t k
    cdef const int* small = <const int*>cnp.PyArray_DATA(labels)
    cdef const int64_t* large = <const int64_t*>small
    cdef bint fits = True
    if not cnp.PyArray_ISCARRAY_RO(labels):
        return 0
    if cnp.PyArray_TYPE(labels) == cnp.NPY_INT32:
        for k in range(rows):
            fits &= -1 <= small[k] < classes
        return <intptr_t>small if fits else 0
    if cnp.PyArray_TYPE(labels) == cnp.NPY_INT64:
        for k in range(rows):
            fits &= -1 <= large[k] < classes
            room[k] = <int>large[k]
        return <intptr_t>room if fits else 0
    return 0


cdef void put(intptr_t* words, intptr_t address, Py_ssize_t n) noexcept nogil:
    """Sets the words of a flat array of n numbers of 4 bytes."""
    words[0], words[1], words[2], words[3], words[4], words[5], words[6] = 0, 0, n, 4, address, n, 4


cdef void put_rows(intptr_t* words, intptr_t address, Py_ssize_t rows, Py_ssize_t n) noexcept nogil:
    """Sets the words of an array with rows of n numbers of 4 bytes."""
    words[0], words[1], words[2], words[3], words[4] = 0, 0, rows * n, 4, address
    words[5], words[6], words[7], words[8] = rows, n, 4 * n, 4


cdef intptr_t as_single(const char* data, bint single, float* room, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    """The address of numbers start:start + n in float32, in the array or in a converted copy in `room`."""
    if single:
        return <intptr_t>(<const float*>data + start)
    take_double(<const double*>data + start, room, n)
    return <intptr_t>room


cdef bint holds(deltas, Py_ssize_t batch, Py_ssize_t size):
    """Whether a buffer of deltas has these numbers of samples and values. (Attribute `size` would be a Python call.)"""
    cdef Py_ssize_t units = deltas.actual_size
    return deltas.block_size == batch and units * batch == size


cdef bint holds_deltas(cnp.ndarray block, cnp.npy_intp size):
    """Whether deltas of this number of units fit a block with a row for means and one for variances."""
    return cnp.PyArray_NDIM(block) == 2 and cnp.PyArray_DIM(block, 0) == 2 and cnp.PyArray_DIM(block, 1) >= size \
        and cnp.PyArray_TYPE(block) == cnp.NPY_FLOAT32 and cnp.PyArray_ISCARRAY(block)


cdef bint plain(cnp.ndarray array, cnp.npy_intp size):
    """Whether an array consists of this number of contiguous float32 values."""
    return cnp.PyArray_SIZE(array) == size and cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT32 \
        and cnp.PyArray_ISCARRAY_RO(array)
