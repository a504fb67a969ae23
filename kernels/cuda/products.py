"""Which kernel makes a product, in how many blocks and parts; and the order of the launches.

| allow_tf32 | compute capability | size of the product              | path                              |
|------------|--------------------|----------------------------------|-----------------------------------|
| any        | any                | small: see `_cost`               | float32, blocks of 32 x 32        |
| False      | any                | else                             | float32, blocks of 128 x 64       |
| True       | below 8.0          | else                             | float32, blocks of 128 x 64       |
| True       | 8.0 and later      | else                             | TF32 mma.sync, blocks of 128 x 64 |

A product with few blocks is cut along its sum into parts that go to the workspace and are added in a fixed order.
Blocks and parts depend on the sizes alone: a result has the same bits on every run and, in float32, on every GPU.
cuBLAS is not among the paths: it would need x^2, w^2 + s and the unfolded images in memory, three passes over each.
"""

from functools import cache
from typing import NamedTuple

from pytagi_ddp import cuda as options
from pytagi_ddp.kernels.cuda import product_fp32, product_tf32
from pytagi_ddp.kernels.cuda.array import SIMULATOR, compute_capability, device_of, workspace
from pytagi_ddp.kernels.cuda.compile import Kernel, blocks
from pytagi_ddp.kernels.cuda.finish import THREADS, sum_forward, sum_parameters, sum_state
from pytagi_ddp.kernels.cuda.product_fp32 import DEPTH, Tile
from pytagi_ddp.kernels.cuda.product_tf32 import WarpTile
from pytagi_ddp.kernels.cuda.work import FORWARD, KNOWN, PARAMETERS, STATE

LARGE, SMALL = Tile(128, 64, 8, 8), Tile(32, 32, 4, 4)
FULL = {LARGE: 264, SMALL: 1056}  # blocks that fill a GPU of 132 multiprocessors
EFFICIENCY = {LARGE: 1.0, SMALL: 0.6}  # share of multiplications in the instructions, against the large tile
if SIMULATOR:  # where time goes by the thread, and padding counts
    TINY = Tile(8, 8, 4, 4)
    FULL, EFFICIENCY = {TINY: 16}, {TINY: 1.0}
MIN_PART = 64  # terms below which cutting a sum costs more than it gains

_NAMES = {FORWARD: "forward", KNOWN: "known", STATE: "state", PARAMETERS: "parameters"}
FP32 = {
    (kind, tile): product_fp32.make_product(kind, tile, f"{name}_fp32_{tile.rows}x{tile.columns}")
    for kind, name in _NAMES.items()
    for tile in dict.fromkeys((LARGE, SMALL, *FULL))
}
TF32 = {
    (kind, LARGE): product_tf32.make_product(kind, WarpTile(128, 64, 64, 32), f"{name}_tf32_128x64")
    for kind, name in _NAMES.items()
}


class Sizes(NamedTuple):
    """A layer: images of height x width pixels in and out, seen through kernel_size^2 taps."""

    batch: int
    image_h: int
    image_w: int
    channels_in: int
    out_h: int
    out_w: int
    channels_out: int
    kernel_size: int
    stride: int
    pad: int

    @classmethod
    def dense(cls, batch: int, inputs: int, outputs: int) -> "Sizes":
        """One tap over one image of one row, `batch` pixels wide."""
        return cls(1, 1, batch, inputs, 1, batch, outputs, 1, 1, 0)


class Plan(NamedTuple):
    """How a product is made: by tiles, as `parts` sums of `part` terms each; `results`: means, and as many variances.

    ones: with a row for the biases; workspace: float32 that it needs.
    """

    tile: Tile
    grid: tuple[int, int]
    rows: int
    columns: int
    parts: int
    part: int
    ones: bool
    results: int
    workspace: int


