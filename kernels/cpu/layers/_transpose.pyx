# cython: wraparound=False
"""Transposes of batches of matrices, one matrix after the other in OpenMP threads.

elementwise.py calls it to change the order of images in memory: channels first is the transpose of channels last.
"""

from cython.parallel cimport prange

from pytagi_ddp.kernels.cpu.runtime.extension import size_error

cdef extern from "transpose.h" nogil:
    void transpose_matrix "tagi_transpose_matrix"(const float* x, size_t rows, size_t columns, size_t stride,
                                                  float* out)


def transpose(const float[:, :, ::1] source, float[:, :, ::1] out, int threads):
    """out (batch, columns, rows) = source (batch, rows, columns); the two must not overlap."""
    cdef Py_ssize_t batch = source.shape[0], rows = source.shape[1], columns = source.shape[2], b
    if not (threads > 0 and out.shape[0] == batch and out.shape[1] == columns and out.shape[2] == rows):
        raise size_error("elementwise.transpose", source=source, out=out)
    if batch == 0 or rows == 0 or columns == 0:
        return
    for b in prange(batch, schedule="static", num_threads=threads, nogil=True):
        transpose_matrix(&source[b, 0, 0], rows, columns, columns, &out[b, 0, 0])
