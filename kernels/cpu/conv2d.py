"""2-D convolution: moments forward, deltas backward; the algebra of a dense layer with shared weights.

All arrays are C-contiguous float32. Images are channels-last: input (batch, H, W, C), output (batch, Ho, Wo, O);
weights (O, C, k, k), biases (O). Output (o, y, x) reads input pixels (y stride + r - pad, x stride + q - pad);
taps outside the image contribute 0, so padding at the right and bottom follows from Ho and Wo. `var` and every
`*_var` are variances. Kernels of 3 x 3 with stride 1 and pad 1, over an even number of lines and columns and multiples
of 16 channels, are multiplied in the Winograd form (see _winograd.pyx) unless the batch is tiny: results then differ
from the plain sums by rounding errors, about 1e-6 of the largest. Source: Goulet, Nguyen & Amiri 2021, "Tractable
approximate Gaussian inference for Bayesian neural networks", JMLR 22.

`mixed` is that of a dense layer: see linear.py.
"""

import numpy as np

from pytagi_ddp.kernels.cpu.extension import load
from pytagi_ddp.kernels.cpu.threads import get_threads

_conv2d = load("_conv2d")
call = load("_replay").call


def forward(
    mu: np.ndarray,
    var: np.ndarray | None,
    w_mu: np.ndarray,
    w_var: np.ndarray,
    b_mu: np.ndarray | None,
    b_var: np.ndarray | None,
    out_mu: np.ndarray,
    out_var: np.ndarray,
    stride: int,
    pad: int,
    *,
    mixed: bool = False,
) -> None:
    """out_mu = mu * W + b and out_var = var * (W^2 + S) + mu^2 * S + s_b, with W = w_mu, S = w_var, * a convolution.

    var None means a deterministic input; b_mu and b_var None mean no bias. pad: rows and columns of zeros at the top
    and left.

    Raises:
        ValueError: an array is not C-contiguous float32, or shapes do not fit together.
    """
    call(_conv2d.forward, mu, var, w_mu, w_var, b_mu, b_var, out_mu, out_var, stride, pad, get_threads(), mixed)


def backward(
    mu: np.ndarray,
    jcb: np.ndarray | None,
    delta_mu: np.ndarray,
    delta_var: np.ndarray,
    w_mu: np.ndarray,
    in_delta_mu: np.ndarray | None,
    in_delta_var: np.ndarray | None,
    g_w: np.ndarray,
    h_w: np.ndarray,
    g_b: np.ndarray | None,
    h_b: np.ndarray | None,
    stride: int,
    pad: int,
    accumulate: bool,
    *,
    mixed: bool = False,
) -> None:
    """Deltas of the input, and the sums over batch and positions of which the parameter deltas are made.

        in_delta_mu  = jcb   (adjoint of the convolution by W, of delta_mu)
        in_delta_var = jcb^2 (adjoint of the convolution by W^2, of delta_var)
        g_w[o, c, r, q] (+)= sum delta_mu[b, y, x, o]  mu[b, y stride + r - pad, x stride + q - pad, c]
        h_w[o, c, r, q] (+)= sum delta_var[b, y, x, o] mu[b, y stride + r - pad, x stride + q - pad, c]^2
        g_b (+)= sum delta_mu      h_b (+)= sum delta_var

    The prior factors (s for g, s^2 for h) belong to the parameter step. jcb None means 1; in_delta_* None skips the
    input's deltas. accumulate adds to g and h, otherwise they are overwritten.

    Raises:
        ValueError: an array is not C-contiguous float32, or shapes do not fit together.
    """
    call(
        _conv2d.backward,
        mu,
        jcb,
        delta_mu,
        delta_var,
        w_mu,
        in_delta_mu,
        in_delta_var,
        g_w,
        h_w,
        g_b,
        h_b,
        stride,
        pad,
        accumulate,
        get_threads(),
        mixed,
    )
