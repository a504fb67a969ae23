"""Kernels take subnormal numbers for zero, in each of their threads; the user's own code does not."""

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from numba import njit, prange

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.kernels import cpu as kernels
from pytagi_ddp.kernels.cpu.layers import half_precision
from pytagi_ddp.kernels.cpu.runtime import _replay, graph, threads
from pytagi_ddp.kernels.tensors import ALL, Delta, Heads, State, Tensor
from tests.learning import learn

pytestmark = pytest.mark.skipif(
    not _replay.can_flush, reason="this processor has no mode without subnormal numbers that we know of"
)
SMALL, SMALLER = np.float32(1e-30), np.float32(1e-12)
MANY = 100_000  # numbers: enough for loops of several threads


@pytest.fixture(params=[1, 2, 3])
def num_threads(request):
    before = threads.get_threads()
    threads.set_threads(request.param)
    yield request.param
    threads.set_threads(before)


@njit(parallel=True)
def users_loop(x, factor):
    for i in prange(x.size):
        x[i] *= factor


def full(*shape, value=SMALL):
    return np.full(shape, value, np.float32)


def keeps_subnormals():
    """Whether this thread does, as it was when the interpreter started."""
    return bool(np.all(full(64) * SMALLER > 0))


def test_loops_and_the_users_loops_between_them(num_threads):
    for _ in range(3):
        x, users = full(MANY), full(MANY)
        kernels.elementwise.multiply(x, full(MANY, value=SMALLER))
        users_loop(users, SMALLER)
        assert np.count_nonzero(x) == 0
        assert np.count_nonzero(users) == MANY
        assert keeps_subnormals()


def test_operands_count_as_zero(num_threads):
    x, huge = full(MANY, value=1e-40), full(MANY, value=1e30)
    kernels.elementwise.multiply(x, huge)
    assert np.count_nonzero(x) == 0


def test_products_of_a_dense_layer(num_threads):
    mu, w, bias = full(64, 128), full(128, 128, value=SMALLER), full(128, value=0)
    out = State(full(64, 128, value=1), full(64, 128, value=1))
    kernels.linear.forward(State(mu, mu), Tensor(w, w), Tensor(bias, bias), out)
    assert np.count_nonzero(out.mu) == np.count_nonzero(out.var) == 0
    x = State(mu, None, full(64, 128, value=1))
    into = Delta(full(64, 128, value=1), full(64, 128, value=1))
    weights = Tensor(w, w, full(128, 128), full(128, 128))
    kernels.linear.backward(x, Delta(full(64, 128), full(64, 128)), weights, None, into, False)
    assert np.count_nonzero(into.mu) == np.count_nonzero(into.var) == 0
    assert keeps_subnormals()


def test_products_of_a_convolution(num_threads):
    mu, w, into = full(8, 16, 16, 16), full(16, 16, 2, 2, value=SMALLER), full(2, 8, 16, 16, 16, value=1)
    out = full(2, 8, 15, 15, 16, value=1)
    kernels.conv2d.forward(State(mu, mu), Tensor(w, w), None, State(*out), 1, 0)
    assert np.count_nonzero(out) == 0
    deltas, sums = full(*out.shape), full(2, *w.shape)
    kernels.conv2d.backward(State(mu, None), Delta(*deltas), Tensor(w, w, *sums), None, Delta(*into), 1, 0, False)
    assert np.count_nonzero(into) == 0
    assert keeps_subnormals()


def test_products_of_attention(num_threads):
    x, y, out = (State(*full(2, 32 * 64 * 64, value=value)) for value in (SMALL, SMALLER, 1))
    place = 0, 64 * 64, 0, 64
    kernels.attention.multiply(*(Heads(units, *place) for units in (x, y, out)), 32, 1, 64, 64, 64, ALL)
    assert np.count_nonzero(out.mu) == np.count_nonzero(out.var) == 0
    assert keeps_subnormals()


def networks():
    """One per kind of product, with a batch large enough for several threads."""
    yield nn.Sequential(nn.Linear(256, 256), nn.MixtureReLU(), nn.Linear(256, 2)), (128, 256)
    conv = nn.Conv2d(8, 16, 3, padding=1, in_width=16, in_height=16)
    yield nn.Sequential(conv, nn.MixtureReLU(), nn.AvgPool2d(2, 2), nn.Linear(1024, 2)), (32, 8, 16, 16)


def train(net, x, steps=4):
    """Walked through, recorded and replayed."""
    for _ in range(steps):
        learn(net, x, np.zeros(2 * len(x), np.float32))
        assert keeps_subnormals()


