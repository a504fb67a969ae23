"""Changes of the order of images in memory, and copies of columns."""

import numpy as np
import pytest

from pytagi_ddp.kernels.cpu.layers import elementwise


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (2, 3, 5),
        (1, 16, 16),
        (3, 16, 33),
        (2, 17, 16),
        (5, 64, 49),
        (2, 1024, 3),
        (40, 64, 64),
        (2, 1024, 48),
        (1, 35, 90),
    ],
)
def test_every_number_finds_its_place(shape, threads):
    batch, rows, columns = shape
    source = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    out = np.full((batch + 2, columns, rows), -1, np.float32)  # with a margin that stays as it is
    elementwise.transpose(source, out[1:-1])
    assert np.array_equal(out[1:-1], source.transpose(0, 2, 1))
    assert (out[[0, -1]] == -1).all()


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_to_do(shape):
    source = np.empty(shape, np.float32)
    elementwise.transpose(source, source.transpose(0, 2, 1).copy())


def test_wrong_shapes_and_types_are_refused():
    source = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"source \(2, 3, 4\), out \(2, 3, 4\)"):
        elementwise.transpose(source, source.copy())
    for shape in ((1, 4, 3), (2, 5, 3), (2, 4, 2)):
        with pytest.raises(ValueError, match="shapes do not fit together"):
            elementwise.transpose(source, np.zeros(shape, np.float32))
    with pytest.raises(ValueError):
        elementwise.transpose(source.astype(float), np.zeros((2, 4, 3), np.float32))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 4), (300, 700), (5, 0)])
def test_columns_find_their_place(rows, columns, threads):
    source = np.arange(rows * (columns + 3), dtype=np.float32).reshape(rows, -1)
    out = np.full((rows, columns + 2), -1, np.float32)
    elementwise.copy_columns(source, 2, out, 1, columns)
    assert np.array_equal(out[:, 1:-1], source[:, 2 : 2 + columns])
    assert (out[:, [0, -1]] == -1).all()


@pytest.mark.parametrize("place", [(2, 0, 3), (0, 3, 2), (-1, 0, 2), (0, -1, 2), (0, 0, -1)])
def test_columns_that_do_not_exist_are_refused(place):
    first, start, columns = place
    with pytest.raises(ValueError, match=r"source \(2, 4\), out \(2, 4\)"):
        elementwise.copy_columns(np.zeros((2, 4), np.float32), first, np.zeros((2, 4), np.float32), start, columns)
