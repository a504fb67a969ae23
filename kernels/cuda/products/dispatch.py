"""The choice of the kernel for a product, and the order of launches.

| allow_tf32 | compute capability | tile, by the estimate of `plan` | path             |
|------------|--------------------|---------------------------------|------------------|
| any        | any                | 32 x 32                         | float32          |
| any        | any                | 8 x 64, 64 x 8; not transposed  | float32          |
| False      | any                | 128 x 64                        | float32          |
| True       | below 8.0          | 128 x 64                        | float32          |
| True       | 8.0 and later      | 128 x 64                        | TF32, `mma.sync` |

cuBLAS is not used: it would need x^2, w^2 + s and the unfolded images in memory, three passes over each.
"""

from functools import cache

from pytagi_ddp import cuda as options
from pytagi_ddp.kernels.cuda.products import product_fp32, product_tf32
from pytagi_ddp.kernels.cuda.products.finish import THREADS, makes_moments, sum_forward, sum_parameters, sum_state
from pytagi_ddp.kernels.cuda.products.plan import (
    FORWARD,
    KNOWN,
    PARAMETERS,
    STATE,
    TRANSPOSED,
    Plan,
    Sizes,
    Speed,
    Tile,
    at_inputs,
    at_weights,
    plan,
)
from pytagi_ddp.kernels.cuda.products.product_tf32 import WarpTile
from pytagi_ddp.kernels.cuda.runtime.array import compute_capability, device_of
from pytagi_ddp.kernels.cuda.runtime.compile import Kernel, blocks
from pytagi_ddp.kernels.cuda.runtime.workspace import workspace
from pytagi_ddp.kernels.tensors import PartialMoments

LARGE, SMALL = Tile(128, 64, 8, 8), Tile(32, 32, 4, 4)
WIDE, TALL = NARROW = Tile(8, 64, 4, 4), Tile(64, 8, 4, 4)  # one warp each: for few rows, for few columns
# Blocks on 132 multiprocessors; terms per instruction, including loads, relative to the large float32 tile.
SPEEDS = {LARGE: Speed(264, 1.0), SMALL: Speed(1056, 0.7), WIDE: Speed(2112, 0.6), TALL: Speed(2112, 0.6)}
TF32_SPEEDS = SPEEDS | {LARGE: Speed(264, 3.0)}

_NAMES = {FORWARD: "forward", KNOWN: "known", STATE: "state", PARAMETERS: "parameters"}
_NAMES |= {kind + TRANSPOSED: f"transposed_{name}" for kind, name in _NAMES.items()}
FP32 = {
    (kind, tile): product_fp32.make_product(kind, tile, f"{name}_fp32_{tile.rows}x{tile.columns}")
    for kind, name in _NAMES.items()
    for tile in (LARGE, SMALL, *NARROW)
    if kind < TRANSPOSED or tile not in NARROW
}
TF32 = {
    (kind, LARGE): product_tf32.make_product(kind, WarpTile(128, 64, 64, 32), f"{name}_tf32_128x64")
    for kind, name in _NAMES.items()
}


@cache
def _has_tensor_cores(device: int) -> bool:
    return compute_capability(device) >= (8, 0)


def tensor_cores(like) -> bool:
    """Whether products on the GPU of `like` may use them."""
    return options.allow_tf32 and _has_tensor_cores(device_of(like))


def plan_of(kind: int, sizes: Sizes, like, ones: bool = False) -> Plan:
    """The plan of a product on the GPU of `like`; see `plan`."""
    speeds = TF32_SPEEDS if tensor_cores(like) else SPEEDS
    return plan(kind, sizes, tuple(way for way in speeds.items() if kind < TRANSPOSED or way[0] not in NARROW), ones)


def kernel_of(kind: int, tile: Tile, tensor_cores: bool) -> Kernel:
    """The kernel of a plan's tile."""
    return (TF32.get((kind, tile)) if tensor_cores else None) or FP32[kind, tile]


def aligned(*arrays) -> bool:
    """Whether every array begins at a multiple of 16 bytes (None counts as such)."""
    return all(a is None or a.data.ptr % 16 == 0 for a in arrays)


def multiply(
    kind: int,
    sizes: Sizes,
    image: tuple,
    matrix: tuple,
    finish: tuple,
    out: tuple,
    extra: int,
    scratch=None,
    moments: tuple = (None, 0),
) -> PartialMoments | None:
    """One product of `work`, both moments.

    Args:
        kind: see `work`. sizes: of the layer; of a transposed one, those of the convolution whose adjoint it is.
        image, matrix: (mean, variance or None) of the operands.
        finish: FORWARD, KNOWN: (b_mu, b_var); STATE: (jcb, None); PARAMETERS: (g_b, h_b); or (None, None).
        out: (mean, variance).
        extra: FORWARD, KNOWN: add the biases; STATE: see `finish_state`; PARAMETERS: add to what is stored.
        moments: memory for moments of the activated results, and 1 + number of the activation; see `makes_moments`.
            They are returned if they were computed; a split product does not compute them.
        scratch: at least `plan_of(...).workspace` float32; None: the common workspace.
    """
    how = plan_of(kind, sizes, image[0], kind == PARAMETERS and finish[0] is not None)
    if how.rows == 0 or how.columns == 0:
        return None
    made = moments[1] > 0 and how.parts == 1 and makes_moments(kind)
    along_x = sizes.channels_out if at_inputs(kind) else sizes.channels_in
    at_outputs = not (at_inputs(kind) or at_weights(kind))
    along_w = sizes.channels_in * sizes.kernel_size**2 if at_outputs else how.columns
    wide_x = along_x % 4 == 0 and aligned(*image)
    wide_w = along_w % 4 == 0 and aligned(*matrix)
    operands = [image[0] if a is None else a for a in (*image, *matrix, *finish)]
    target = out
    if how.parts > 1:
        scratch = workspace(how.workspace, out[0]) if scratch is None else scratch
        target = (scratch, scratch)
    kernel = kernel_of(kind, how.tile, tensor_cores(image[0]))
    partial, which = moments if made else (image[0], 0)
    flags = wide_x, wide_w, extra, how.ones, which
    kernel.launch(how.grid, *operands, *target, partial, *sizes, how.parts, how.part, *flags)
    if how.parts == 1:
        return PartialMoments(partial, how.tile.rows) if made else None
    grid, head = blocks(how.results, THREADS), (scratch, how.results, how.parts)
    if kind % TRANSPOSED == STATE:
        sum_state.launch(grid, *head, extra, operands[4], *out)
    elif at_weights(kind):
        taps, channels = sizes.kernel_size**2, sizes.channels_in
        sum_parameters.launch(grid, *head, how.rows, taps, channels, extra, *operands[4:], *out)
    else:
        sum_forward.launch(grid, *head, how.columns, extra, *operands[4:], *out)
    return None
