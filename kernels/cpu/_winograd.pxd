from pytagi_ddp.kernels.cpu._blas cimport Product
from pytagi_ddp.kernels.cpu._patches cimport Patches


cdef extern from "winograd.h" nogil:
    enum:
        MEAN
        SQUARE
        SQUARE_PLUS


cdef struct Convolution:  # out = x * kernels + start, or += x * kernels; times jcb if there is one
    Product multiply
    const float* x
    bint squared  # x^2 in place of x
    const float* w
    const float* s
    int kind  # kernels are w, w^2 (and jcb^2), or w^2 + s
    bint adjoint  # from the layer's outputs to its inputs
    bint positive  # x and the kernels have no negative elements
    const float* start
    bint more
    const float* jcb
    float* out


cdef int winograd(const Patches* p, int O) noexcept nogil
cdef int tiles_of(const Patches* p, int edge) noexcept nogil
cdef int planes_of(int edge) noexcept nogil
cdef size_t winograd_size(int edge, int depth, int lanes) noexcept nogil
cdef void transform_tiles(int edge, const float* x, bint squared, const Patches* p, int channels, int c0, int c1,
                          int first, int tiles, float* out, size_t plane) noexcept nogil
cdef void convolve(const Convolution* job, int edge, const Patches* p, int O, int t0, int t1, int l0, int l1,
                   float* scratch) noexcept nogil
