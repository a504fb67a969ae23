from pytagi_ddp.kernels.cpu._blas cimport Product
from pytagi_ddp.kernels.cpu._patches cimport Patches


cdef extern from "winograd.h" nogil:
    enum:
        MEAN
        SQUARE
        SQUARE_PLUS


cdef struct Convolution:  # out = jcb (x * kernels + start), where * convolves; a pointer that is NULL is left out
    Product multiply  # makes the products
    const float* x
    bint squared  # take x^2 in place of x
    const float* w
    const float* s
    int kind  # kernels are w (MEAN), w^2 (SQUARE; then jcb^2 in place of jcb) or w^2 + s (SQUARE_PLUS)
    bint adjoint  # go from the outputs of the convolution to its inputs
    bint positive  # neither x nor kernels have negative elements, so a sum below 0 is a rounding error
    const float* start
    bint more  # add to out, in place of start
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
