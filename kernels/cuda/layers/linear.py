"""Dense layer: moments forward, deltas backward. Same functions, arguments and formulas as `kernels.cpu.linear`."""

from pytagi_ddp.kernels.cuda.products.dispatch import multiply
from pytagi_ddp.kernels.cuda.products.plan import FORWARD, KNOWN, PARAMETERS, STATE, Sizes
from pytagi_ddp.kernels.cuda.products.shapes import expect
from pytagi_ddp.kernels.tensors import NO_TENSOR, Delta, State, Tensor


def forward(x: State, weights: Tensor, bias: Tensor | None, out: State) -> None:
    """out.mu = mu W^T + b and out.var = var (W^2 + S)^T + mu^2 S^T + s_b; see `kernels.cpu.linear.forward`."""
    (batch, inputs), outputs, b = x.mu.shape, weights.mu.shape[0], bias or NO_TENSOR
    expect("linear", (batch, inputs), var=x.var)
    expect("linear", (outputs, inputs), w_mu=weights.mu, w_var=weights.var)
    expect("linear", (outputs,), b_mu=b.mu, b_var=b.var)
    expect("linear", (batch, outputs), out_mu=out.mu, out_var=out.var)
    kind, sizes = (KNOWN if x.var is None else FORWARD), Sizes.dense(batch, inputs, outputs)
    multiply(kind, sizes, x[:2], weights[:2], b[:2], out[:2], extra=bias is not None)


def backward(
    x: State, delta: Delta, weights: Tensor, bias: Tensor | None, in_delta: Delta | None, accumulate: bool
) -> None:
    """Deltas of the input, and the batch sums of the parameters; see `kernels.cpu.linear.backward`."""
    (batch, inputs), outputs, b = x.mu.shape, weights.mu.shape[0], bias or NO_TENSOR
    expect("linear", (batch, inputs), jcb=x.jcb)
    expect("linear", (batch, outputs), delta_mu=delta.mu, delta_var=delta.var)
    expect("linear", (outputs, inputs), w_mu=weights.mu, g_w=weights.delta_mu_sum, h_w=weights.delta_var_sum)
    expect("linear", (outputs,), g_b=b.delta_mu_sum, h_b=b.delta_var_sum)
    sizes = Sizes.dense(batch, inputs, outputs)
    if in_delta is not None:
        expect("linear", (batch, inputs), in_delta_mu=in_delta.mu, in_delta_var=in_delta.var)
        multiply(STATE, sizes, delta[:2], (weights.mu, None), (x.jcb, None), in_delta[:2], extra=x.jcb is not None)
    multiply(PARAMETERS, sizes, (x.mu, None), delta[:2], b[2:], weights[2:], extra=accumulate)
