from pytagi_ddp.kernels.cpu._blas cimport Product
from pytagi_ddp.kernels.cpu._patches cimport Patches


cdef size_t state_size(const Patches* image, int O, int tiles) noexcept nogil
cdef void state_tile(Product multiply_var, const Patches* image, const float* delta_mu, const float* delta_var,
                     const float* w_mu, const float* jcb, float* in_mu, float* in_var, int O, int tile, int tiles,
                     float* scratch) noexcept nogil
