from pytagi_ddp.kernels.cpu.products._blas cimport Product
from pytagi_ddp.kernels.cpu.products._patches cimport Patches


cdef struct Factors:  # means and variances of the factors x and w; NULL for a variance of 0
    const float* x
    const float* x_var
    const float* w
    const float* w_var


cdef struct Finish:  # further operands of a result, or NULL: the start of its sums (channels), and a Jacobian that
    # multiplies them at the end (as the result)
    const float* start_mu
    const float* start_var
    const float* jcb


cdef void add_block(Product multiply_var, const Factors* f, Patches* p, long n, int rows, int c0, int c1, float* block,
                    const float* w, const float* s, const float* w2s, int width, float beta, float* mean, float* var,
                    long stride) noexcept nogil
cdef void squares(const Factors* f, const float* w, const float* s, float* w2s, long size) noexcept nogil
cdef void winograd_tile(Product multiply_var, const Patches* p, const Factors* f, const Finish* finish, bint adjoint,
                        float* out_mu, float* out_var, int O, int tile, int tiles, float* scratch) noexcept nogil
