"""Loads of the operands of a product, four numbers at a time: from images at the taps, and from matrices.

`gather4` and `matrix4` read into registers; `send4` and `send_matrix4` start copies to shared memory. Elements
outside of the image or matrix are 0. A tap is (channel, column, row); view and origin are those of `work`.
"""

from pytagi_ddp.kernels.cuda.products.work import ONE, OUTSIDE, ZERO, i32
from pytagi_ddp.kernels.cuda.runtime.compile import device
from pytagi_ddp.kernels.cuda.runtime.intrinsics import copy_async1, copy_async4, load4, store1


@device
def advance(tap, by, view):
    """Advances tap = (channel, column, row) by `by` elements; the channel runs fastest, then the column."""
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
    """(index of the image operand's element under a tap, whether it exists).

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
    """Whether this is the element after the last tap, at a position that exists. It is 1, the input of the biases."""
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
    """`gather4` directly to shared memory from o on, asynchronously; both: image2 to o + apart."""
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
    """`matrix4` directly to shared memory from o on, asynchronously; both: matrix2 to o + apart."""
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
