"""Transposed 2-D convolution: the adjoint of `conv2d`, with inputs and outputs exchanged.

Images are channels-last: input (batch, H, W, C), output (batch, Ho, Wo, O); weights (C, O, k, k), biases (O). Input
pixel (y, x) adds to output pixels (y stride + r - pad, x stride + q - pad); sums for pixels outside of the output are
dropped, and pixels that no tap reaches have the bias only. Deltas of the input are convolutions by W and W^2, and

    g_w[c, o, r, q] (+)= sum mu[b, y, x, c]   dm[b, y stride + r - pad, x stride + q - pad, o]
    h_w[c, o, r, q] (+)= sum mu[b, y, x, c]^2 ds[b, y stride + r - pad, x stride + q - pad, o]
"""

from functools import partial

from pytagi_ddp.kernels.cpu.layers import conv2d

adds = gives_moments = False
forward, backward = partial(conv2d.forward, transposed=True), partial(conv2d.backward, transposed=True)
