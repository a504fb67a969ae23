"""Transposed 2-D convolution: moments forward, deltas backward, as the adjoint of a convolution.

All arrays are C-contiguous float32. Images are channels-last: input (batch, H, W, C), output (batch, Ho, Wo, O);
weights (C, O, k, k), biases (O). Input pixel (y, x) adds to output pixels (y stride + r - pad, x stride + q - pad);
sums for pixels outside of the output are dropped, and pixels that no tap reaches only get the bias. The Winograd form
is used for the same sizes as in conv2d.py; `mixed` means the same as in linear.py.
"""

from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.kernels.tensors import NO_DELTA, NO_TENSOR, Delta, State, Tensor

_conv2d = load("layers._conv2d")
call = load("runtime._replay").call
adds = gives_moments = False


def forward(
    x: State,
    weights: Tensor,
    bias: Tensor | None,
    out: State,
    stride: int,
    pad: int,
    *,
    mixed: bool = False,
) -> None:
    """out.mu = mu * W + b and out.var = var * (W^2 + S) + mu^2 * S + s_b; W = weights.mu, S = weights.var.

    * is the transposed convolution. (mu, var): of x; without a variance the input is deterministic. pad: rows and
    columns dropped at the top and left.

    Raises:
        ValueError: an array is not C-contiguous float32, or shapes do not fit together.
    """
    b = bias or NO_TENSOR
    arrays = x.mu, x.var, weights.mu, weights.var, b.mu, b.var, out.mu, out.var
    call(_conv2d.forward, *arrays, stride, pad, True, get_threads(), mixed)


def backward(
    x: State,
    delta: Delta,
    weights: Tensor,
    bias: Tensor | None,
    in_delta: Delta | None,
    stride: int,
    pad: int,
    accumulate: bool,
    *,
    mixed: bool = False,
) -> None:
    """Deltas of the input, and the sums over batch and positions of which the parameter deltas are made.

        in_delta.mu  = jcb   (convolution of dm by W)
        in_delta.var = jcb^2 (convolution of ds by W^2)
        g_w[c, o, r, q] (+)= sum mu[b, y, x, c]   dm[b, y stride + r - pad, x stride + q - pad, o]
        h_w[c, o, r, q] (+)= sum mu[b, y, x, c]^2 ds[b, y stride + r - pad, x stride + q - pad, o]
        g_b (+)= sum dm      h_b (+)= sum ds

    with (mu, jcb) of x, (dm, ds) of delta, (g, h) of weights and bias. The prior factors (s for g, s^2 for h) belong
    to the parameter step. in_delta None skips the input's deltas. accumulate adds to g and h, otherwise they are
    overwritten.

    Raises:
        ValueError: an array is not C-contiguous float32, or shapes do not fit together.
    """
    b, into = bias or NO_TENSOR, in_delta or NO_DELTA
    inputs = x.mu, x.jcb, delta.mu, delta.var, weights.mu
    outputs = into.mu, into.var, weights.delta_mu_sum, weights.delta_var_sum, b.delta_mu_sum, b.delta_var_sum
    call(_conv2d.backward, *inputs, *outputs, stride, pad, True, accumulate, get_threads(), mixed)
