"""The choice of tile, number of blocks and number of parts of a product.

The unit of the estimated time is one term (of both moments) on a fully used GPU. The estimate counts waves of blocks,
and the padding of tiles. Products of few rows or columns (a small batch, a layer of few units) may use narrow tiles,
see `_serves`. Products with few blocks, or with an almost empty last wave, are split along their sum: the parts are
written to a bounded workspace and added in a fixed order. The choice depends only on the sizes and the path (see
`products`): a result has the same bits in every run and, in float32, on every GPU.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

FORWARD, KNOWN, STATE, PARAMETERS = range(4)  # kinds of product: see `work`
TRANSPOSED = 4  # added to a kind: the product of a transposed convolution
NARROW, FEW = 32, 16  # tiles of fewer than `NARROW` rows (columns) are for products of at most `FEW`
DEPTH = 8  # terms of a tile, and of one mma of TF32
MIN_PART = 64  # terms of the shortest part
WORKSPACE = 1 << 24  # largest workspace for all parts, in float32 numbers: 64 MB
# Measures of an H100: 8e12 terms (2 or 3 multiplications each) a second in float32, 3e12 bytes a second.
TRAFFIC = 16 * 8 / 3  # terms in the time of writing and reading both moments of a part
LAUNCH = 2e7  # terms in the time of one more kernel
MULTIPROCESSORS = 132
LATENCY = 0.2  # fixed time of a wave, relative to the remaining time of a full wave


def at_inputs(kind: int) -> bool:
    """Whether the sums of a kind of product are those at the inputs of a convolution."""
    return kind in (STATE, FORWARD + TRANSPOSED, KNOWN + TRANSPOSED)


def at_weights(kind: int) -> bool:
    """Whether the sums are those of the weights. If neither this nor `at_inputs`, they are those at the outputs."""
    return kind % TRANSPOSED == PARAMETERS


def uncertain(kind: int) -> tuple[bool, bool]:
    """Whether the image operand and the matrix operand of a kind of product have variances."""
    image = kind % TRANSPOSED in (FORWARD, STATE) or kind == PARAMETERS + TRANSPOSED
    return image, not (kind % TRANSPOSED == STATE or kind == PARAMETERS + TRANSPOSED)


class Tile(NamedTuple):
    """Rows and columns of a block, and of one of its threads (multiples of four)."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int

    @property
    def threads(self) -> int:
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)


class Speed(NamedTuple):
    """Number of blocks that fill the GPU, and its speed then, relative to the float32 tile of 128 x 64."""

    full: int
    efficiency: float


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
    """How a product is computed: by tiles, as `parts` sums of `part` terms each.

    results: number of means, and of variances; ones: whether there is a row for the biases; workspace: its size in
    float32 numbers.
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
def plan(kind: int, sizes: Sizes, speeds: tuple[tuple[Tile, Speed], ...], ones: bool = False) -> Plan:
    """The fastest plan by the estimate above.

    Args:
        kind: see `work`.
        speeds: the tiles to choose from.
        ones: whether there is a row for the biases.

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
    if at_weights(kind):
        rows, depth = depth + ones, positions_out
        results = rows * columns
    elif at_inputs(kind):
        phases = s.stride**2
        rows = s.batch * _ceil(s.image_h, s.stride) * _ceil(s.image_w, s.stride)
        columns, depth = s.channels_in, _ceil(s.kernel_size, s.stride) ** 2 * s.channels_out
        results = positions_in * columns
    most = max(1, min(depth // MIN_PART, WORKSPACE // max(1, 2 * results)))
    chosen = [way for way in speeds if _serves(way[0], rows, columns)] or speeds
    ways = [(tile, speed, parts) for tile, speed in chosen for parts in _divisions(depth, most)]

    def estimate(way: tuple[Tile, Speed, int]) -> tuple[float, int]:
        tile, speed, parts = way
        padded = _tiles(tile, rows, columns) * tile.rows * tile.columns  # decides if all blocks run at once
        return _cost(tile, speed, parts, rows, columns, depth, phases, results), padded

    tile, _, parts = min(ways, key=estimate)
    part = max(DEPTH, _ceil(_ceil(depth, parts), DEPTH) * DEPTH)  # also of an empty sum, which is zero
    parts = max(1, _ceil(depth, part))
    grid = _tiles(tile, rows, columns), phases * parts
    return Plan(tile, grid, rows, columns, parts, part, ones, results, parts * 2 * results if parts > 1 else 0)


def _divisions(depth: int, most: int) -> Iterator[int]:
    """The numbers of parts up to `most` to choose from: the smallest for each length of a part."""
    parts = 1
    while parts <= most:
        yield parts
        shorter = _ceil(_ceil(depth, parts), DEPTH) * DEPTH - DEPTH
        parts = max(parts + 1, _ceil(depth, shorter)) if shorter > 0 else most + 1


def _serves(tile: Tile, rows: int, columns: int) -> bool:
    """Whether the tile may be used for a product of this size: a narrow one loads more numbers per multiplication."""
    return (tile.rows >= NARROW or rows <= FEW) and (tile.columns >= NARROW or columns <= FEW)


def _cost(
    tile: Tile, speed: Speed, parts: int, rows: int, columns: int, depth: int, phases: int, results: int
) -> float:
    whole, rest = divmod(_tiles(tile, rows, columns) * phases * parts, speed.full)
    fill = _ceil(rest, MULTIPROCESSORS) * MULTIPROCESSORS / speed.full
    waves = whole + (fill + LATENCY) / (1 + LATENCY) if rest else whole
    part = _ceil(_ceil(depth, parts), DEPTH) * DEPTH
    terms = waves * part * speed.full * tile.rows * tile.columns / speed.efficiency
    return terms + (LAUNCH + TRAFFIC * parts * results if parts > 1 else 0)


def _tiles(tile: Tile, rows: int, columns: int) -> int:
    return _ceil(rows, tile.rows) * _ceil(columns, tile.columns)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
