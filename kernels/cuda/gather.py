"""How the products see a layer: as a matrix product over (positions) x (taps and channels) x (other channels).

Kinds of product, with x, v the mean and variance of the input, d, e the deltas of the output, w, s of the weights:

    FORWARD     rows: output positions; columns: output channels; sums over taps and input channels
                mean x w, variance v (w^2 + s) + x^2 s
    KNOWN       the same for an input without variance: mean x w, variance x^2 s
    STATE       rows: input positions; columns: input channels; sums over taps and output channels
                mean d w, variance e w^2
    PARAMETERS  rows: taps and input channels; columns: output channels; sums over output positions
                mean x d, variance x^2 e

The image operand is never unfolded: a tile's elements are fetched from the image where the taps point. A dense layer
is a convolution of one tap over an image of one row, with the batch as its width. STATE with a stride falls into
stride^2 phases, the positions that the same taps reach: each is a convolution of its own without gaps.
"""

import numpy as np

from pytagi_ddp.kernels.cuda.compile import device
from pytagi_ddp.kernels.cuda.intrinsics import copy_async1, copy_async4, divide, load4, store1

FORWARD, KNOWN, STATE, PARAMETERS = range(4)
ZERO, ONE = np.float32(0), np.float32(1)
i32 = np.int32  # every index is wrapped in it: numba would widen sums to 64 bits
OUTSIDE = i32(-(1 << 15))  # an origin from which no tap reaches the image


@device
def taps_from(first, kernel_size, stride):
    """Of one dimension: taps first, first + stride, ..."""
    count = i32(0)
    if first < kernel_size:
        count = divide(i32(kernel_size - first + stride - i32(1)), stride)[0]
    return count


@device
def taps_before(first, kernel_size, stride):
    """Of one dimension: taps in the phases with a first tap below `first`."""
    total = i32(0)
    for earlier in range(first):
        total = i32(total + taps_from(i32(earlier), kernel_size, stride))
    return total


@device
def phase_taps(phase, kernel_size, stride, pad):
    """Of one dimension: first tap of a phase, its taps, and the output under the first at the phase's position 0."""
    reach = i32(phase + pad)
    first = divide(reach, stride)[1]
    return first, taps_from(first, kernel_size, stride), divide(i32(reach - first), stride)[0]


@device
def phase_start(first_y, first_x, kernel_size, stride):
    """Taps before those of a phase, where they lie phase by phase."""
    rows = i32(taps_before(first_y, kernel_size, stride) * kernel_size)
    return i32(rows + i32(taps_from(first_y, kernel_size, stride) * taps_before(first_x, kernel_size, stride)))


@device
def survey(kind, phase, sizes):
    """What a block needs to know of a layer, of one phase of it if kind is STATE.

    Returns (height, width, channels of the image operand, rows and columns of its taps), (height and width of the grid
    of positions, pixels between them, pixel of tap (0, 0) at the first), columns of the product, and taps before those
    of the phase in the matrix operand.
    """
    _, image_h, image_w, channels_in, out_h, out_w, channels_out, kernel_size, stride, pad = sizes
    if kind == STATE:
        phase_y, phase_x = divide(phase, stride)
        first_y, taps_y, shift_y = phase_taps(phase_y, kernel_size, stride, pad)
        first_x, taps_x, shift_x = phase_taps(phase_x, kernel_size, stride, pad)
        view = out_h, out_w, channels_out, taps_y, taps_x
        grid_h, grid_w = taps_from(phase_y, image_h, stride), taps_from(phase_x, image_w, stride)
        grid = grid_h, grid_w, i32(1), shift_y, shift_x
        return view, grid, channels_in, phase_start(first_y, first_x, kernel_size, stride)
    view = image_h, image_w, channels_in, kernel_size, kernel_size
    return view, (out_h, out_w, stride, i32(-pad), i32(-pad)), channels_out, i32(0)


@device
def locate(position, grid, image_size):
    """A position as (first element of its image, row and column in the grid)."""
    image, inside = divide(position, i32(grid[0] * grid[1]))
    y, x = divide(inside, grid[1])
    return i32(image * image_size), y, x


@device
def move(place, by, grid, image_size):
    """The place (see `locate`) `by` positions on."""
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
    """What `element_at` starts from at a place."""
    start, y, x = place
    _, _, step, shift_y, shift_x = grid
    return start, (i32(i32(y * step) + shift_y) if exists else OUTSIDE), i32(i32(x * step) + shift_x)


@device
def advance(tap, by, view):
    """Moves tap = (channel, column, row) `by` elements on, in the order row, column, channel."""
    c, q, r = tap
    _, _, channels, _, taps_x = view
    c = i32(c + by)
    while c >= channels:
        c = i32(c - channels)
        q = i32(q + i32(1))
        if q == taps_x:
            q = i32(0)
            r = i32(r + i32(1))
    return c, q, r