@pytest.mark.parametrize("kind", [0, 1])
def test_calls_of_a_network_and_its_hooks_leave_the_thread_as_it_was(num_threads, kind):
    net, shape = list(networks())[kind]
    x = full(*shape)
    train(net, x)
    seen = []
    with net.add_hook(after=lambda leaf, direction: seen.append(keeps_subnormals())):
        train(net, x)
    assert seen and all(seen)
    with pytest.raises(ValueError, match="samples"):
        net(x.reshape(-1)[1:])
    net.predict(x)
    assert keeps_subnormals()
    users = full(MANY)
    users_loop(users, SMALLER)
    assert np.count_nonzero(users) == MANY
    numbers = np.concatenate([value for pair in net.state_dict().values() for value in map(np.ravel, pair)])
    assert not np.any((numbers != 0) & (abs(numbers) < np.finfo(np.float32).tiny))


def test_an_exception_in_a_kernel_leaves_the_thread_as_it_was():
    def fails():
        assert not keeps_subnormals()
        raise OverflowError

    for number in (1, 3):
        with pytest.raises(OverflowError):
            _replay.flushed(fails, number, ())
        assert keeps_subnormals()


def test_a_user_who_flushes_goes_on_to(num_threads):
    def program():
        train_without_check(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), full(3, 4))
        return keeps_subnormals()

    def train_without_check(net, x):
        for _ in range(3):
            net(x)
            net.predict(x)

    assert not _replay.flushed(program, 1, ())
    assert keeps_subnormals()


def test_other_threads_flush_too(num_threads):
    results = []

    def program():
        x = full(MANY)
        kernels.elementwise.multiply(x, full(MANY, value=SMALLER))
        results.append((np.count_nonzero(x), keeps_subnormals()))

    workers = [threading.Thread(target=program) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [(0, True)] * 2


def test_a_loop_that_keeps_subnormal_numbers_does_when_it_is_replayed(num_threads):
    x, half = full(MANY, value=1e-40), np.zeros(MANY, np.uint16)
    exponents = np.zeros(-(-MANY // half_precision.BLOCK), np.int32)
    with _replay.recording() as plan:
        half_precision.encode_float16(x, half, exponents)
    expected = half.copy()
    half[:] = 0
    plan.run()
    assert np.count_nonzero(expected) == MANY
    np.testing.assert_array_equal(half, expected)


NEW_POOL = """
    import numpy as np
    from numba import njit, prange
    from pytagi_ddp.kernels import cpu as kernels
    from pytagi_ddp.kernels.cpu.runtime import _replay, threads
    from pytagi_ddp.kernels.tensors import State, Tensor

    @njit(parallel=True)
    def users_loop(x, factor):
        for i in prange(x.size):
            x[i] *= factor

    def product(rows=256):
        full = lambda *shape: np.ones(shape, np.float32)
        out = State(full(rows, 512), full(rows, 512))
        x, w, b = State(full(rows, 512), full(rows, 512)), Tensor(full(512, 512), full(512, 512)), full(512)
        kernels.linear.forward(x, w, Tensor(b, b), out)

    def kept():
        users = np.full(99_999, 1e-30, np.float32)
        users_loop(users, np.float32(1e-12))
        return np.count_nonzero(users)

    threads.set_threads(2)
    product()  # makes the second thread
    print(kept())
    threads.set_threads(3)
    with _replay.recording() as plan:
        product()  # makes the third one
    plan.run()
    print(kept())
    threads.set_threads(4)
    with _replay.recording() as plan:
        product(1)  # on one thread
        product()
    threads.set_threads(2)
    print(kept())  # on fewer threads
    threads.set_threads(4)
    plan.run()
    print(kept())
"""


def test_threads_that_a_kernel_makes_keep_the_users_subnormals():
    """OpenMP's threads begin with the mode of the thread that makes them, and stay for the user's own loops."""
    program = [sys.executable, "-c", textwrap.dedent(NEW_POOL)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["99999"] * 4


@pytest.mark.parametrize("replayed", [True, False])
def test_units_that_are_off_change_nothing(monkeypatch, replayed):
    """A network with units far below zero learns as one without them."""
    monkeypatch.setattr(graph, "use_graphs", replayed)
    manual_seed(3)
    whole = nn.Sequential(nn.Linear(4, 8), nn.MixtureReLU(), nn.Linear(8, 2))
    part = nn.Sequential(nn.Linear(4, 4), nn.MixtureReLU(), nn.Linear(4, 2))
    state = {name: [np.array(value) for value in values] for name, values in whole.state_dict().items()}
    first, last = state
    state[first][2][..., 4:] = -40  # means of the biases of half of the units
    whole.load_state_dict(state)
    w, s, b, sb = state[first]
    v, sv, c, sc = state[last]
    rows = (array.reshape(8, 4)[:4].reshape(-1) for array in (w, s))
    columns = (array.reshape(2, 8)[:, :4].reshape(-1) for array in (v, sv))
    biases = (array.reshape(-1)[:4] for array in (b, sb))
    part.load_state_dict({first: [*rows, *biases], last: [*columns, c, sc]})
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    train(whole, x, 6)
    train(part, x, 6)
    for got, want in zip(whole.predict(x), part.predict(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
