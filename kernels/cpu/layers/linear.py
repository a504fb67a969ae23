"""Dense layer: moments forward, deltas backward.

All arrays are C-contiguous float32: inputs (batch, inputs), outputs (batch, outputs), weights (outputs, inputs),
biases (outputs). Source: Goulet, Nguyen & Amiri 2021, "Tractable approximate Gaussian inference for Bayesian neural
networks", JMLR 22.

`mixed` rounds the factors of products for variances to bfloat16 (8 bits of mantissa: 0.4 %), with sums in float32;
products for means stay float32. Without avx512_bf16 instructions of the CPU it raises RuntimeError.
"""

from pytagi_ddp.kernels.cpu.runtime.extension import load
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads
from pytagi_ddp.kernels.tensors import NO_DELTA, NO_TENSOR, Delta, State, Tensor

_linear = load("layers._linear")
why_not_mixed = load("products._blas").why_not_mixed  # () -> the reason why `mixed` cannot be used, or None


def forward(x: State, weights: Tensor, bias: Tensor | None, out: State, *, mixed: bool = False) -> None:
    """out.mu = mu W^T + b and out.var = var (W^2 + S)^T + mu^2 S^T + s_b, with W = weights.mu, S = weights.var.

    (mu, var): of x; without a variance the input is deterministic.
    """
    b = bias or NO_TENSOR
    _linear.forward(x.mu, x.var, weights.mu, weights.var, b.mu, b.var, out.mu, out.var, get_threads(), mixed)


def backward(
    x: State,
    delta: Delta,
    weights: Tensor,
    bias: Tensor | None,
    in_delta: Delta | None,
    accumulate: bool,
    *,
    mixed: bool = False,
) -> None:
    """Deltas of the input, and the batch sums for the parameter deltas: g and h of weights and bias.

        in_delta.mu = jcb   (dm W)                  in_delta.var = jcb^2 (ds W^2)
        g_w[o, i] (+)= sum_b dm[b, o] mu[b, i]      g_b (+)= sum_b dm
        h_w[o, i] (+)= sum_b ds[b, o] mu[b, i]^2    h_b (+)= sum_b ds

    with (mu, jcb) of x and (dm, ds) of delta. The parameter step applies the factors s (for g) and s^2 (for h).
    in_delta: None skips the deltas of the input. accumulate: adds to g and h instead of overwriting them.
    """
    b, into = bias or NO_TENSOR, in_delta or NO_DELTA
    inputs = x.mu, x.jcb, delta.mu, delta.var, weights.mu
    outputs = into.mu, into.var, weights.delta_mu_sum, weights.delta_var_sum, b.delta_mu_sum, b.delta_var_sum
    _linear.backward(*inputs, *outputs, accumulate, get_threads(), mixed)
