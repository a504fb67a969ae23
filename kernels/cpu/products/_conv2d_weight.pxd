from pytagi_ddp.kernels.cpu.products._blas cimport Product
from pytagi_ddp.kernels.cpu.products._patches cimport Patches


cdef struct Terms:  # operands of the sums for weights: values at the outputs and the inputs of a convolution, with
    # their variances, or NULL for a variance that does not count
    const float* out
    const float* out_var
    const float* image
    const float* image_var


cdef int weight_slices(int threads, long C, long taps) noexcept nogil
cdef size_t sums_size(const Patches* p, int O, int slices, int threads) noexcept nogil
cdef size_t weight_size(const Patches* p, int O) noexcept nogil
cdef void weight_tile(Product multiply_var, const Patches* patches, const Terms* terms, float* g_w, float* h_w,
                      float* g_b, float* h_b, bint accumulate, int O, int tile, int tiles, int slices, float* totals,
                      float* block) noexcept nogil
cdef void add_parts(const Patches* p, const float* totals, size_t size, int tiles, int slices, float* g_w, float* h_w,
                    float* g_b, float* h_b, bint accumulate, int O, int o0, int o1) noexcept nogil
