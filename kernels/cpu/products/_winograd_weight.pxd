from pytagi_ddp.kernels.cpu.products._blas cimport Product
from pytagi_ddp.kernels.cpu.products._patches cimport Patches


cdef int winograd_chunk(int form, int C, int O) noexcept nogil
cdef size_t winograd_weight_size(int form, int C, int O) noexcept nogil
cdef void add_tiles(Product multiply, int form, const Patches* p, const float* image, bint image_squared,
                    const float* delta, bint delta_squared, int O, int c0, int c1, int t0, int t1, float* sums,
                    float* scratch) noexcept nogil
cdef void restore_sums(int form, const float* sums, float* out, int C, int O, int c0, int c1, int o0, int o1,
                       bint accumulate) noexcept nogil
