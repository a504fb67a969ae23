# cython: wraparound=False
"""Average pooling, image by image in OpenMP threads."""

from cython.parallel cimport prange

from pytagi_ddp.kernels.cpu.extension import size_error

cdef extern from "pool.h" nogil:
    void average_image(const float* x, int height, int width, float* out, int out_height, int out_width,
                       size_t channels, int kernel, int stride, int pad, bint back, float factor)


def average(const float[:, :, :, ::1] mu, const float[:, :, :, ::1] var, float[:, :, :, ::1] out_mu,
            float[:, :, :, ::1] out_var, int kernel_size, int stride, int pad, bint back, int threads):
    """Forward from images to windows; back from the deltas of windows to those of images."""
    cdef Py_ssize_t batch = mu.shape[0], channels = mu.shape[3], b
    cdef int height = mu.shape[1], width = mu.shape[2], out_height = out_mu.shape[1], out_width = out_mu.shape[2]
    cdef float factor
    cdef bint fit = threads > 0 and kernel_size > 0 and stride > 0 and pad >= 0
    for b in range(4):
        fit = fit and mu.shape[b] == var.shape[b] and out_mu.shape[b] == out_var.shape[b]
    if not (fit and out_mu.shape[0] == batch and out_mu.shape[3] == channels):
        raise size_error("pooling.average", mu=mu, var=var, out_mu=out_mu, out_var=out_var)
    if mu.size == 0 or out_mu.size == 0:
        return
    factor = 1 / <float>(kernel_size * kernel_size)
    for b in prange(batch, schedule="static", num_threads=threads, nogil=True):
        average_image(&mu[b, 0, 0, 0], height, width, &out_mu[b, 0, 0, 0], out_height, out_width, channels,
                      kernel_size, stride, pad, back, factor)
        average_image(&var[b, 0, 0, 0], height, width, &out_var[b, 0, 0, 0], out_height, out_width, channels,
                      kernel_size, stride, pad, back, factor * factor)
