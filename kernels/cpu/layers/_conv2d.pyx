# cython: wraparound=False, cdivision=True
"""Moment products of a 2-D convolution and of a transposed one, in OpenMP threads.

conv2d.py and convtranspose2d.py call them, and have the formulas. A transposed convolution is the adjoint of a
convolution: it maps the outputs of that convolution to its inputs, with weights of the same shape. So both use three
kinds of sums:

* Sums at the outputs of a convolution (_conv2d_output.pyx) are units of a convolution, and deltas of a transposed one.
* Sums at its inputs (_conv2d_state.pyx) are deltas of a convolution, and units of a transposed one.
* Sums for the weights (_conv2d_weight.pyx) are the same for both.

All these files use the names of the underlying convolution. Its inputs are the *image* (batch, height, width, C), its
outputs are (batch, Ho, Wo, O), and its weights (O, C, k, k); a *tap* is one of the k x k elements of a kernel. Kernels
of usual sizes use faster algorithms (_winograd.pyx).
"""

from cython.parallel cimport parallel, prange

from pytagi_ddp.kernels.cpu.products._blas cimport (LARGEST, Product, cut, lines, sum_columns, threads_for,
                                                    variance_product)
from pytagi_ddp.kernels.cpu.products._conv2d_output cimport output_size, output_tile
from pytagi_ddp.kernels.cpu.products._conv2d_product cimport Factors, Finish
from pytagi_ddp.kernels.cpu.products._conv2d_state cimport state_size, state_tile
from pytagi_ddp.kernels.cpu.products._conv2d_weight cimport (Terms, add_parts, sums_size, weight_size, weight_slices,
                                                             weight_tile)
from pytagi_ddp.kernels.cpu.products._patches cimport Patches, positions_of

from pytagi_ddp.kernels.cpu.runtime.extension import size_error
from pytagi_ddp.kernels.cpu.runtime.workspace import workspace

cdef extern from "flush.h" nogil:
    size_t flush "tagi_flush"()
    void set_control_word "tagi_set_control_word"(size_t word)

cdef bint shaped(const Py_ssize_t* shape, Py_ssize_t n0, Py_ssize_t n1, Py_ssize_t n2, Py_ssize_t n3):
    return shape[0] == n0 and shape[1] == n1 and shape[2] == n2 and shape[3] == n3


cdef const float* start_of(const float[::1] array):
    return NULL if array is None else &array[0]


cdef const float* first_of(const float[:, :, :, ::1] array):
    return NULL if array is None else &array[0, 0, 0, 0]


cdef double terms_of(const Patches* image, int O) noexcept nogil:
    """The number of multiply-adds of a product."""
    return <double>positions_of(image) * O * image.channels * image.kernel_height * image.kernel_width


cdef bint countable(double B, double H, double W, double C, double O, double k, double stride, double Ho, double Wo):
    """Whether these numbers fit into an int: pixels, and taps of 16 channels, of all channels and of all outputs."""
    return max(B * H * W, B * Ho * Wo, max(C, O, 16) * k * k, Ho * stride, Wo * stride) < LARGEST


