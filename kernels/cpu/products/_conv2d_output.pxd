from pytagi_ddp.kernels.cpu.products._blas cimport Product
from pytagi_ddp.kernels.cpu.products._conv2d_product cimport Factors, Finish
from pytagi_ddp.kernels.cpu.products._patches cimport Patches


cdef size_t output_size(const Patches* image, int O, int tiles) noexcept nogil
cdef void output_tile(Product multiply_var, const Patches* image, const Factors* f, const Finish* finish, float* out_mu,
                      float* out_var, int O, int tile, int tiles, float* scratch) noexcept nogil
