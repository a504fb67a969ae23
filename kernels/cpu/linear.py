"""Dense layer: moments forward, deltas backward.

All arrays are C-contiguous float32: activations (batch, inputs), outputs (batch, outputs), weights
(outputs, inputs), biases (outputs). `var` and every `*_var` are variances. Source: Goulet, Nguyen & Amiri 2021,
"Tractable approximate Gaussian inference for Bayesian neural networks", JMLR 22.

`mixed` rounds the factors of the products that make variances to bfloat16 (8 bits of mantissa: 0.4 %), and adds up in
float32; what makes means stays float32. It needs a CPU with avx512_bf16 instructions, or RuntimeError says so.
"""

import numpy as np

from pytagi_ddp.kernels.cpu.extension import load
from pytagi_ddp.kernels.cpu.threads import get_threads

_linear = load("_linear")
why_not_mixed = load("_blas").why_not_mixed  # () -> what is missing for `mixed`, or None


def forward(
    mu: np.ndarray,
    var: np.ndarray | None,
    w_mu: np.ndarray,
    w_var: np.ndarray,
    b_mu: np.ndarray | None,
    b_var: np.ndarray | None,
    out_mu: np.ndarray,
    out_var: np.ndarray,
    *,
    mixed: bool = False,
) -> None:
    """out_mu = mu W^T + b and out_var = var (W^2 + S)^T + mu^2 S^T + s_b, with W = w_mu, S = w_var.

    var None means a deterministic input; b_mu and b_var None mean no bias.

    Raises:
        ValueError: an array is not C-contiguous float32, or shapes do not fit together.
    """
    _linear.forward(mu, var, w_mu, w_var, b_mu, b_var, out_mu, out_var, get_threads(), mixed)


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
    accumulate: bool,
    *,
    mixed: bool = False,
) -> None:
    """Deltas of the input, and the batch sums of which the parameter deltas are made.

        in_delta_mu  = jcb   (delta_mu W)          in_delta_var = jcb^2 (delta_var W^2)
        g_w[o, i] (+)= sum_b delta_mu[b, o] mu[b, i]      g_b (+)= sum_b delta_mu
        h_w[o, i] (+)= sum_b delta_var[b, o] mu[b, i]^2   h_b (+)= sum_b delta_var

    The prior factors (s for g, s^2 for h) belong to the parameter step. jcb None means 1; in_delta_* None skips the
    input's deltas. accumulate adds to g and h, otherwise they are overwritten.

    Raises:
        ValueError: an array is not C-contiguous float32, or shapes do not fit together.
    """
    inputs = mu, jcb, delta_mu, delta_var, w_mu
    outputs = in_delta_mu, in_delta_var, g_w, h_w, g_b, h_b
    _linear.backward(*inputs, *outputs, accumulate, get_threads(), mixed)
