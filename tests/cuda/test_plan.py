"""How products are cut into blocks and parts; no GPU is needed to plan."""

import pytest

from pytagi_ddp.kernels.cuda.products import plan as planning
from pytagi_ddp.kernels.cuda.products.plan import (
    DEPTH,
    FORWARD,
    KNOWN,
    PARAMETERS,
    STATE,
    WORKSPACE,
    Sizes,
    Speed,
    Tile,
    plan,
)

LARGE, SMALL, WIDE, TALL = Tile(128, 64, 8, 8), Tile(32, 32, 4, 4), Tile(8, 64, 4, 4), Tile(64, 8, 4, 4)
SPEEDS = ((LARGE, Speed(264, 1.0)), (SMALL, Speed(1056, 0.7)))
ALL_SPEEDS = (*SPEEDS, (WIDE, Speed(2112, 0.6)), (TALL, Speed(2112, 0.6)))
KINDS = (FORWARD, KNOWN, STATE, PARAMETERS)
RESNET18 = [  # side of the images, channels in and out, kernel, stride, pad of its convolutions
    (32, 3, 64, 3, 1, 1),
    (32, 64, 64, 3, 1, 1),
    (32, 64, 128, 3, 2, 1),
    (32, 64, 128, 1, 2, 0),
    (16, 128, 128, 3, 1, 1),
    (8, 256, 256, 3, 1, 1),
    (4, 512, 512, 3, 1, 1),
]


def convolution(batch, case) -> Sizes:
    side, inputs, outputs, k, stride, pad = case
    out = (side + 2 * pad - k) // stride + 1
    return Sizes(batch, side, side, inputs, out, out, outputs, k, stride, pad)


def depth_of(kind, s: Sizes) -> int:
    if kind == PARAMETERS:
        return s.batch * s.out_h * s.out_w
    return (-(-s.kernel_size // s.stride)) ** 2 * s.channels_out if kind == STATE else s.kernel_size**2 * s.channels_in


@pytest.mark.parametrize("batch", [1, 16, 128, 512])
@pytest.mark.parametrize("case", RESNET18)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_cover_the_sum_within_the_workspace(batch, case, kind):
    sizes = convolution(batch, case)
    how = plan(kind, sizes, SPEEDS)
    assert how.part % DEPTH == 0
    assert (how.parts - 1) * how.part < depth_of(kind, sizes) <= how.parts * how.part
    assert how.workspace <= WORKSPACE
    tiles = -(-how.rows // how.tile.rows) * -(-how.columns // how.tile.columns)
    assert how.grid == (tiles, how.parts * (sizes.stride**2 if kind == STATE else 1))


@pytest.mark.parametrize("case", RESNET18)
@pytest.mark.parametrize("kind", KINDS)
def test_resnet18_at_batch_128_keeps_a_gpu_busy(case, kind):
    how = plan(kind, convolution(128, case), SPEEDS)
    full = dict(SPEEDS)[how.tile].full
    blocks = how.grid[0] * how.grid[1]
    assert blocks / (full * -(-blocks // full)) > 0.7  # of the places for blocks, in all waves together
    if case[1] == case[2]:
        assert how.tile == LARGE


def test_small_layers_take_small_tiles_and_parts():
    how = plan(FORWARD, Sizes.dense(32, 784, 128), SPEEDS)
    assert how.tile == SMALL
    assert how.parts > 4
    assert plan(FORWARD, Sizes.dense(4096, 4096, 4096), SPEEDS).tile == LARGE
    assert plan(FORWARD, Sizes.dense(4096, 4096, 4096), SPEEDS).parts == 1


@pytest.mark.parametrize("batch", [17, 32, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_tiles_leave_alone_what_is_not_narrow(kind, batch):
    layers = [convolution(batch, case) for case in RESNET18[1:]]
    layers += [Sizes.dense(batch, inputs, outputs) for inputs, outputs in [(17, 17), (784, 128), (4096, 4096)]]
    for sizes in layers:
        assert plan(kind, sizes, ALL_SPEEDS) == plan(kind, sizes, SPEEDS)


@pytest.mark.parametrize(
    ("kind", "layer", "tile", "blocks"),
    [  # layer: batch, inputs, outputs
        (FORWARD, (1, 40, 40), WIDE, 1),
        (STATE, (1, 40, 40), WIDE, 1),
        (KNOWN, (1, 1, 50), WIDE, 1),
        (FORWARD, (16, 64, 64), WIDE, 2),
        (FORWARD, (16, 64, 1), TALL, 1),
        (FORWARD, (384, 40, 1), TALL, 6),
        (PARAMETERS, (16, 50, 1), TALL, 1),
        (PARAMETERS, (16, 1, 50), WIDE, 1),
        (PARAMETERS, (1, 40, 40), SMALL, 4),  # 41 x 40 sums with the biases
    ],
)
def test_narrow_products_take_narrow_tiles(kind, layer, tile, blocks):
    how = plan(kind, Sizes.dense(*layer), ALL_SPEEDS, kind == PARAMETERS)
    assert (how.tile, how.grid) == (tile, (blocks, 1))


def test_weight_deltas_that_are_short_and_fat_are_cut():
    how = plan(PARAMETERS, convolution(128, RESNET18[1]), SPEEDS, ones=True)
    assert how.rows == 577
    assert how.grid[0] * how.grid[1] > 200


@pytest.mark.parametrize("batch", [1000, 100_003])
def test_numbers_of_parts_that_are_left_out_are_never_the_best(batch, monkeypatch):
    cases = [(kind, Sizes.dense(batch, inputs, 3)) for kind in KINDS for inputs in (1, 77, 9001)]
    plans = [plan.__wrapped__(*case, ALL_SPEEDS) for case in cases]
    monkeypatch.setattr(planning, "_divisions", lambda depth, most: range(1, most + 1))
    assert [plan.__wrapped__(*case, ALL_SPEEDS) for case in cases] == plans


def test_long_sums_are_planned_at_once():
    """A batch of 16 million samples took 7 seconds: any number of parts was tried."""
    assert len(list(planning._divisions(1 << 24, 1 << 18))) < 5000


def test_arrays_beyond_32_bits():
    with pytest.raises(ValueError, match="2\\^31"):
        plan(FORWARD, Sizes.dense(1 << 20, 1 << 11, 8), SPEEDS)


def test_a_sum_of_nothing():
    how = plan(PARAMETERS, Sizes.dense(0, 20, 9), SPEEDS)
    assert (how.parts, how.part, how.rows, how.columns) == (1, DEPTH, 20, 9)
