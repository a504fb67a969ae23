# cython: wraparound=False
"""Pooling of batches of images: each OpenMP thread takes whole images, and pool.h has the loops. pooling.py calls it.

Images are (batch, height, width, channels), windows (batch, out_height, out_width, channels). Results must not overlap
other arrays.
"""

from cython.parallel cimport prange

from pytagi_ddp.kernels.cpu.products._blas cimport LARGEST

from pytagi_ddp.kernels.cpu.runtime.extension import size_error

cdef extern from "pool.h" nogil:
    void average_image "tagi_average_image"(const float* x, int height, int width, float* out, int out_height,
                                            int out_width, size_t channels, int kernel, int stride, int pad, bint back,
                                            float factor)
    void largest_image "tagi_largest_image"(const float* mu, const float* var, int height, int width, float* out_mu,
                                            float* out_var, int* winner, int out_height, int out_width,
                                            size_t channels, int kernel, int stride, int pad)
    void scatter_image "tagi_scatter_image"(const float* mu, const float* var, const int* winner, size_t windows,
                                            size_t channels, size_t pixels, float* image_mu, float* image_var)

ctypedef const float[:, :, :, ::1] Images
ctypedef float[:, :, :, ::1] Output


cdef bint alike(const Py_ssize_t* a, const Py_ssize_t* b):
    """Whether two arrays of four dimensions have the same shape."""
    return a[0] == b[0] and a[1] == b[1] and a[2] == b[2] and a[3] == b[3]


cdef bint countable(const Py_ssize_t* a, const Py_ssize_t* b, double kernel, double stride, double pad):
    """Whether the numbers of pixels of both images, and positions in a padded one, fit into an int."""
    return max(<double>a[1] * a[2], <double>b[1] * b[2], kernel, max(a[1], a[2], b[1], b[2]) * stride, pad) < LARGEST


def average(Images mu, Images var, Output out_mu, Output out_var, int kernel_size, int stride, int pad, bint back,
            int threads):
    """Average pooling from images (mu, var) to windows; if `back`, from the deltas of windows to those of images."""
    cdef Py_ssize_t batch = mu.shape[0], channels = mu.shape[3], b
    cdef int height = mu.shape[1], width = mu.shape[2], out_height = out_mu.shape[1], out_width = out_mu.shape[2]
    cdef float factor
    if not (threads > 0 and kernel_size > 0 and stride > 0 and pad >= 0 and alike(mu.shape, var.shape)
            and alike(out_mu.shape, out_var.shape) and out_mu.shape[0] == batch and out_mu.shape[3] == channels
            and countable(mu.shape, out_mu.shape, kernel_size, stride, pad)):
        raise size_error("pooling.average", mu=mu, var=var, out_mu=out_mu, out_var=out_var)
    if mu.size == 0 or out_mu.size == 0:
        return
    factor = 1 / (<float>kernel_size * kernel_size)
    for b in prange(batch, schedule="static", num_threads=threads, nogil=True):
        average_image(&mu[b, 0, 0, 0], height, width, &out_mu[b, 0, 0, 0], out_height, out_width, channels,
                      kernel_size, stride, pad, back, factor)
        average_image(&var[b, 0, 0, 0], height, width, &out_var[b, 0, 0, 0], out_height, out_width, channels,
                      kernel_size, stride, pad, back, factor * factor)


def largest(Images mu, Images var, Output out_mu, Output out_var, int[:, :, :, ::1] winner, int kernel_size, int stride,
            int pad, int threads):
    """Max pooling from images to windows; `winner` gets the selected pixel of each window, line * width + column."""
    cdef Py_ssize_t batch = mu.shape[0], channels = mu.shape[3], b
    cdef int height = mu.shape[1], width = mu.shape[2], out_height = out_mu.shape[1], out_width = out_mu.shape[2]
    if not (threads > 0 and kernel_size > 0 and stride > 0 and pad >= 0 and alike(mu.shape, var.shape)
            and alike(out_mu.shape, out_var.shape) and alike(out_mu.shape, winner.shape)
            and out_mu.shape[0] == batch and out_mu.shape[3] == channels
            and countable(mu.shape, out_mu.shape, kernel_size, stride, pad)
            and (out_height - 1) * stride - pad < height and (out_width - 1) * stride - pad < width):
        raise size_error("pooling.largest", mu=mu, var=var, out_mu=out_mu, out_var=out_var, winner=winner)
    if mu.size == 0 or out_mu.size == 0:
        return
    for b in prange(batch, schedule="static", num_threads=threads, nogil=True):
        largest_image(&mu[b, 0, 0, 0], &var[b, 0, 0, 0], height, width, &out_mu[b, 0, 0, 0], &out_var[b, 0, 0, 0],
                      &winner[b, 0, 0, 0], out_height, out_width, channels, kernel_size, stride, pad)


def scatter(Images mu, Images var, const int[:, :, :, ::1] winner, Output image_mu, Output image_var, int threads):
    """Backward of `largest`: the deltas of windows (mu, var) are added to those of the selected pixels."""
    cdef Py_ssize_t batch = mu.shape[0], channels = mu.shape[3], b
    cdef size_t windows = mu.shape[1] * mu.shape[2], pixels = image_mu.shape[1] * image_mu.shape[2]
    if not (threads > 0 and alike(mu.shape, var.shape) and alike(mu.shape, winner.shape)
            and alike(image_mu.shape, image_var.shape) and image_mu.shape[0] == batch
            and image_mu.shape[3] == channels):
        raise size_error("pooling.scatter", mu=mu, var=var, winner=winner, image_mu=image_mu, image_var=image_var)
    if mu.size == 0 or image_mu.size == 0:
        return
    for b in prange(batch, schedule="static", num_threads=threads, nogil=True):
        scatter_image(&mu[b, 0, 0, 0], &var[b, 0, 0, 0], &winner[b, 0, 0, 0], windows, channels, pixels,
                      &image_mu[b, 0, 0, 0], &image_var[b, 0, 0, 0])
