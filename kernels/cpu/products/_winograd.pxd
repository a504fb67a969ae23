from pytagi_ddp.kernels.cpu.products._blas cimport Product
from pytagi_ddp.kernels.cpu.products._patches cimport Patches


cdef extern from "winograd.h" nogil:
    enum:
        MEAN "TAGI_MEAN"
        SQUARE "TAGI_SQUARE"
        SQUARE_PLUS "TAGI_SQUARE_PLUS"
        PLAIN "TAGI_PLAIN"
        F2 "TAGI_F2"
        F4 "TAGI_F4"
        F2_5 "TAGI_F2_5"
        EVEN_3 "TAGI_EVEN_3"
        ODD_3 "TAGI_ODD_3"
        STRIDED_4 "TAGI_STRIDED_4"
        PAD "TAGI_PAD"
    bint strided "tagi_strided"(int form)
    int step_of "tagi_step_of"(int form, bint adjoint)
    int made_of "tagi_made_of"(int form, bint adjoint)
    int window_of "tagi_window_of"(int form, bint adjoint)
    int edge_of "tagi_edge_of"(int form)
    int kernel_edge_of "tagi_kernel_edge_of"(int form)
    int taps_of "tagi_taps_of"(int form)
    int sharing "tagi_sharing"(int form, int i, int j)
    size_t place "tagi_place"(int form, int i, int j, size_t size)


cdef struct Convolution:  # out = jcb (x * kernels + start), where * convolves; a pointer that is NULL is left out
    Product multiply  # makes the products
    const float* x
    bint squared  # use x^2 instead of x
    const float* w
    const float* s
    int kind  # kernels are w (MEAN), w^2 (SQUARE; then jcb^2 instead of jcb) or w^2 + s (SQUARE_PLUS)
    bint adjoint  # from the outputs of the convolution to its inputs
    bint positive  # neither x nor kernels have negative elements, so a sum below 0 is a rounding error
    const float* start
    bint more  # add to out, instead of start
    const float* jcb
    float* out


cdef int winograd(const Patches* p, int O, bint adjoint) noexcept nogil
cdef int tiles_across(const Patches* p, int form, bint adjoint) noexcept nogil
cdef int tiles_down(const Patches* p, int form, bint adjoint) noexcept nogil
cdef int tiles_of(const Patches* p, int form, bint adjoint) noexcept nogil
cdef int kernel_planes_of(int form) noexcept nogil
cdef size_t size_of_planes(int form, size_t size) noexcept nogil
cdef size_t winograd_size(int form, int depth, int lanes) noexcept nogil
cdef void transform_tiles(int form, bint adjoint, const float* x, bint squared, const Patches* p, int channels, int c0,
                          int c1, int first, int tiles, float* out) noexcept nogil
cdef void convolve(const Convolution* job, int form, const Patches* p, int O, int t0, int t1, int l0, int l1,
                   float* scratch) noexcept nogil
