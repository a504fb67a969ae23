"""Transposed 2-D convolution. Same functions, arguments and formulas as `kernels.cpu.convtranspose2d`.

It is the adjoint of a convolution from its outputs to its inputs, with weights of the same shape: see `work`.
"""

from pytagi_ddp.kernels.cuda.products.columns import sum_columns
from pytagi_ddp.kernels.cuda.products.convolution import check_backward, check_forward, multiply_packed, sizes_of
from pytagi_ddp.kernels.cuda.products.dispatch import multiply
from pytagi_ddp.kernels.cuda.products.finish import ADDED, SLOPED
from pytagi_ddp.kernels.cuda.products.plan import FORWARD, KNOWN, PARAMETERS, STATE, TRANSPOSED
from pytagi_ddp.kernels.tensors import NO_TENSOR, Delta, State, Tensor

adds, gives_moments = True, False


def forward(x: State, weights: Tensor, bias: Tensor | None, out: State, stride: int, pad: int) -> None:
    """out.mu = mu * W + b and out.var = var * (W^2 + S) + mu^2 * S + s_b; see the kernels of the CPU."""
    sizes, b = sizes_of("convtranspose2d", out.mu, weights.mu, x.mu, stride, pad), bias or NO_TENSOR
    check_forward("convtranspose2d", x, weights, b, out)
    kind = TRANSPOSED + (KNOWN if x.var is None else FORWARD)
    multiply_packed(kind, sizes, x[:2], weights[:2], b[:2], out[:2], bias is not None)


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
    added: bool = False,
) -> None:
    """Deltas of the input (if `added`, added to `in_delta`), and batch sums of the parameters; see `kernels.cpu`."""
    sizes, b = sizes_of("convtranspose2d", delta.mu, weights.mu, x.mu, stride, pad), bias or NO_TENSOR
    check_backward("convtranspose2d", x, delta, weights, b, in_delta)
    if in_delta is not None:
        w, jcb = (weights.mu, None), (x.jcb, None)
        extra = (0 if x.jcb is None else SLOPED) | (ADDED if added else 0)
        multiply_packed(TRANSPOSED + STATE, sizes, delta[:2], w, jcb, in_delta[:2], extra)
    no_bias = (None, None)  # bias sums run over the image, not over the positions of windows
    multiply(TRANSPOSED + PARAMETERS, sizes, delta[:2], (x.mu, None), no_bias, weights[2:], accumulate)
    if bias is not None:
        sum_columns(delta, bias, accumulate)
