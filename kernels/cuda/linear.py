"""Dense layer: moments forward, deltas backward. Same functions, arguments and formulas as `kernels.cpu.linear`."""

from pytagi_ddp.kernels.cuda.plan import FORWARD, KNOWN, PARAMETERS, STATE, Sizes
from pytagi_ddp.kernels.cuda.products import multiply
from pytagi_ddp.kernels.cuda.shapes import expect


def forward(mu, var, w_mu, w_var, b_mu, b_var, out_mu, out_var) -> None:
    """out_mu = mu W^T + b and out_var = var (W^2 + S)^T + mu^2 S^T + s_b; see `kernels.cpu.linear.forward`.

    Raises:
        ValueError: an array is not C-contiguous float32, or shapes do not fit together.
    """
    (batch, inputs), outputs = mu.shape, w_mu.shape[0]
    expect("linear", (batch, inputs), var=var)
    expect("linear", (outputs, inputs), w_mu=w_mu, w_var=w_var)
    expect("linear", (outputs,), b_mu=b_mu, b_var=b_var)
    expect("linear", (batch, outputs), out_mu=out_mu, out_var=out_var)
    kind, sizes = (KNOWN if var is None else FORWARD), Sizes.dense(batch, inputs, outputs)
    multiply(kind, sizes, (mu, var), (w_mu, w_var), (b_mu, b_var), (out_mu, out_var), extra=b_mu is not None)


def backward(
    mu, jcb, delta_mu, delta_var, w_mu, in_delta_mu, in_delta_var, g_w, h_w, g_b, h_b, accumulate: bool
) -> None:
    """Deltas of the input, and the batch sums of the parameters; see `kernels.cpu.linear.backward`.

    Raises:
        ValueError: an array is not C-contiguous float32, or shapes do not fit together.
    """
    (batch, inputs), outputs = mu.shape, w_mu.shape[0]
    expect("linear", (batch, inputs), jcb=jcb, in_delta_mu=in_delta_mu, in_delta_var=in_delta_var)
    expect("linear", (batch, outputs), delta_mu=delta_mu, delta_var=delta_var)
    expect("linear", (outputs, inputs), w_mu=w_mu, g_w=g_w, h_w=h_w)
    expect("linear", (outputs,), g_b=g_b, h_b=h_b)
    sizes, deltas = Sizes.dense(batch, inputs, outputs), (delta_mu, delta_var)
    if in_delta_mu is not None:
        out = in_delta_mu, in_delta_var
        multiply(STATE, sizes, deltas, (w_mu, None), (jcb, None), out, extra=jcb is not None)
    multiply(PARAMETERS, sizes, (mu, None), deltas, (g_b, h_b), (g_w, h_w), extra=accumulate)
