"""LSTM: its arguments, its memory, the chain rule through time."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from tests.battery.example import observe, train
from tests.nn import golden
from tests.nn.networks import assert_same, expected_pass, pass_through, random_batch, randomise


def test_arguments_in_either_order():
    """pytagi 0.2.1 has seq_len third, its later versions last_timestep."""
    layers = [
        nn.LSTM(3, 4, True, 5, False, 1, 1, "Xavier"),
        nn.LSTM(3, 4, np.bool_(True), np.int64(5), bias=False, init_method="Xavier"),
        nn.LSTM(input_size=3, output_size=4, seq_len=5, last_timestep=True, bias=False, init_method="Xavier"),
        nn.LSTM(3, 4, 5, False, 1, 1, "Xavier", last_timestep=True),
        nn.LSTM(3, 4, np.int32(5), False, last_timestep=True, init_method="Xavier"),
    ]
    assert len({repr(layer) for layer in layers}) == 1 and (layers[0].seq_len, layers[0].last_timestep) == (5, True)
    assert not nn.LSTM(3, 4, 5).last_timestep and nn.LSTM(3, 4).seq_len == 1
    np.testing.assert_allclose([layer.var_w[0] for layer in layers], 2 / (3 + 2 * 4), 1e-6)
    with pytest.raises(TypeError, match=r"multiple values .* 'seq_len'"):
        nn.LSTM(3, 4, 5, seq_len=5)


@pytest.mark.parametrize("wrong", [{"seq_len": 0}, {"output_size": 0}, {"last_timestep": True, "recurrent": False}])
def test_arguments_that_are_refused(wrong):
    with pytest.raises(ValueError, match="LSTM"):
        nn.LSTM(**{"input_size": 2, "output_size": 3, "seq_len": 4} | wrong)


@pytest.mark.parametrize("before", [lambda: nn.Linear(3, 8), lambda: nn.LSTM(1, 2, 5), lambda: nn.LSTM(1, 6, 2)])
def test_inputs_that_do_not_fit(before):
    """The last of these gives as many values, but of other time steps."""
    with pytest.raises(ValueError, match="seq_len=4 needs an input of 4x3"):
        nn.Sequential(before(), nn.LSTM(3, 2, 4))


def test_memory_as_recorded():
    """States after each step and after an evaluation; set again, they give the next recorded output."""
    case = golden.load("lstm_states_t1_b1")
    net = golden.make_network(case)
    net.load_state_dict(golden.parameters(case, "params0"))
    fields = ("mu_h", "var_h", "mu_c", "var_c")

    def check(prefix: str) -> None:
        for k, state in net.get_lstm_states().items():
            for got, field in zip(state, fields, strict=True):
                np.testing.assert_allclose(got, case[f"{prefix}/state/{k}/{field}"], 1e-5, 1e-6)

    for step in range(len(case["batches"])):
        net(case[f"{step}/x"])
        golden.update_output(net, case, step)
        net.backward()
        net.step()
        check(str(step))
        net.load_state_dict(golden.parameters(case, f"{step}/params"))
    net.eval()
    net(case["eval/x"])
    check("eval")

    other = golden.make_network(case)
    other.load_state_dict(golden.parameters(case, "1/params"))
    other.set_lstm_states({k: [case[f"1/state/{k}/{field}"] for field in fields] for k in (0, 1)})
    mu, var = other(case["2/x"])
    np.testing.assert_allclose(mu, case["2/out_mu"], 1e-5)
    np.testing.assert_allclose(var, case["2/out_var"], 1e-5)


def online() -> nn.Sequential:
    manual_seed(2)
    return randomise(nn.Sequential(nn.LSTM(2, 3), nn.Linear(3, 1)))


def test_memory_goes_on_with_one_sample_only():
    net = online()
    x = random_batch(net, 1)[0]
    zero = net(x)
    assert not np.array_equal(net(x), zero)
    before = net.get_lstm_states()
    assert all(map(np.array_equal, net.get_lstm_states(0)[0], before[0])), "an LSTM has its present memory only"
    with pytest.raises(ValueError, match="time_step must be -1"):
        net.get_lstm_states(-2)
    net.predict(np.ones((5, 2)))
    assert all(np.array_equal(a, b) for a, b in zip(net.get_lstm_states()[0], before[0], strict=True))
    net(np.ones((2, 2)))
    assert not any(a.any() for a in net.get_lstm_states()[0]), "another number of samples"
    np.testing.assert_array_equal(net(x), zero)
    net.reset_lstm_states()
    np.testing.assert_array_equal(net(x), zero)
    assert "LSTM.0.carried" not in net.state_dict() and "LSTM.0.carried" in net.state_dict(carried=True)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.SLSTM])
def test_a_second_pass_back_takes_the_memory_where_the_first_one_does(kind, steps):
    """It was updated once more, and there were two time steps to be smoothed."""
    net = randomise(nn.Sequential(kind(2, 3), nn.SLinear(3, 1)))
    for _ in range(steps):
        observe(net, 1)
        net.step()
    observe(net, 1)
    once = net.get_lstm_states()[0]
    net.backward()
    for first, second in zip(once, net.get_lstm_states()[0], strict=True):
        np.testing.assert_array_equal(first, second)
    if kind is nn.SLSTM:
        assert len(net.smoother()[0]) == steps + 1


def test_predictions_of_several_samples_do_not_depend_on_the_batch_size():
    net = nn.Sequential(nn.LSTM(1, 8), nn.Linear(8, 1))
    for k in range(5):
        net([np.sin(k)])
    memory = net.get_lstm_states()
    x = np.full((5, 1), 0.5)
    expected = net.predict(x)
    for size in (1, 2, 4):
        np.testing.assert_allclose(net.predict(x, batch_size=size), expected, rtol=1e-6)
    assert np.ptp(expected[0]) < 1e-6
    one = net.predict(x[:1])[0]
    assert abs(one - expected[0][0]) > 1e-4, "one sample continues from the memory"
    for before, after in zip(memory[0], net.get_lstm_states()[0], strict=True):
        np.testing.assert_array_equal(after, before)


def test_variances_of_the_memory_do_not_become_negative(tmp_path):
    """Many outputs take away more than there is: 1e-5 is left then, and the memory can be kept."""
    manual_seed(2)
    net = randomise(nn.Sequential(nn.LSTM(2, 3), nn.Linear(3, 100)))
    for step in range(3):
        observe(net, 1, step)
        states = net.get_lstm_states()
        assert states[0][1].min() == np.float32(1e-5) and states[0][3].min() > 0
        net.set_lstm_states(states)
        net.step()
    net.save(tmp_path / "net", carried=True)
    kept = net.state_dict(carried=True)
    net.reset_lstm_states()
    net.load(tmp_path / "net")
    assert net.state_dict(carried=True) == kept


def test_states_that_are_refused():
    net = nn.Sequential(nn.LSTM(2, 3), nn.LSTM(3, 4, seq_len=1, recurrent=False), nn.Linear(4, 1))
    zeros = [np.zeros(3)] * 4
    net.set_lstm_states({0: zeros, 1: [np.zeros(4)] * 4})
    for states, error, message in (
        ({2: zeros}, KeyError, r"layer 2 is not an LSTM of this network; these are: \[0, 1\]"),
        ({"LSTM.0": zeros}, KeyError, "layer 'LSTM.0' is not an LSTM"),
        ({0: zeros, "0": zeros}, KeyError, "given twice"),
        ({0: zeros[:3]}, ValueError, "got 3 arrays"),
        ({0: [np.zeros(4)] * 4}, ValueError, "mu_h"),
        ({0: [*zeros[:3], -np.ones(3)]}, ValueError, "var_c"),
        ({1: [np.ones(4)] * 4}, ValueError, "only a layer of one time step"),
    ):
        with pytest.raises(error, match=message):
            net.set_lstm_states(states)


def test_a_refused_step_keeps_the_reset_memory():
    """It restored the memory before the reset."""
    net = online()
    train(net, 1, 1, 1)
    assert net.arena.carried.any()
    net.reset_lstm_states()
    net(np.ones(net.in_shape.size))
    net.set_delta_z(np.full(net.out_shape.size, np.inf), -np.ones(net.out_shape.size))
    net.backward()
    with pytest.raises(FloatingPointError):
        net.step()
    assert not net.arena.carried.any()


def test_states_go_through_json():
    net = nn.Sequential(nn.LSTM(1, 2), nn.Linear(2, 1))
    net(np.ones(1))
    states = net.get_lstm_states()
    text = json.dumps({k: [values.tolist() for values in state] for k, state in states.items()})
    net.reset_lstm_states()
    net.set_lstm_states(json.loads(text))
    np.testing.assert_array_equal(net.get_lstm_states()[0], states[0])
    assert np.any(states[0][0])


UNCOMPILED = """
import numpy as np
from pytagi_ddp import manual_seed, nn
from tests.battery.example import train
for batch in (2, 5, 20):  # products of few rows, and others
    manual_seed(0)
    net = train(nn.Sequential(nn.LSTM(2, 4, seq_len=3), nn.Linear(12, 1)), batch)
    print(*net.predict(np.linspace(-1, 1, 12)), sep="\\n")