def forward(const float[:, :, :, ::1] mu, const float[:, :, :, ::1] var, const float[:, :, :, ::1] w_mu,
            const float[:, :, :, ::1] w_var, const float[::1] b_mu, const float[::1] b_var,
            float[:, :, :, ::1] out_mu, float[:, :, :, ::1] out_var, int stride, int pad, bint transposed, int threads,
            bint mixed):
    """The moments of a convolution's outputs, conv2d.forward, or, if transposed, convtranspose2d.forward.

    mu and var are (batch, H, W, C) and results (batch, Ho, Wo, O), or the opposite if transposed. var, and both biases,
    may be None. Results must not overlap other arrays.
    """
    cdef const float[:, :, :, ::1] image = out_mu if transposed else mu, out = mu if transposed else out_mu
    cdef int B = image.shape[0], H = image.shape[1], W = image.shape[2], C = image.shape[3]
    cdef int O = out.shape[3], Ho = out.shape[1], Wo = out.shape[2], k = w_mu.shape[2], results = C if transposed else O
    cdef str name = "convtranspose2d.forward" if transposed else "conv2d.forward"
    if not (0 < stride < LARGEST and 0 <= pad < LARGEST):
        raise ValueError(f"{name}: stride {stride}, pad {pad}: expected at least 1 and 0, below {LARGEST}")
    if not (min(B, H, W, C, O, k, Ho, Wo, threads) > 0 and countable(B, H, W, C, O, k, stride, Ho, Wo)
            and shaped(w_mu.shape, O, C, k, k) and shaped(w_var.shape, O, C, k, k)
            and shaped(image.shape, B, H, W, C) and shaped(out.shape, B, Ho, Wo, O)
            and (var is None or shaped(var.shape, mu.shape[0], mu.shape[1], mu.shape[2], mu.shape[3]))
            and (b_mu is None) == (b_var is None) and (b_mu is None or b_mu.shape[0] == b_var.shape[0] == results)
            and shaped(out_var.shape, out_mu.shape[0], out_mu.shape[1], out_mu.shape[2], out_mu.shape[3])):
        raise size_error(name, mu=mu, var=var, w_mu=w_mu, w_var=w_var, b_mu=b_mu, b_var=b_var, out_mu=out_mu,
                         out_var=out_var)
    cdef Patches patches = Patches(NULL, B, H, W, C, k, k, stride, pad, pad, Ho, Wo)
    cdef Factors factors = Factors(first_of(mu), first_of(var), first_of(w_mu), first_of(w_var))
    cdef Finish finish = Finish(start_of(b_mu), start_of(b_var), NULL)
    cdef Product multiply_var = variance_product(mixed)
    cdef int n = threads_for(terms_of(&patches, O), threads), t
    cdef size_t control
    cdef size_t per_thread = state_size(&patches, O, n) if transposed else output_size(&patches, O, n)
    cdef float[::1] scratch = workspace(n * lines(per_thread))
    cdef float* result_mu = &out_mu[0, 0, 0, 0]
    cdef float* result_var = &out_var[0, 0, 0, 0]
    for t in prange(n, schedule="static", num_threads=n, nogil=True):
        control = flush()
        if transposed:
            state_tile(multiply_var, &patches, &factors, &finish, result_mu, result_var, O, t, n,
                       &scratch[t * lines(per_thread)])
        else:
            output_tile(multiply_var, &patches, &factors, &finish, result_mu, result_var, O, t, n,
                        &scratch[t * lines(per_thread)])
        set_control_word(control)


