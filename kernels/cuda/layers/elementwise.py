"""Whole-array operations between layers: sums of states and deltas, copies of columns, and the change of image layout.

Arrays are C-contiguous and, except in `copy_columns` and `transpose`, of any shape.
"""

from pytagi_ddp.kernels.cuda.products.work import i32
from pytagi_ddp.kernels.cuda.runtime.compile import blocks, cuda, float32, floats, int32, kernel, thread_index
from pytagi_ddp.kernels.cuda.runtime.intrinsics import divide
from pytagi_ddp.kernels.tensors import Array, Delta, State

THREADS = 256
TILE = 32  # side of a transposed tile
PITCH = TILE + 1  # of its rows in shared memory, so that the numbers of a column are in different banks
TILE_SIZE = TILE * PITCH
LANES = THREADS // TILE


@kernel(floats, floats, floats, int32, threads=THREADS)
def _add(a, b, out, n):
    i = thread_index()
    if i < n:
        out[i] = a[i] + b[i]


@kernel(floats, floats, floats, floats, int32, threads=THREADS)
def _add_state(mu, var, added_mu, added_var, n):
    i = thread_index()
    if i < n:
        mu[i] += added_mu[i]
        var[i] += added_var[i]


@kernel(floats, floats, int32, threads=THREADS)
def _multiply(out, factor, n):
    i = thread_index()
    if i < n:
        out[i] *= factor[i]


@kernel(floats, floats, floats, int32, threads=THREADS)
def _apply_jacobian(delta_mu, delta_var, jcb, n):
    i = thread_index()
    if i < n:
        j = jcb[i]
        delta_mu[i] *= j
        delta_var[i] *= j * j


@kernel(floats, floats, int32, int32, int32, int32, int32, int32, threads=THREADS)
def _copy_columns(source, out, n, columns, width, first, out_width, start):
    i = thread_index()
    if i < n:
        r, k = i // columns, i % columns
        out[r * out_width + start + k] = source[r * width + first + k]


@kernel(floats, floats, int32, int32, threads=THREADS)
def _transpose(source, out, rows, columns):
    tile = cuda.shared.array(TILE_SIZE, float32)
    x, y = cuda.threadIdx.x % TILE, cuda.threadIdx.x // TILE
    across, down = i32((columns + TILE - 1) // TILE), i32((rows + TILE - 1) // TILE)
    line, left = divide(i32(cuda.blockIdx.x), across)
    image, top = divide(line, down)
    start, top, left = image * rows * columns, top * TILE, left * TILE
    for r in range(y, TILE, LANES):
        if top + r < rows and left + x < columns:
            tile[r * PITCH + x] = source[start + (top + r) * columns + left + x]
    cuda.syncthreads()
    for r in range(y, TILE, LANES):
        if left + r < columns and top + x < rows:
            out[start + (left + r) * rows + top + x] = tile[x * PITCH + r]


def add(a: Array, b: Array, out: Array) -> None:
    """out = a + b; out may be a."""
    _add.launch(blocks(out.size, THREADS), a, b, out, out.size)


def add_state(out: State | Delta, added: State | Delta) -> None:
    """out += added, both moments; variances do not change if `added` has none."""
    n = out.mu.size
    if added.var is None:
        add(out.mu, added.mu, out.mu)
    else:
        _add_state.launch(blocks(n, THREADS), out.mu, out.var, added.mu, added.var, n)


def multiply(out: Array, factor: Array) -> None:
    """out *= factor: the chain rule of consecutive activations."""
    _multiply.launch(blocks(out.size, THREADS), out, factor, out.size)


def apply_jacobian(delta: Delta, jcb: Array) -> None:
    """Deltas through an activation: delta.mu *= J, delta.var *= J^2."""
    n = jcb.size
    _apply_jacobian.launch(blocks(n, THREADS), delta.mu, delta.var, jcb, n)


def copy_columns(source: Array, first: int, out: Array, start: int, columns: int) -> None:
    """out[:, start:start + columns] = source[:, first:first + columns], of matrices with as many rows each.

    Parts of units are put side by side, and taken apart, in this way.
    """
    n = len(source) * columns
    widths = source.shape[1], first, out.shape[1], start
    _copy_columns.launch(blocks(n, THREADS), source, out, n, columns, *widths)


def transpose(source: Array, out: Array) -> None:
    """out[b, j, i] = source[b, i, j]: channels-first to channels-last images and back."""
    batch, rows, columns = source.shape
    _transpose.launch(batch * blocks(rows, TILE) * blocks(columns, TILE), source, out, rows, columns)
