"""Observations: any form, missing ones in all three updates, and what is refused."""

import copy
import re
import subprocess
import sys

import numpy as np
import pytest

from pytagi_ddp import nn
from pytagi_ddp.kernels.cpu.runtime.threads import get_threads, set_threads
from pytagi_ddp.likelihoods import Laplace
from tests.nn.networks import randomise

NAN = np.nan


@pytest.fixture
def net() -> nn.Sequential:
    net = randomise(nn.Sequential(nn.Linear(3, 4), nn.EvenExp()))
    net(np.random.default_rng(1).normal(size=(2, 3)))
    return net


@pytest.fixture
def updater() -> nn.OutputUpdater:
    return nn.OutputUpdater("cpu")


def deltas(net) -> np.ndarray:
    buffer = net.input_delta_z_buffer
    return np.array([buffer.delta_mu, buffer.delta_var])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 5632, 262_144 + 1025])
def test_any_number_of_outputs_on_any_number_of_threads(updater, size, dtype):
    """Observations are taken a thousand at a time, of large batches by several threads."""
    rng = np.random.default_rng(0)
    y, noise = rng.normal(size=size).astype(dtype), rng.uniform(0.1, 1, size).astype(dtype)
    states, buffer = nn.BaseHiddenStates(), nn.BaseDeltaStates(size, 1)
    states.set_input_x(rng.normal(size=size), rng.uniform(0.1, 1, size), 1)
    y[size // 2] = NAN
    before = get_threads()
    try:
        for jcb in (1, rng.normal(size=size)):
            if np.ndim(jcb):
                states.jcb = jcb
            found = []
            for threads in (1, 2, 3):
                set_threads(threads)
                buffer.reset_zeros()
                updater.update(states, y, noise, buffer)
                found.append([buffer.delta_mu.copy(), buffer.delta_var.copy()])
            gain = jcb / (states.var_a.astype(float) + noise)
            expected = np.where(np.isnan(y), 0, [gain * (y - states.mu_a), -jcb * gain])
            np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(found[0], found[1])
            np.testing.assert_array_equal(found[0], found[2])
    finally:
        set_threads(before)


def test_many_outputs_before_anything_has_set_the_number_of_threads():
    program = """if True:
        import numpy as np
        from pytagi_ddp import nn
        states, buffer = nn.BaseHiddenStates(300_000, 1), nn.BaseDeltaStates(300_000, 1)
        for size in (1, 300_000):
            states.set_size(size, 1)
            nn.OutputUpdater("cpu").update(states, np.ones(size), np.ones(size), buffer)
        assert (buffer.delta_mu == 1).all()
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_indices_count_from_one_and_leave_the_rest_zero(net, updater):
    y, noise = np.float64([3, 1, 2, 5]), np.float64([0.1, 0.2, 0.3, 0.4])
    updater.update_using_indices(net.output_z_buffer, y, noise, [[1, 4], [3, 2]], net.input_delta_z_buffer)
    got = deltas(net)
    positions = [0, 3, 6, 5]
    everything = np.full(8, NAN)
    everything[positions] = y
    all_noise = np.ones(8)
    all_noise[positions] = noise
    updater.update(net.output_z_buffer, everything, all_noise, net.input_delta_z_buffer)
    np.testing.assert_array_equal(got, deltas(net))
    assert np.count_nonzero(got[0]) == 4


def test_missing_observations(net, updater):
    """NaN in every update: zero deltas there, and the others as if it were not there."""
    states, buffer = net.output_z_buffer, net.input_delta_z_buffer
    full, some = np.arange(8.0), np.arange(8.0)
    some[[2, 7]] = NAN
    results = []
    for y in (full, some):
        updater.update(states, y, np.full(8, 0.5), buffer)
        results.append(deltas(net))
    results[0][:, [2, 7]] = 0
    np.testing.assert_array_equal(*results)

    updater.update_using_indices(states, [1, NAN, NAN, 2], np.full(4, 0.5), [1, 2, 3, 4], buffer)
    np.testing.assert_array_equal(np.flatnonzero(deltas(net)[0]), [0, 7])

    updater.update_heteros(states, [1, NAN, 2, NAN], buffer)
    np.testing.assert_array_equal(np.flatnonzero(deltas(net)[1]), [0, 1, 4, 5])


def test_any_form_of_observations(net, updater):
    y, noise = np.arange(8, dtype=np.float32), np.full(8, 0.5, np.float32)
    updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
    expected = deltas(net)
    forms = [y.tolist(), y.reshape(2, 4), y.astype(np.uint8), np.repeat(y, 2)[::2], y.astype(np.float16)]
    for form in forms:
        updater.update(net.output_z_buffer, form, noise.astype(np.float64), net.input_delta_z_buffer)
        np.testing.assert_array_equal(deltas(net), expected)


def test_one_variance_for_all(net, updater):
    """The bits of as many equal ones, whatever came before; and bad ones are named."""
    states, buffer, y = net.output_z_buffer, net.input_delta_z_buffer, np.arange(8.0)
    for batch in (2, 3, 2):
        net(np.ones((batch, 3)))
        y = np.arange(4.0 * batch)
        for variance in (0.5, np.float64(0.1), np.float32(0.1), 1, 0.0, np.inf, 1e300, 0.5):
            updater.update(states, y, variance, buffer)
            found = deltas(net)
            with np.errstate(over="ignore"):
                updater.update(states, y, np.full(y.size, variance, np.float32), buffer)
            np.testing.assert_array_equal(found, deltas(net))
        for variance in (-0.5, NAN):
            with pytest.raises(ValueError, match="must not be negative or NaN"):
                updater.update(states, y, variance, buffer)


def test_one_variance_for_all_takes_the_quick_way(net, updater, monkeypatch):
    states, buffer, y = net.output_z_buffer, net.input_delta_z_buffer, np.arange(8.0)
    updater.update(states, y, np.full(8, 0.5), buffer)  # from here on there is one
    monkeypatch.setattr(nn.OutputUpdater, "_run", lambda *_: pytest.fail("the long way"))
    updater.update(states, y, 0.5, buffer)


def test_variances_of_other_samples_are_warned_about(net, updater):
    states, buffer, y = net.output_z_buffer, net.input_delta_z_buffer, np.arange(8.0)
    updater.update(states, y, np.full(40, 0.5), buffer)
    expected = deltas(net)
    with pytest.warns(UserWarning, match=r"var_obs has 40 values, which differ, for 8 .* var_obs\[rows\]"):
        updater.update(states, y, np.r_[np.full(8, 0.5), np.arange(1.0, 33)], buffer)
    np.testing.assert_array_equal(deltas(net), expected)


def test_a_buffer_of_another_size_is_resized(net, updater):
    buffer = nn.BaseDeltaStates(3, 1)
    updater.update(net.output_z_buffer, np.zeros(8), np.ones(8), buffer)
    assert (buffer.size, buffer.block_size, buffer.actual_size) == (8, 2, 4)


BAD_VALUES = [
    (np.zeros(7), np.ones(8), "mu_obs must hold 8 values, got 7"),
    (np.zeros(8), np.ones(7), "var_obs must hold 8 values, got 7"),
    (np.zeros(8), [1, 1, 1, -0.25, 1, 1, 1, 1], "var_obs .* the smallest is -0.25"),
    (np.zeros(8), [1, 1, 1, NAN, 1, 1, 1, 1], "var_obs .* NaN"),
    ([np.inf, 0, 0, 0, 0, 0, 0, -np.inf], np.ones(8), "mu_obs: 2 of 8 observations are infinite"),
    (np.zeros((2, 4)), np.ones((4, 2)), r"var_obs has the shape \(4, 2\), .* each of which has 4 observations"),
    (np.zeros((2, 4)), np.ones((5, 6)), r"var_obs has the shape \(5, 6\)"),
]


@pytest.mark.parametrize(("y", "noise", "message"), BAD_VALUES)
def test_bad_observations(net, updater, y, noise, message):
    before = deltas(net)
    with pytest.raises(ValueError, match=message):
        updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
    index = np.tile([1, 2, 3, 4], 2)
    with pytest.raises(ValueError, match=message):
        updater.update_using_indices(net.output_z_buffer, y, noise, index, net.input_delta_z_buffer)
    np.testing.assert_array_equal(deltas(net), before)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([0, 1, 2, 3], "from 1 to 4, got int64 from 0 to 3"),
        ([1, 2, 3, 5], "from 1 to 4, got int64 from 1 to 5"),
        ([1.0, 2.0, 3.0, 4.0], "integers from 1 to 4, got float64"),
        ([1, 2, 3], "same number of outputs for 2 samples, got 3"),
        ([], "got 0"),
    ],
)
def test_bad_indices(net, updater, index, message):
    with pytest.raises(ValueError, match=message):
        updater.update_using_indices(net.output_z_buffer, np.zeros(4), np.ones(4), index, net.input_delta_z_buffer)


def test_bad_heteroscedastic_observations(net, updater):
    with pytest.raises(ValueError, match="mu_obs must hold 4 values, got 8"):
        updater.update_heteros(net.output_z_buffer, np.zeros(8), net.input_delta_z_buffer)
    with pytest.raises(ValueError, match="mu_obs: 1 of 4 observations are infinite"):
        updater.update_heteros(net.output_z_buffer, [1, 2, np.inf, NAN], net.input_delta_z_buffer)
    odd = nn.Sequential(nn.Linear(1, 3))
    odd(np.zeros(1))
    with pytest.raises(ValueError, match="outputs in pairs, the network has 3"):
        updater.update_heteros(odd.output_z_buffer, np.zeros(1), odd.input_delta_z_buffer)


def test_a_negative_noise_variance_is_no_variance(updater):
    states, buffer = nn.BaseHiddenStates(4, 2), nn.BaseDeltaStates(4, 2)
    states.mu_a, states.var_a = [-1, 0.5, -1, -0.5], np.ones(4)
    with pytest.raises(ValueError, match=r"1 of 2 are negative: end the network with EvenExp"):
        updater.update_heteros(states, np.zeros(2), buffer)
    states.mu_a = [-1, 0.5, -1, 0]  # what rounds to 0 is one
    updater.update_heteros(states, np.zeros(2), buffer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda u, z, y, d: u.update(y, z, 0.1, d), "update takes the output_z_buffer .* first .* got ndarray"),
        (lambda u, z, y, d: u.update(z, y, d, 0.1), "update takes the input_delta_z_buffer .* last .* got float"),
        (lambda u, z, y, d: u.update_using_indices(z, y, 0.1, d, [1, 2]), "update_using_indices .* last .* got list"),
        (lambda u, z, y, d: u.update_heteros(d, y, z), "update_heteros .* first argument, got BaseDeltaStates"),
    ],
)
def test_arguments_in_another_order(net, updater, call, message):
    with pytest.raises(TypeError, match=message):
        call(updater, net.output_z_buffer, np.zeros(8), net.input_delta_z_buffer)


@pytest.mark.parametrize(("mu", "var"), [(NAN, 1), (np.inf, 1), (0, np.inf), (0, NAN)])
def test_an_output_that_is_not_finite_makes_deltas_that_a_step_reports(updater, mu, var):
    """It had zero deltas: training went on, and learnt nothing. Where nothing was observed, nothing is wrong."""
    states, buffer = nn.BaseHiddenStates(4, 2), nn.BaseDeltaStates(4, 2)
    states.mu_a, states.var_a = [mu, 0.5, mu, 0.5], [var, 0.3, var, 0.3]
    for update in (
        lambda y: updater.update(states, y, np.ones(4), buffer),
        lambda y: updater.update_using_indices(states, y, np.ones(4), [[1, 2], [1, 2]], buffer),
        lambda y: updater.update_heteros(states, y[::2], buffer),
    ):
        update(np.array([1.0, 1.0, NAN, 1.0]))
        for values in (buffer.delta_mu, buffer.delta_var):
            assert np.isnan(values[0]) and np.isfinite(values[1:]).sum() >= 2 and values[2] == 0


@pytest.mark.parametrize(
    ("noise", "noise_var", "noise_jcb"), [(np.inf, 1, 1), (NAN, 1, 1), (2, np.inf, 1), (2, NAN, 1), (2, 1, np.inf)]
)
def test_a_noise_that_is_not_finite_makes_deltas_that_a_step_reports(updater, noise, noise_var, noise_jcb):
    states, buffer = nn.BaseHiddenStates(4, 2), nn.BaseDeltaStates(4, 2)
    states.mu_a, states.var_a, states.jcb = [1, noise] * 2, [1, noise_var] * 2, [1, noise_jcb] * 2
    updater.update_heteros(states, [1.0, NAN], buffer)
    for values in (buffer.delta_mu, buffer.delta_var):
        assert np.isnan(values[1]) and (values[2:] == 0).all()


def test_a_jacobian_that_is_not_finite_makes_deltas_that_a_step_reports(updater):
    states, buffer = nn.BaseHiddenStates(2, 2), nn.BaseDeltaStates(2, 2)
    states.mu_a, states.var_a, states.jcb = [1, 1], [1, 1], [np.inf, np.inf]
    updater.update(states, [1.0, NAN], np.ones(2), buffer)
    assert np.isnan(buffer.delta_mu[0]) and buffer.delta_mu[1] == 0


def test_a_noise_that_overflows_is_an_error_of_the_step(updater):
    """All deltas were zero, and nothing was learnt, in silence."""
    net = nn.Sequential(nn.Linear(1, 2), nn.EvenExp())
    net.layers[0].mu_w = [1, 1]
    before = net.state_dict()
    for _ in range(3):  # recorded passes, too
        net(np.full((4, 1), 100))
        updater.update_heteros(net.output_z_buffer, np.zeros(4), net.input_delta_z_buffer)
        net.backward()
        with pytest.raises(FloatingPointError, match=r"layer 0 .*standardise the inputs"):
            net.step()
    assert net.state_dict() == before
    net(np.full((4, 1), 1))
    updater.update_heteros(net.output_z_buffer, np.zeros(4), net.input_delta_z_buffer)
    net.backward()
    net.step()
    assert net.state_dict() != before


def test_two_observations_of_one_output():
    """The last one counts: deltas are no sums over observations."""
    net = nn.Sequential(nn.Linear(1, 2))
    net(np.ones(1))
    updater = nn.OutputUpdater("cpu")
    updater.update_using_indices(net.output_z_buffer, [1, 5], [1, 1], [2, 2], net.input_delta_z_buffer)
    twice = deltas(net)
    updater.update_using_indices(net.output_z_buffer, [5], [1], [2], net.input_delta_z_buffer)
    np.testing.assert_array_equal(twice, deltas(net))


def test_output_numbers_lie_as_observations_do(updater):
    net = nn.Sequential(nn.Linear(1, 5))
    net(np.ones((2, 1)))
    index = np.array([[1, 2, 3], [3, 4, 5]])
    with pytest.raises(
        ValueError, match=r"selected_idx has the shape \(3, 2\), and the first dimension counts samples"
    ):
        updater.update_using_indices(net.output_z_buffer, np.ones(6), 0.1, index.T, net.input_delta_z_buffer)


@pytest.mark.parametrize(
    ("layer", "x", "outputs", "transposed", "joined"),
    [
        (nn.LSTM(2, 3, seq_len=4), (5, 4, 2), (5, 4, 3), (5, 3, 4), (5, 12)),
        (nn.Conv2d(1, 2, 3, padding=1, in_width=4, in_height=4), (5, 1, 4, 4), (5, 2, 4, 4), (5, 4, 4, 2), (5, 2, 16)),
    ],
)
def test_observations_in_another_order_than_the_outputs_are_refused(layer, x, outputs, transposed, joined):
    net, updater = nn.Sequential(copy.deepcopy(layer)), nn.OutputUpdater("cpu")
    net(np.ones(x))
    for y in (np.ones(outputs), np.ones(joined), np.ones(outputs).ravel()):
        updater.update(net.output_z_buffer, y, 0.1, net.input_delta_z_buffer)
        Laplace(0.1).observe(net, y, weight=y)
    words = re.escape(f"has the shape {transposed}, and the outputs are {outputs}: is it transposed?")
    with pytest.raises(ValueError, match=words):
        updater.update(net.output_z_buffer, np.ones(transposed), 0.1, net.input_delta_z_buffer)
    with pytest.raises(ValueError, match=words):
        updater.update(net.output_z_buffer, np.ones(outputs), np.ones(transposed), net.input_delta_z_buffer)
    with pytest.raises(ValueError, match=words):
        Laplace(0.1).observe(net, np.ones(transposed))
    with pytest.raises(ValueError, match=words):
        Laplace(0.1).observe(net, np.ones(outputs), weight=np.ones(transposed))
