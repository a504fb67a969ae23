"""SLSTM, SLinear and the smoother."""

import copy
import pickle

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from tests.battery.example import train
from tests.nn import golden
from tests.nn.networks import randomise
from tests.nn.twins import Both, walked_parts

FIELDS = ("mu_h", "var_h", "mu_c", "var_c")
LAYERS = {"slstm_one_layer": (0,), "slstm_two_layers_missing": (0, 1)}


def assert_close(actual, expected, what: str = "") -> None:
    np.testing.assert_allclose(actual, expected, 2e-5, 2e-5 * np.abs(expected).max(), err_msg=what)


def follow(net: nn.Sequential, case: dict) -> None:
    """The recorded training steps, each from the recorded parameters."""
    for step in range(len(case["batches"])):
        net.load_state_dict(golden.parameters(case, f"{step - 1}/params" if step else "params0"))
        net(case[f"{step}/x"], case.get(f"{step}/var_x"))
        golden.update_output(net, case, step)
        net.backward()
        net.step()


@pytest.mark.parametrize("name", LAYERS)
def test_smoothed_as_recorded(name):
    """Some of the recorded observations are missing."""
    case = golden.load(name)
    net = golden.make_network(case)
    net.num_samples = int(case["num_samples"])
    follow(net, case)
    net.eval()
    net(case["eval/x"])
    for got, which in zip(net.smoother(), ("mu", "var"), strict=True):
        assert_close(got, case[f"smooth/{which}"], f"outputs, {which}")
    for k in LAYERS[name]:
        for position, field in enumerate(FIELDS):
            got = [net.get_lstm_states(t)[k][position] for t in range(len(case["batches"]))]
            assert_close(got, case[f"smooth/state/{k}/{field}"], f"{field} of layer {k}")
    assert not any(a.any() for state in net.get_lstm_states().values() for a in state), "the memory is not 0"


def several_outputs() -> nn.Sequential:
    manual_seed(4)
    return randomise(nn.Sequential(nn.SLSTM(2, 3), nn.SLSTM(3, 4), nn.SLinear(4, 3)))


def test_several_outputs():
    """Each is what the dense layer makes of the smoothed h; the last time step is smoothed already."""
    net = several_outputs()
    train(net, *[1] * 5)
    last = net.get_lstm_states()
    mu, var = (a.reshape(5, 3) for a in net.smoother())
    layer = net.layers[2]
    w, s_w = layer.mu_w.reshape(3, 4), layer.var_w.reshape(3, 4)
    for t in range(5):
        m, s, _, _ = net.get_lstm_states(t)[1]
        assert_close(mu[t], w @ m + layer.mu_b)
        assert_close(var[t], (w**2 + s_w) @ s + s_w @ m**2 + layer.var_b)
    for k in (0, 1):
        for got, expected in zip(net.get_lstm_states(4)[k], last[k], strict=True):
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(net.get_outputs_smoother()[0], mu.reshape(-1))


def test_records_begin_anew_and_grow():
    """As many steps as were recorded, or as `num_samples` says: then the rest is the bias."""
    net, fresh = several_outputs(), several_outputs()
    train(net, *[1] * 3)
    net.smoother()
    fresh.load_state_dict(net.state_dict())
    fresh.num_samples = 100
    for one in (net, fresh):
        train(one, *[1] * 70, seed=5)
    short, long = net.smoother(), fresh.smoother()
    assert short[0].size == 70 * 3 and long[0].size == 100 * 3
    for a, b, bias in zip(short, long, ("mu_b", "var_b"), strict=True):
        np.testing.assert_array_equal(b[: a.size], a)
        np.testing.assert_array_equal(b[a.size :].reshape(30, 3), np.tile(getattr(net.layers[2], bias), (30, 1)))


def test_smoothing_again_is_of_the_same_states_by_the_weights_of_now():
    """As when a program goes back to its best weights, evaluates, and asks once more."""
    net = several_outputs()
    train(net, *[1] * 5)
    first, states = net.smoother(), net.get_lstm_states(2)
    net.eval()
    net(np.ones(2))
    np.testing.assert_array_equal(net.smoother(), first)
    assert not any(a.any() for state in net.get_lstm_states().values() for a in state), "the memory is not 0"
    net.layers[2].mu_b = net.layers[2].mu_b + 1
    np.testing.assert_allclose(net.smoother()[0], first[0] + 1, rtol=1e-6)
    np.testing.assert_array_equal(net.get_lstm_states(2)[1], states[1])
    net.train()
    train(net, *[1] * 2)
    assert net.smoother()[0].size == 2 * 3