def backward(const float[:, :, :, ::1] mu, const float[:, :, :, ::1] jcb, const float[:, :, :, ::1] delta_mu,
             const float[:, :, :, ::1] delta_var, const float[:, :, :, ::1] w_mu, float[:, :, :, ::1] in_delta_mu,
             float[:, :, :, ::1] in_delta_var, float[:, :, :, ::1] g_w, float[:, :, :, ::1] h_w, float[::1] g_b,
             float[::1] h_b, int stride, int pad, bint transposed, bint accumulate, int threads, bint mixed):
    """The deltas of the input and the sums for weights and bias: conv2d.backward, or convtranspose2d.backward.

    Shapes are those of `forward`. jcb, both in_deltas and both sums for the bias may be None. Results must not overlap
    other arrays.
    """
    cdef const float[:, :, :, ::1] image = delta_mu if transposed else mu, out = mu if transposed else delta_mu
    cdef int B = image.shape[0], H = image.shape[1], W = image.shape[2], C = image.shape[3]
    cdef int O = out.shape[3], Ho = out.shape[1], Wo = out.shape[2], k = w_mu.shape[2], results = C if transposed else O
    cdef str name = "convtranspose2d.backward" if transposed else "conv2d.backward"
    if not (0 < stride < LARGEST and 0 <= pad < LARGEST):
        raise ValueError(f"{name}: stride {stride}, pad {pad}: expected at least 1 and 0, below {LARGEST}")
    if not (min(B, H, W, C, O, k, Ho, Wo, threads) > 0 and countable(B, H, W, C, O, k, stride, Ho, Wo)
            and shaped(w_mu.shape, O, C, k, k) and shaped(g_w.shape, O, C, k, k)
            and shaped(h_w.shape, O, C, k, k) and shaped(image.shape, B, H, W, C) and shaped(out.shape, B, Ho, Wo, O)
            and (jcb is None or shaped(jcb.shape, mu.shape[0], mu.shape[1], mu.shape[2], mu.shape[3]))
            and shaped(delta_var.shape, delta_mu.shape[0], delta_mu.shape[1], delta_mu.shape[2], delta_mu.shape[3])
            and (in_delta_mu is None) == (in_delta_var is None) and (in_delta_mu is None or (
                shaped(in_delta_mu.shape, mu.shape[0], mu.shape[1], mu.shape[2], mu.shape[3])
                and shaped(in_delta_var.shape, mu.shape[0], mu.shape[1], mu.shape[2], mu.shape[3])))
            and (g_b is None) == (h_b is None) and (g_b is None or g_b.shape[0] == h_b.shape[0] == results)):
        raise size_error(name, mu=mu, jcb=jcb, delta_mu=delta_mu, delta_var=delta_var, w_mu=w_mu,
                         in_delta_mu=in_delta_mu, in_delta_var=in_delta_var, g_w=g_w, h_w=h_w, g_b=g_b, h_b=h_b)
    cdef Patches patches = Patches(NULL, B, H, W, C, k, k, stride, pad, pad, Ho, Wo)
    cdef Factors factors = Factors(first_of(delta_mu), first_of(delta_var), first_of(w_mu), NULL)
    cdef Finish finish = Finish(NULL, NULL, first_of(jcb))
    cdef Terms terms = Terms(first_of(delta_mu), first_of(delta_var), first_of(mu), NULL)
    if transposed:
        terms = Terms(first_of(mu), NULL, first_of(delta_mu), first_of(delta_var))
    cdef Product multiply_var = variance_product(mixed)
    cdef int n = threads_for(terms_of(&patches, O), threads), t
    cdef size_t control
    cdef int slices = weight_slices(n, C, <long>k * k)
    cdef size_t sums = lines(sums_size(&patches, O, slices, n))
    cdef size_t per_thread = output_size(&patches, O, n) if transposed else state_size(&patches, O, n)
    per_thread = lines(max(weight_size(&patches, O), per_thread))
    cdef float[::1] scratch = workspace(n * (sums + per_thread))
    cdef float* totals = &scratch[0]
    cdef float* blocks = totals + n * sums
    cdef float* in_mu = <float*>first_of(in_delta_mu)
    cdef float* in_var = <float*>first_of(in_delta_var)
    cdef float* g = &g_w[0, 0, 0, 0]
    cdef float* h = &h_w[0, 0, 0, 0]
    cdef float* image_g = <float*>start_of(g_b)
    cdef float* image_h = <float*>start_of(h_b)
    cdef float* bias_g = NULL if transposed else image_g  # the bias of a transposed one is at the image: `sum_columns`
    cdef float* bias_h = NULL if transposed else image_h
    with nogil, parallel(num_threads=n):
        control = flush()
        for t in prange(n, schedule="static"):
            if in_mu and transposed:
                output_tile(multiply_var, &patches, &factors, &finish, in_mu, in_var, O, t, n, blocks + t * per_thread)
            elif in_mu:
                state_tile(multiply_var, &patches, &factors, &finish, in_mu, in_var, O, t, n, blocks + t * per_thread)
            weight_tile(multiply_var, &patches, &terms, g, h, bias_g, bias_h, accumulate, O, t, n, slices,
                        totals + t * sums, blocks + t * per_thread)
            if transposed and image_g:
                sum_columns(terms.image, <long>B * H * W, C, image_g, accumulate, t, n)
                sum_columns(terms.image_var, <long>B * H * W, C, image_h, accumulate, t, n)
        if slices < n:
            for t in prange(n, schedule="static"):
                add_parts(&patches, totals, sums, n, slices, g, h, bias_g, bias_h, accumulate, O, cut(O, t, n),
                          cut(O, t + 1, n))
        set_control_word(control)
