"""2-D convolution: moments forward, deltas backward. Same functions, arguments and formulas as `kernels.cpu.conv2d`.

Implicit GEMM: a tile is read directly from the pixels of the channels-last image that the taps cover, so no unfolded
image is written to memory.
"""

from pytagi_ddp.kernels.cuda.products.convolution import check_backward, check_forward, multiply_packed, sizes_of
from pytagi_ddp.kernels.cuda.products.dispatch import multiply
from pytagi_ddp.kernels.cuda.products.finish import ADDED, SLOPED
from pytagi_ddp.kernels.cuda.products.fused_activation import TAKEN
from pytagi_ddp.kernels.cuda.products.plan import FORWARD, KNOWN, PARAMETERS, STATE
from pytagi_ddp.kernels.tensors import NO_TENSOR, Delta, PartialMoments, State, Tensor

adds = gives_moments = True


def forward(
    x: State,
    weights: Tensor,
    bias: Tensor | None,
    out: State,
    stride: int,
    pad: int,
    *,
    moments: str | None = None,
) -> PartialMoments | None:
    """out.mu = mu * W + b and out.var = var * (W^2 + S) + mu^2 * S + s_b; see `kernels.cpu.conv2d.forward`.

    moments: name of an activation, or "": also returns the moments of the activated outputs, if that needs no other
    launch.
    """
    sizes, b = sizes_of("conv2d", x.mu, weights.mu, out.mu, stride, pad), bias or NO_TENSOR
    check_forward("conv2d", x, weights, b, out)
    kind = KNOWN if x.var is None else FORWARD
    which = 0 if moments is None else 1 + TAKEN[moments]
    return multiply_packed(kind, sizes, x[:2], weights[:2], b[:2], out[:2], bias is not None, which)


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
    sizes, b = sizes_of("conv2d", x.mu, weights.mu, delta.mu, stride, pad), bias or NO_TENSOR
    check_backward("conv2d", x, delta, weights, b, in_delta)
    if in_delta is not None:
        w, jcb = (weights.mu, None), (x.jcb, None)
        extra = (0 if x.jcb is None else SLOPED) | (ADDED if added else 0)
        multiply_packed(STATE, sizes, delta[:2], w, jcb, in_delta[:2], extra)
    multiply(PARAMETERS, sizes, (x.mu, None), delta[:2], b[2:], weights[2:], accumulate)