@device
def element_at(origin, tap, view, sign):
    """(element of the image operand under a tap, whether it exists).

    origin: first element of the image and the pixel of tap (0, 0); view: height, width and channels of the image,
    rows and columns of taps; sign: taps count down (-1) or up (1) from the origin.
    """
    start, y, x = origin
    c, q, r = tap
    height, width, channels, taps_y, _ = view
    y = i32(y + sign * r)
    x = i32(x + sign * q)
    valid = r < taps_y and y >= i32(0) and y < height and x >= i32(0) and x < width
    return i32(start + i32(i32(i32(y * width) + x) * channels) + c), valid


@device
def is_one(origin, tap, view):
    """Whether this is the element after the last tap, at a position that exists: 1, the input of the biases."""
    c, q, r = tap
    return c == i32(0) and q == i32(0) and r == view[3] and origin[1] != OUTSIDE


@device
def gather4(out, out2, o, image, image2, origin, tap, view, sign, wide, ones, both):
    """out[o : o + 4] = the elements from a tap on; 0 outside the image, 1 after the last tap if `ones`.

    wide: all four belong to one tap, and the first is aligned. both: the same from a second image into out2.
    """
    for e in range(4):
        out[o + e] = ZERO
        if both:
            out2[o + e] = ZERO
    if wide:
        element, valid = element_at(origin, tap, view, sign)
        if valid:
            out[o + 0], out[o + 1], out[o + 2], out[o + 3] = load4(image, element)
            if both:
                out2[o + 0], out2[o + 1], out2[o + 2], out2[o + 3] = load4(image2, element)
        elif ones and is_one(origin, tap, view):
            out[o] = ONE
    else:
        for e in range(4):
            element, valid = element_at(origin, tap, view, sign)
            if valid:
                out[o + e] = image[element]
                if both:
                    out2[o + e] = image2[element]
            elif ones and is_one(origin, tap, view):
                out[o + e] = ONE
            tap = advance(tap, i32(1), view)


@device
def send4(shared, o, apart, image, image2, origin, tap, view, sign, wide, ones, both):
    """`gather4` straight to shared memory from o on, asynchronously; both: image2 to o + apart."""
    if ones and is_one(origin, tap, view):
        store1(shared, o, ONE)
        for e in range(1, 4):
            store1(shared, i32(o + i32(e)), ZERO)
    elif wide:
        element, valid = element_at(origin, tap, view, sign)
        element = element if valid else i32(0)
        copy_async4(shared, o, image, element, valid)
        if both:
            copy_async4(shared, i32(o + apart), image2, element, valid)
    else:
        for e in range(4):
            element, valid = element_at(origin, tap, view, sign)
            if ones and is_one(origin, tap, view):
                store1(shared, i32(o + i32(e)), ONE)
            else:
                element = element if valid else i32(0)
                copy_async1(shared, i32(o + i32(e)), image, element, valid)
                if both:
                    copy_async1(shared, i32(o + i32(e) + apart), image2, element, valid)
            tap = advance(tap, i32(1), view)


@device
def matrix4(out, out2, o, matrix, matrix2, row, column, rows, columns, wide, both):
    """out[o : o + 4] = elements of a row of a (rows, columns) matrix; 0 outside. both: as in `gather4`."""
    for e in range(4):
        out[o + e] = ZERO
        if both:
            out2[o + e] = ZERO
    if row < rows:
        element = i32(i32(row * columns) + column)
        if wide:
            if column < columns:
                out[o + 0], out[o + 1], out[o + 2], out[o + 3] = load4(matrix, element)
                if both:
                    out2[o + 0], out2[o + 1], out2[o + 2], out2[o + 3] = load4(matrix2, element)
        else:
            for e in range(4):
                if i32(column + i32(e)) < columns:
                    out[o + e] = matrix[i32(element + i32(e))]
                    if both:
                        out2[o + e] = matrix2[i32(element + i32(e))]


@device
def send_matrix4(shared, o, apart, matrix, matrix2, row, column, rows, columns, wide, both):
    """`matrix4` straight to shared memory from o on, asynchronously; both: matrix2 to o + apart."""
    element = i32(i32(row * columns) + column)
    if wide:
        valid = row < rows and column < columns
        element = element if valid else i32(0)
        copy_async4(shared, o, matrix, element, valid)
        if both:
            copy_async4(shared, i32(o + apart), matrix2, element, valid)
    else:
        for e in range(4):
            valid = row < rows and i32(column + i32(e)) < columns
            place = i32(element + i32(e)) if valid else i32(0)
            copy_async1(shared, i32(o + i32(e)), matrix, place, valid)
            if both:
                copy_async1(shared, i32(o + i32(e) + apart), matrix2, place, valid)