def test_replayed_steps_are_recorded_as_walked_ones():
    """With batches that are not recorded, evaluations and a missing backward pass in between."""
    both = Both(several_outputs())
    both.train(1, steps=4)
    both.train(3, steps=3)
    both.train(1, steps=2, with_var=True)
    for mode in (nn.Sequential.eval, nn.Sequential.train):
        both.do(mode)
        both.forward(1)
    both.train(1, steps=3)
    with walked_parts() as walked:
        both.train(1, steps=64)  # past the room that a record begins with
    assert walked == ["forward", "backward", "step"] * 64, "of the twin only"
    both.do(nn.Sequential.smoother)
    assert both.nets[0].smoother()[0].size == (4 + 2 + 3 + 64) * 3
    both.do(lambda net: [a for t in range(73) for state in net.get_lstm_states(t).values() for a in state])


def test_evaluation_and_predictions_are_not_recorded():
    net = several_outputs()
    train(net, 1, 1)
    twin = copy.deepcopy(net)
    net.predict(np.ones((3, 2)), batch_size=1)
    net.eval()
    net(np.ones(2))
    net.train()
    assert net.smoother()[0].size == 2 * 3
    assert twin.smoother()[0].size == 2 * 3


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_a_copy_within_a_series_has_the_record(copied):
    net = several_outputs()
    train(net, *[1] * 70)
    twin = copied(net)
    for one in (net, twin):
        train(one, *[1] * 5, seed=100)
    for expected, found in zip(net.smoother(), twin.smoother(), strict=True):
        assert expected.size == 75 * 3
        np.testing.assert_array_equal(found, expected)


def test_a_layer_without_its_network_keeps_the_record():
    net = train(several_outputs(), *[1] * 3)
    twin = nn.Sequential(*copy.deepcopy(copy.deepcopy(net.layers)))
    expected, found = net.smoother(), twin.smoother()
    assert expected[0].size == 3 * 3
    np.testing.assert_array_equal(found, expected)


def test_what_is_asked_too_early():
    net = several_outputs()
    for call in (net.smoother, nn.Sequential(nn.LSTM(2, 2)).smoother):
        with pytest.raises(RuntimeError, match="needs SLSTM layers, and training steps"):
            call()
    with pytest.raises(RuntimeError, match=r"smoother\(\)"):
        net.get_outputs_smoother()
    with pytest.raises(IndexError, match="time step 0: the last"):
        net.get_lstm_states(0)
    train(net, 3)
    with pytest.raises(RuntimeError, match="one sample"):
        net.smoother()


@pytest.mark.parametrize(
    "behind",
    [
        lambda: [nn.SLSTM(2, 3), nn.Tanh(), nn.SLinear(3, 1)],
        lambda: [nn.SLSTM(2, 3), nn.SLinear(3, 3), nn.SLinear(3, 1)],
        lambda: [nn.SLSTM(2, 3), nn.SLinear(3, 1), nn.Sigmoid()],
        lambda: [nn.ResNetBlock(nn.SLSTM(2, 2)), nn.SLinear(2, 1)],
    ],
)
def test_layers_that_a_smoother_would_leave_out(behind):
    """An error, before which nothing is smoothed."""
    net = nn.Sequential(nn.SLSTM(2, 2), *behind())
    train(net, 1, 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="right after the last SLSTM"):
            net.smoother()
    assert net.layers[0].recorded == 2


def test_smoothing_in_blocks():
    """Layers in a `LayerBlock` are those of the network; a record goes on when blocks are run again from now on."""
    plain = several_outputs()
    end = nn.LayerBlock(nn.SLSTM(3, 4), nn.LayerBlock(nn.SLinear(4, 3)))
    blocks = nn.Sequential(nn.LayerBlock(nn.SLSTM(2, 3)), end)
    blocks.arena.theta[...] = plain.arena.theta
    for recompute in (False, True):
        blocks.checkpoint_blocks = recompute
        for net in (plain, blocks):
            train(net, *[1] * 3)
    np.testing.assert_array_equal(blocks.smoother(), plain.smoother())


def test_steps_in_which_a_hook_changes_parameters_are_recorded():
    net = several_outputs()

    def floor(leaf, direction):
        if direction == "backward" and leaf.num_weights:
            leaf.var_w = np.maximum(leaf.var_w, 1e-6)

    with net.add_hook(after=floor):
        train(net, 1, 1)
    assert net.smoother()[0].size == 2 * 3
