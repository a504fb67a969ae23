"""Layers as matrix products over (positions) x (taps and channels) x (other channels).

Kinds of product, with x, v the mean and variance of the input, d, e the deltas of the output, w, s of the weights:

    FORWARD     rows: output positions; columns: output channels; sums over taps and input channels
                mean x w, variance v (w^2 + s) + x^2 s
    KNOWN       the same for an input without variance: mean x w, variance x^2 s
    STATE       rows: input positions; columns: input channels; sums over taps and output channels
                mean d w, variance e w^2
    PARAMETERS  rows: taps and input channels; columns: output channels; sums over output positions
                mean x d, variance x^2 e

A transposed convolution is the adjoint of a convolution from its outputs to its inputs, and is treated as this
convolution. So its units are computed as deltas of the convolution, and its deltas as units:

    FORWARD, KNOWN  as above, with rows and columns of STATE
    STATE           mean d w, variance e w^2, with rows and columns of FORWARD
    PARAMETERS      mean d x, variance e x^2: the image operand holds the deltas

The image operand is not unfolded: the elements of a tile are read directly from the pixels that the taps cover. A dense
layer is a convolution of one tap over an image of one row, with the batch as its width. STATE with a stride consists of
stride^2 phases: sets of positions that the same taps reach. Each phase is a convolution without gaps.
"""

from typing import NamedTuple

import numpy as np

from pytagi_ddp.kernels.cuda.runtime.compile import cuda, device
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide

ZERO, ONE = np.float32(0), np.float32(1)
i32 = np.int32  # every index is wrapped in it: numba would widen sums to 64 bits
OUTSIDE = i32(-(1 << 15))  # an origin whose taps are all outside the image


@device
def taps_from(first, kernel_size, stride):
    """In one dimension: the number of taps first, first + stride, ..."""
    count = i32(0)
    if first < kernel_size:
        count = divide(i32(kernel_size - first + stride - i32(1)), stride)[0]
    return count


@device
def taps_before(first, kernel_size, stride):
    """In one dimension: the number of taps in the phases whose first tap is below `first`."""
    total = i32(0)
    for earlier in range(first):
        total = i32(total + taps_from(i32(earlier), kernel_size, stride))
    return total


@device
def phase_taps(phase, kernel_size, stride, pad):
    """In one dimension: a phase's first tap, number of taps, and output under that tap at the phase's position 0."""
    reach = i32(phase + pad)
    first = divide(reach, stride)[1]
    return first, taps_from(first, kernel_size, stride), divide(i32(reach - first), stride)[0]


@device
def phase_start(first_y, first_x, kernel_size, stride):
    """Number of taps before those of a phase, in memory that holds the taps phase by phase."""
    rows = i32(taps_before(first_y, kernel_size, stride) * kernel_size)
    return i32(rows + i32(taps_from(first_y, kernel_size, stride) * taps_before(first_x, kernel_size, stride)))


@device
def survey(at_inputs, phase, sizes):
    """The geometry of a layer that a block needs; if the sums are at the inputs, that of one phase.

    Returns (height, width, channels of the image operand, rows and columns of its taps), (height and width of the grid
    of positions, pixels from one to the next, pixel of tap (0, 0) at the first one), columns of the product, and number
    of taps before those of the phase in the matrix operand.
    """
    _, image_h, image_w, channels_in, out_h, out_w, channels_out, kernel_size, stride, pad = sizes
    if at_inputs:
        phase_y, phase_x = divide(phase, stride)
        first_y, taps_y, shift_y = phase_taps(phase_y, kernel_size, stride, pad)
        first_x, taps_x, shift_x = phase_taps(phase_x, kernel_size, stride, pad)
        view = out_h, out_w, channels_out, taps_y, taps_x
        grid_h, grid_w = taps_from(phase_y, image_h, stride), taps_from(phase_x, image_w, stride)
        grid = grid_h, grid_w, i32(1), shift_y, shift_x
        return view, grid, channels_in, phase_start(first_y, first_x, kernel_size, stride)
    view = image_h, image_w, channels_in, kernel_size, kernel_size
    return view, (out_h, out_w, stride, i32(-pad), i32(-pad)), channels_out, i32(0)


class Work(NamedTuple):
    """The part of a product that one block computes.

    Attributes:
        view: height, width and channels of the image operand, rows and columns of its taps.
        grid: height and width of the grid of positions, pixels from one to the next, pixel of tap (0, 0) at the first.
        image_size: numbers of one image.
        phase: phase of the layer (for sums at inputs). which: part of the sum.
        rows, columns, depth: of the product. row0, column0: first row and column of this block's tile.
        positions: number of positions of the grid, in the whole batch.
        first_row: first row of the phase in the matrix operand.
        begin, tiles: first term of this part, and its number of tiles of `tile_depth` terms.
    """

    view: tuple
    grid: tuple
    image_size: int
    phase: int
    which: int
    rows: int
    columns: int
    depth: int
    row0: int
    column0: int
    positions: int
    first_row: int
    begin: int
    tiles: int


@device
def assign(at_inputs, at_weights, tile_rows, tile_columns, tile_depth, sizes, part, ones):
    """The work of this block."""
    which, phase = i32(cuda.blockIdx.y), i32(0)
    if at_inputs:
        which, phase = divide(which, i32(sizes[8] * sizes[8]))
    view, grid, columns, taps_earlier = survey(at_inputs, phase, sizes)
    positions = i32(i32(sizes[0] * grid[0]) * grid[1])
    unfolded = i32(i32(view[3] * view[4]) * view[2])
    rows, depth = positions, unfolded
    if at_weights:
        rows, depth = i32(unfolded + ones), positions
    row, column = divide(i32(cuda.blockIdx.x), divide(i32(columns + i32(tile_columns - 1)), i32(tile_columns))[0])
    begin = i32(which * part)
    terms = i32(max(min(i32(depth - begin), part), i32(0)))
    return Work(
        view,
        grid,
        i32(i32(view[0] * view[1]) * view[2]),
        phase,
        which,
        rows,
        columns,
        depth,
        i32(row * i32(tile_rows)),
        i32(column * i32(tile_columns)),
        positions,
        i32(taps_earlier * view[2]),
        begin,
        divide(i32(terms + i32(tile_depth - 1)), i32(tile_depth))[0],
    )


@device
def locate(position, grid, image_size):
    """A position as (first element of its image, row and column in the grid)."""
    image, inside = divide(position, i32(grid[0] * grid[1]))
    y, x = divide(inside, grid[1])
    return i32(image * image_size), y, x


@device
def move(place, by, grid, image_size):
    """The place (see `locate`) that lies `by` positions after `place`."""
    start, y, x = place
    x = i32(x + by)
    while x >= grid[1]:
        x = i32(x - grid[1])
        y = i32(y + i32(1))
        if y == grid[0]:
            y = i32(0)
            start = i32(start + image_size)
    return start, y, x


@device
def origin_of(place, grid, exists):
    """The origin that `element_at` takes, at a place."""
    start, y, x = place
    _, _, step, shift_y, shift_x = grid
    return start, (i32(i32(y * step) + shift_y) if exists else OUTSIDE), i32(i32(x * step) + shift_x)
