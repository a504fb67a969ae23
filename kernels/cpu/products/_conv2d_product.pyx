# cython: cdivision=True
"""Both moments of sums of products x w, for sums at the outputs and at the inputs of a convolution:

    mean = sum x w                  var = sum x_var (w^2 + w_var) + x^2 w_var

All passes use the same formula. In the forward pass, x are units; deterministic ones have no x_var. In the backward
pass, x are deltas, and the factor is the mean of the weights: without w_var, mean = sum dm w and var = sum ds w^2.
_conv2d_output.pyx and _conv2d_state.pyx call this.
"""

from pytagi_ddp.kernels.cpu.products._blas cimport Grid, best_grid, cut, product, square, square_plus, times_panels
from pytagi_ddp.kernels.cpu.products._patches cimport gather
from pytagi_ddp.kernels.cpu.products._winograd cimport (MEAN, SQUARE, SQUARE_PLUS, Convolution, convolve, tiles_of,
                                                        winograd)


cdef void squares(const Factors* f, const float* w, const float* s, float* w2s, long size) noexcept nogil:
    """w2s = w^2 + s, by which x_var is multiplied; without a variance of the weights, w^2."""
    if f.w_var:
        square_plus(w, s, w2s, size)
    else:
        square(w, w2s, size)


cdef void add_block(Product multiply_var, const Factors* f, Patches* p, long n, int rows, int c0, int c1, float* block,
                    const float* w, const float* s, const float* w2s, int width, float beta, float* mean, float* var,
                    long stride) noexcept nogil:
    """mean, var (rows x width) = the products of patches and packed weights + beta mean, beta var.

    The patches are those of channels c0:c1 at positions n:n + rows, and are gathered into `block`. The weights w, their
    variances s, and w2s = w^2 + s are in panels (`times_panels`).
    """
    cdef long columns = (c1 - c0) * p.kernel_height * p.kernel_width
    p.x = <float*>f.x
    gather(p, n, rows, c0, c1, block)
    times_panels(product, block, rows, columns, w, width, beta, mean, stride)
    if f.w_var:
        square(block, block, <long>rows * columns)
        times_panels(multiply_var, block, rows, columns, s, width, beta, var, stride)
    if f.x_var:
        p.x = <float*>f.x_var
        gather(p, n, rows, c0, c1, block)
        times_panels(multiply_var, block, rows, columns, w2s, width, 1 if f.w_var else beta, var, stride)


cdef void winograd_tile(Product multiply_var, const Patches* p, const Factors* f, const Finish* finish, bint adjoint,
                        float* out_mu, float* out_var, int O, int tile, int tiles, float* scratch) noexcept nogil:
    """Both moments for the tile of the results of one thread, by a Winograd algorithm.

    adjoint: sums at the inputs of the convolution `p`, else at its outputs. Mean and variance are two or three
    convolutions: of x by w, of x^2 by w_var, and of x_var by w^2 + w_var, which is added to the second one.
    """
    cdef long form = winograd(p, O, adjoint), n = tiles_of(p, form, adjoint)
    cdef long lanes = p.channels if adjoint else O, count = 1, i
    cdef Grid grid = best_grid(n, lanes, tiles)
    cdef Convolution jobs[3]
    jobs[0] = Convolution(product, f.x, False, f.w, NULL, MEAN, adjoint, False, finish.start_mu, False, finish.jcb,
                          out_mu)
    if f.w_var:  # the factors are not negative, so neither are the sums
        jobs[count] = Convolution(multiply_var, f.x, True, f.w_var, NULL, MEAN, adjoint, True, finish.start_var, False,
                                  NULL, out_var)
        count += 1
    if f.x_var:
        jobs[count] = Convolution(multiply_var, f.x_var, False, f.w, f.w_var, SQUARE_PLUS if f.w_var else SQUARE,
                                  adjoint, f.w_var != NULL, NULL, f.w_var != NULL, finish.jcb, out_var)
        count += 1
    for i in range(count):
        convolve(&jobs[i], form, p, O, cut(n, tile // grid.column_parts, grid.row_parts),
                 cut(n, tile // grid.column_parts + 1, grid.row_parts),
                 cut(lanes, tile % grid.column_parts, grid.column_parts),
                 cut(lanes, tile % grid.column_parts + 1, grid.column_parts), scratch)
