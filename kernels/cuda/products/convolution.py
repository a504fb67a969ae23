"""Code shared by convolutions and transposed convolutions: sizes, and products with reordered weights.

Weights of more than one tap are copied to the workspace first, with the channels last, so that neighbouring threads
read neighbouring numbers; the product writes their deltas in the public order.
"""

from pytagi_ddp.kernels.cuda.products.dispatch import multiply, plan_of
from pytagi_ddp.kernels.cuda.products.plan import Sizes, at_inputs
from pytagi_ddp.kernels.cuda.products.shapes import expect
from pytagi_ddp.kernels.cuda.products.work import i32, phase_start, taps_from
from pytagi_ddp.kernels.cuda.runtime.compile import blocks, floats, int32, kernel, optional, thread_index
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide
from pytagi_ddp.kernels.cuda.runtime.workspace import workspace
from pytagi_ddp.kernels.tensors import Array, Delta, PartialMoments, State, Tensor

THREADS = 256


@kernel(floats, optional(floats), floats, int32, int32, int32, int32, threads=THREADS)
def pack(w_mu, w_var, packed, first, pairs, channels, taps):
    """packed[first:] = (O, taps, C) of w_mu, then of w_var, both (O, C, taps); pairs: O * C, one thread each."""
    i = i32(thread_index())
    if i < pairs:
        o, c = divide(i, channels)
        for tap in range(taps):
            place = i32(first + i32(i32(i32(o * taps) + i32(tap)) * channels) + c)
            packed[place] = w_mu[i32(i32(i * taps) + i32(tap))]
            if w_var is not None:
                packed[i32(place + i32(pairs * taps))] = w_var[i32(i32(i * taps) + i32(tap))]


@kernel(floats, optional(floats), floats, int32, int32, int32, int32, threads=THREADS)
def pack_phases(w_mu, w_var, packed, first, pairs, kernel_size, stride):
    """packed[first:] = (taps, O, C) of w_mu (O, C, k, k), taps phase by phase, then of w_var: for sums at inputs."""
    i = i32(thread_index())
    if i < pairs:
        size = i32(i32(kernel_size * kernel_size) * pairs)
        taken = i32(i * i32(kernel_size * kernel_size))
        for r in range(kernel_size):
            r_step, r_first = divide(i32(r), stride)
            for q in range(kernel_size):
                q_step, q_first = divide(i32(q), stride)
                place = phase_start(r_first, q_first, kernel_size, stride)
                place = i32(place + i32(r_step * taps_from(q_first, kernel_size, stride)) + q_step)
                place = i32(first + i32(place * pairs) + i)
                packed[place] = w_mu[taken]
                if w_var is not None:
                    packed[i32(place + size)] = w_var[taken]
                taken = i32(taken + i32(1))


def multiply_packed(
    kind: int, sizes: Sizes, x: tuple, weights: tuple, finish: tuple, out: tuple, extra: int, moments: int = 0
) -> PartialMoments | None:
    """`multiply` with weights (mean, variance or None) in the public order: for sums at outputs or at inputs."""
    how, n = plan_of(kind, sizes, x[0]), weights[0].size
    scratch: Array = None
    first = _round(how.workspace)
    packs, sums = sizes.kernel_size > 1, (2 * how.columns * blocks(how.rows, how.tile.rows) if moments else 0)
    behind = first + (2 * n if packs else 0)
    if packs or moments:
        scratch = workspace(behind + sums, x[0])
    if packs:
        taps, pairs = sizes.kernel_size**2, sizes.channels_in * sizes.channels_out
        if at_inputs(kind):
            arguments = first, pairs, sizes.kernel_size, sizes.stride
            pack_phases.launch(blocks(pairs, THREADS), *weights, scratch, *arguments)
        else:
            pack.launch(blocks(pairs, THREADS), *weights, scratch, first, pairs, sizes.channels_in, taps)
        packed = scratch[first : first + n], scratch[first + n : first + 2 * n]
        weights = packed[0], (None if weights[1] is None else packed[1])
    room = scratch[behind : behind + sums] if moments else None
    return multiply(kind, sizes, x, weights, finish, out, extra, scratch, (room, moments))


def check_forward(layer: str, x: State, weights: Tensor, b: Tensor, out: State) -> None:
    """Raises ValueError if the arrays of a forward call do not fit together."""
    expect(layer, x.mu.shape, var=x.var)
    expect(layer, weights.mu.shape, w_var=weights.var)
    expect(layer, (out.mu.shape[-1],), b_mu=b.mu, b_var=b.var)
    expect(layer, out.mu.shape, out_var=out.var)


def check_backward(layer: str, x: State, delta: Delta, weights: Tensor, b: Tensor, in_delta: Delta | None) -> None:
    """Raises ValueError if the arrays of a backward call do not fit together."""
    expect(layer, x.mu.shape, jcb=x.jcb)
    expect(layer, delta.mu.shape, delta_var=delta.var)
    expect(layer, weights.mu.shape, g_w=weights.delta_mu_sum, h_w=weights.delta_var_sum)
    expect(layer, (delta.mu.shape[-1],), g_b=b.delta_mu_sum, h_b=b.delta_var_sum)
    if in_delta is not None:
        expect(layer, x.mu.shape, in_delta_mu=in_delta.mu, in_delta_var=in_delta.var)


def sizes_of(layer: str, image, w, out, stride: int, pad: int) -> Sizes:
    """Sizes of a convolution from `image` to `out`.

    Raises:
        ValueError: the weights do not fit the image and the output, or stride or pad is too small.
    """
    (batch, height, width, channels), (outputs, inputs, taps_y, taps_x) = image.shape, w.shape
    _, out_h, out_w, _ = out.shape
    if inputs != channels or taps_y != taps_x or out.shape != (batch, out_h, out_w, outputs):
        raise ValueError(f"{layer}: weights {w.shape} do not lead from images {image.shape} to {out.shape}")
    if stride < 1 or pad < 0:
        raise ValueError(f"{layer}: stride {stride} and pad {pad}; the stride is at least 1, the pad at least 0")
    return Sizes(batch, height, width, channels, out_h, out_w, outputs, taps_y, stride, pad)


def _round(size: int) -> int:
    """Rounds up to a multiple of four, because the next data are read four numbers at a time."""
    return -(-size // 4) * 4
