"""2-D convolution: moments forward, deltas backward; the algebra of a dense layer with shared weights.

All arrays are C-contiguous float32. Images are channels-last: input (batch, H, W, C), output (batch, Ho, Wo, O);
weights (O, C, k, k), biases (O). Output (o, y, x) reads input pixels (y stride + r - pad, x stride + q - pad);
taps outside the image contribute 0, so padding at the right and bottom follows from Ho and Wo. Kernels of 3 x 3 and 5 x
5 with stride 1, and of 3 x 3 and 4 x 4 with stride 2, between multiples of 16 channels, use Winograd algorithms (see
_winograd.pyx) unless the batch is tiny: results then differ from the plain sums by rounding errors, about 1e-6 of the
largest. Source: Goulet, Nguyen & Amiri 2021, "Tractable approximate Gaussian inference for Bayesian neural networks",
JMLR 22.

`mixed` means the same as in linear.py; for `transposed` see convtranspose2d.py.
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
    transposed: bool = False,
) -> None:
    """out.mu = mu * W + b and out.var = var * (W^2 + S) + mu^2 * S + s_b; W = weights.mu, S = weights.var, * convolves.

    (mu, var): of x; without a variance the input is deterministic. pad: rows and columns of zeros at the top and left.
    """
    b = bias or NO_TENSOR
    arrays = x.mu, x.var, weights.mu, weights.var, b.mu, b.var, out.mu, out.var
    call(_conv2d.forward, *arrays, stride, pad, transposed, get_threads(), mixed)


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
    transposed: bool = False,
) -> None:
    """Deltas of the input, and the sums over batch and positions for the parameter deltas.

        in_delta.mu  = jcb   (adjoint of the convolution by W, of dm)
        in_delta.var = jcb^2 (adjoint of the convolution by W^2, of ds)
        g_w[o, c, r, q] (+)= sum dm[b, y, x, o] mu[b, y stride + r - pad, x stride + q - pad, c]
        h_w[o, c, r, q] (+)= sum ds[b, y, x, o] mu[b, y stride + r - pad, x stride + q - pad, c]^2
        g_b (+)= sum dm      h_b (+)= sum ds

    with (mu, jcb) of x, (dm, ds) of delta, (g, h) of weights and bias. The parameter step applies the factors s (for g)
    and s^2 (for h). in_delta: None skips the deltas of the input. accumulate: adds to g and h instead of overwriting
    them.
    """
    b, into = bias or NO_TENSOR, in_delta or NO_DELTA
    inputs = x.mu, x.jcb, delta.mu, delta.var, weights.mu
    outputs = into.mu, into.var, weights.delta_mu_sum, weights.delta_var_sum, b.delta_mu_sum, b.delta_var_sum
    call(_conv2d.backward, *inputs, *outputs, stride, pad, transposed, accumulate, get_threads(), mixed)