"""


@pytest.mark.slow
def test_uncompiled_loops_give_the_same():
    printed = []
    for disabled in ("0", "1"):
        environment = os.environ | {"NUMBA_DISABLE_JIT": disabled}
        command = [sys.executable, "-c", UNCOMPILED]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
        assert (done.returncode, done.stderr) == (0, "")
        printed.append(np.array(done.stdout.replace("[", "").replace("]", "").split(), float))
    assert printed[0].size == 12
    np.testing.assert_allclose(*printed, rtol=1e-4)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_recorded_and_recomputed_passes_of_one_sample(checkpoint):
    """Memory included: the same bits as passes that are walked through."""
    blocks = [[nn.LayerBlock(copy.deepcopy(layer)) for layer in online().layers] for _ in range(2)]
    nets = [nn.Sequential(*blocks[0]), nn.Sequential(*blocks[1], checkpoint_blocks=checkpoint)]
    nets[0].add_hook()  # is walked through
    for net in nets:
        train(net, *[1] * 6)
    np.testing.assert_array_equal(nets[1].arena.carried, nets[0].arena.carried)
    np.testing.assert_array_equal(nets[1].arena.theta, nets[0].arena.theta)


def test_a_recomputed_pass_of_several_samples_does_not_reset_the_memory():
    """Not even one that was set after the forward pass, which has reset it."""
    layers = [nn.LayerBlock(nn.LSTM(2, 3)), nn.LayerBlock(nn.Linear(3, 1))]
    net = randomise(nn.Sequential(*layers, checkpoint_blocks=True))
    x, _, delta_mu, delta_var = random_batch(net, 2, with_variance=False)
    for _ in range(4):  # walked through, then recorded and replayed
        net(x)
        lstm = net.layers[0].layers[0]
        assert not any(a.any() for a in lstm.get_memory())
        lstm.set_memory(np.full((4, 3), 0.5, np.float32))
        net.set_delta_z(delta_mu, delta_var)
        net.backward()
        np.testing.assert_array_equal(lstm.get_memory(), 0.5)


def test_variances_are_bounded():
    """They grew from step to step: h of this new network overflowed at the 20th."""
    manual_seed(1)
    net = nn.Sequential(nn.LSTM(2, 12, seq_len=40, gain_weight=2, gain_bias=2))
    _, var = net(random_batch(net, 3, with_variance=False)[0])
    assert (var < 1.5).all(), "h is between -1 and 1"
    batch = random_batch(net, 3)
    assert_same(pass_through(net, *batch), expected_pass(net, *batch), 1e-4)


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_mean_deltas_are_the_chain_rule(steps):
    """With variances towards 0, the deltas of weights over s are the derivatives of the output: finite differences."""
    manual_seed(3)
    net = randomise(nn.Sequential(nn.LSTM(2, 4, True, steps)))
    layer = net.layers[0]
    x, _, delta_mu, delta_var = random_batch(net, 1, with_variance=False)
    layer.var_w, layer.var_b = np.full_like(layer.var_w, 1e-6), np.full_like(layer.var_b, 1e-6)
    start = layer.mu_w.copy()
    net.reset_lstm_states()
    slopes = pass_through(net, x, None, delta_mu, delta_var)["delta_mu_w of layer 0 " + repr(layer)] / 1e-6
    for k in range(0, start.size, 5):
        sides = []
        for step in (1e-2, -1e-2):
            layer.mu_w = start + step * (np.arange(start.size) == k)
            net.reset_lstm_states()
            sides.append(net(x)[0] @ delta_mu.reshape(-1))
        assert abs((sides[0] - sides[1]) / 2e-2 - slopes[k]) < 2e-3 * np.abs(slopes).max()
