"""Changes of the order of images in memory."""

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


def test_nothing_to_do():
    elementwise.transpose(np.empty((0, 3, 4), np.float32), np.empty((0, 4, 3), np.float32))


def test_wrong_shapes_and_types_are_refused():
    source = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"source \(2, 3, 4\), out \(2, 3, 4\)"):
        elementwise.transpose(source, source.copy())
    with pytest.raises(ValueError):
        elementwise.transpose(source.astype(float), np.zeros((2, 4, 3), np.float32))
