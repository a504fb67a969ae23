"""Initial priors: pytagi's draws for a seed, the stream's bookkeeping, and the statistics of the values."""

import importlib.util
import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from pytagi_ddp.nn import LSTM, BatchNorm2d, Linear, init


def draw_one_by_one(words, n: int, scale: float) -> list[np.float32]:
    """The polar method as a textbook writes it, one pair of uniforms at a time."""
    values = []
    while len(values) < n:
        x, y = (
            np.float32(2) * (np.float32(words.randint(0, 2**32, dtype=np.uint32)) / np.float32(2**32)) - np.float32(1)
            for _ in range(2)
        )
        radius2 = x * x + y * y
        if 0 < radius2 <= 1:
            factor = np.float32(math.sqrt(-2 * math.log(radius2) / radius2))
            values += [y * factor * np.float32(scale), x * factor * np.float32(scale)]
    return values[:n]


# What pytagi 0.2.1 holds after manual_seed(seed) in Linear(n_in, n_out, ...) followed by Linear(n_out, 1).
RECORDED = {
    (42, 3, 2, 1.0, 1.0, "He"): (
        [0.7054766, -0.29846936, 0.50208455, 0.41646162, 0.91715336, 0.9342781],
        0.3333333,
        [-0.10803649, -0.6860703],
        0.3333333,
        [-0.044844724, -0.48630878],
        [-0.2728666],
    ),
    (-7, 2, 3, 0.1, 0.5, "Xavier"): (
        [0.10249357, -0.3014245, 0.1577784, -0.12567541, 0.53440344, -0.6130505],
        0.0040000007,
        [0.99104613, 0.16659737, -0.3400562],
        0.1,
        [-0.40817258, -0.9542308, -0.16517237],
        [0.5758264],
    ),
}


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_a_seed_gives_the_parameters_that_pytagi_gives(case):
    seed, n_in, n_out, gain_w, gain_b, method = case
    mu_w, var_w, mu_b, var_b, next_mu_w, next_mu_b = RECORDED[case]
    init.manual_seed(seed)
    first = init.gaussian_prior(n_in * n_out, n_out, n_in, n_out, gain_w, gain_b, method)
    second = init.gaussian_prior(n_out, 1, n_out, 1, 1.0, 1.0, "He")
    for mine, expected in zip(first, (mu_w, [var_w] * len(mu_w), mu_b, [var_b] * len(mu_b)), strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, np.float32(expected), rtol=5e-7)
    np.testing.assert_allclose(second[0], next_mu_w, rtol=5e-7)
    np.testing.assert_allclose(second[2], next_mu_b, rtol=5e-7)


def test_gates_are_drawn_one_by_one():
    """pytagi 0.2.1's values: each gate has an odd number of weights and of biases."""
    init.manual_seed(42)
    mu_w, var_w, mu_b, var_b = LSTM(2, 1, 1, True, 0.5, 2.0, "Xavier").parameters.views
    first = [0.8640288, -0.36554885, 0.61492544, 1.1232789, 1.1442523, -0.13231713]
    rest = [-0.044844724, -0.48630878, -0.2728666, -0.7427412, 0.21029206, 0.67725194]
    np.testing.assert_allclose(mu_w, np.float32(first + rest), rtol=5e-7)
    np.testing.assert_allclose(mu_b, np.float32([0.30822983, 0.6254762, -0.16088016, -0.26982632]), rtol=5e-7)
    np.testing.assert_allclose([*var_w, *var_b], [0.125] * 12 + [2.0] * 4, rtol=5e-7)
    np.testing.assert_allclose(init.normal(1, 1.0), 0.21937405, rtol=5e-7)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 100, 33_001])
def test_blocks_consume_the_stream_like_one_pair_at_a_time(n):
    words = np.random.RandomState(11)
    init.manual_seed(11)
    np.testing.assert_allclose(init.normal(n, 0.5), draw_one_by_one(words, n, 0.5), rtol=1e-6)
    # A block that took a word too many, or kept the spare value of an odd draw, would shift this second draw.
    np.testing.assert_allclose(init.normal(5, 2.0), draw_one_by_one(words, 5, 2.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "variance"), [("He", 1 / 50), ("he", 1 / 50), ("Xavier", 2 / 80), ("xavier", 2 / 80)]
)
def test_the_prior_variance_is_the_squared_gain_times_scale(method, variance):
    _, var_w, mu_b, var_b = init.gaussian_prior(1500, 0, 50, 30, 0.5, 3.0, method)
    np.testing.assert_allclose(var_w, 0.25 * variance, rtol=1e-6)
    assert var_w.shape == (1500,)
    assert mu_b.shape == var_b.shape == (0,)


def test_a_restored_state_continues_the_stream():
    init.manual_seed(9)
    init.normal(13, 1.0)
    state = pickle.loads(pickle.dumps(init.get_state()))
    expected = init.normal(1000, 1.0)
    init.manual_seed(1)
    init.set_state(state)
    np.testing.assert_array_equal(init.normal(1000, 1.0), expected)


def test_without_a_seed_every_process_draws_other_values():
    def fresh_module():
        spec = importlib.util.spec_from_file_location("fresh_init", init.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    assert not np.array_equal(fresh_module().normal(8, 1.0), fresh_module().normal(8, 1.0))


FORKS = """
import os
from pytagi_ddp.nn import init

for before in (lambda: None, lambda: init.normal(1, 1.0), lambda: init.manual_seed(1)):
    before()
    for _ in range(2):
        if not os.fork():
            print(init.normal(1, 1.0)[0], flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_processes_draw_the_same_values_only_with_a_seed():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    *without, one, other = done.stdout.split()
    assert len(set(without)) == len(without) == 4 and one == other and one not in without


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"'Kaiming'.*'He', 'he', 'Xavier', 'xavier'"):
        init.gaussian_prior(1, 1, 1, 1, 1.0, 1.0, "Kaiming")
    with pytest.raises(ValueError, match="got 0 and 3"):
        init.gaussian_prior(0, 3, 0, 3, 1.0, 1.0, "He")
    with pytest.raises(ValueError, match=str(2**32)):
        init.manual_seed(2**32)
    with pytest.raises(TypeError):
        init.manual_seed(1.5)
    with pytest.raises(ValueError, match="MT19937"):
        init.set_state(np.random.PCG64(1).state)


@pytest.mark.parametrize("seed", ["1", 1.5, None])
def test_a_seed_that_is_no_integer(seed):
    with pytest.raises(TypeError, match="manual_seed: seed must be an integer, got"):
        init.manual_seed(seed)


def test_gains_and_sizes_that_are_refused():
    for gain in (-1, 10**400, -(10**400)):
        with pytest.raises(ValueError, match=rf"gain_weight must be in \[0, 1e\+18\], got {str(gain)[:50]}$"):
            Linear(3, 2, gain_weight=gain)
    with pytest.raises(TypeError, match="Linear: input_size must be an integer, got True"):
        Linear(True, 2)


@pytest.mark.parametrize("make", [lambda: Linear(3, 2, gain_weight="He"), lambda: BatchNorm2d(3, gain_bias=None)])
def test_gains_that_are_no_numbers(make):
    with pytest.raises(TypeError, match=r"gain_(weight|bias) must be a number, got"):
        make()