@cache
def plan(kind: int, sizes: Sizes, ones: bool = False) -> Plan:
    """The way to make a product of this kind; ones: with a row for the biases.

    Raises:
        ValueError: an array would have 2^31 elements or more.
    """
    s, phases = sizes, 1
    taps = s.kernel_size**2
    positions_in, positions_out = s.batch * s.image_h * s.image_w, s.batch * s.out_h * s.out_w
    if max(positions_in * s.channels_in, positions_out * s.channels_out, taps * s.channels_in * s.channels_out) >> 31:
        raise ValueError(f"a layer of {s} has an array of 2^31 elements or more: use a smaller batch")
    rows, columns, depth = positions_out, s.channels_out, taps * s.channels_in
    results = rows * columns
    if kind == PARAMETERS:
        rows, depth = depth + ones, positions_out
        results = rows * columns
    elif kind == STATE:
        phases = s.stride**2
        rows = s.batch * _ceil(s.image_h, s.stride) * _ceil(s.image_w, s.stride)
        columns, depth = s.channels_in, _ceil(s.kernel_size, s.stride) ** 2 * s.channels_out
        results = positions_in * columns
    tile = min(FULL, key=lambda tile: _cost(tile, rows, columns, depth, phases))
    tiles = _ceil(rows, tile.rows) * _ceil(columns, tile.columns)
    parts = max(1, min(FULL[tile] // max(1, tiles * phases), depth // MIN_PART))
    part = _ceil(_ceil(depth, parts), DEPTH) * DEPTH
    parts = max(1, _ceil(depth, part))
    workspace = parts * 2 * results if parts > 1 else 0
    return Plan(tile, (tiles, phases * parts), rows, columns, parts, part, ones, results, workspace)


def _cost(tile: Tile, rows: int, columns: int, depth: int, phases: int) -> float:
    """Time in arbitrary units: work with its padding, over the share of the GPU that the blocks can fill."""
    tiles = _ceil(rows, tile.rows) * _ceil(columns, tile.columns) * phases
    share = min(1.0, max(1, tiles) * max(1, depth // MIN_PART) / FULL[tile])
    return tiles * tile.rows * tile.columns / EFFICIENCY[tile] / share


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@cache
def _has_tensor_cores(device: int) -> bool:
    return compute_capability(device) >= (8, 0)


def tensor_cores(like) -> bool:
    """Whether products on the GPU of `like` may use them."""
    return options.allow_tf32 and _has_tensor_cores(device_of(like))


def kernel_of(kind: int, tile: Tile, tensor_cores: bool) -> Kernel:
    """The kernel of a plan's tile."""
    return (TF32.get((kind, tile)) if tensor_cores else None) or FP32[kind, tile]


def aligned(*arrays) -> bool:
    """Whether every array begins at a multiple of 16 bytes (None counts as such)."""
    return SIMULATOR or all(a is None or a.data.ptr % 16 == 0 for a in arrays)


def multiply(
    kind: int, sizes: Sizes, image: tuple, matrix: tuple, finish: tuple, out: tuple, extra: bool, scratch=None
) -> None:
    """One product of `work`, both moments.

    Args:
        image, matrix: (mean, variance or None) of the operands.
        finish: FORWARD, KNOWN: (b_mu, b_var); STATE: (jcb, None); PARAMETERS: (g_b, h_b); or (None, None).
        out: (mean, variance).
        extra: add the biases; multiply by the Jacobian; add to `out`.
        scratch: at least `plan(...).workspace` float32; without it the common workspace serves.
    """
    how = plan(kind, sizes, kind == PARAMETERS and finish[0] is not None)
    if how.rows == 0 or how.columns == 0:
        return
    along_x = sizes.channels_out if kind == STATE else sizes.channels_in
    along_w = sizes.channels_in * sizes.kernel_size**2 if kind in (FORWARD, KNOWN) else how.columns
    wide_x = along_x % 4 == 0 and aligned(*image)
    wide_w = along_w % 4 == 0 and aligned(*matrix)
    operands = [image[0] if a is None else a for a in (*image, *matrix, *finish)]
    target = out
    if how.parts > 1:
        scratch = workspace(how.workspace, out[0]) if scratch is None else scratch
        target = (scratch, scratch)
    kernel = kernel_of(kind, how.tile, tensor_cores(image[0]))
    kernel.launch(how.grid, *operands, *target, *sizes, how.parts, how.part, wide_x, wide_w, extra, how.ones)
    if how.parts == 1:
        return
    grid, head = blocks(how.results, THREADS), (scratch, how.results, how.parts)
    if kind == STATE:
        sum_state.launch(grid, *head, extra, operands[4], *out)
    elif kind == PARAMETERS:
        taps, channels = sizes.kernel_size**2, sizes.channels_in
        sum_parameters.launch(grid, *head, how.rows, taps, channels, extra, *operands[4:], *out)
    else:
        sum_forward.launch(grid, *head, how.columns, extra, *operands[4:], *out)
