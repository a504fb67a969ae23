"""State dictionaries: copies, comparison, and what is refused."""

import pickle

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.nn.networks import FIELDS, randomise
from tests.nn.test_persistence import make


@pytest.fixture
def trained() -> nn.Sequential:
    net = randomise(make())
    net(np.random.default_rng(0).normal(size=(4, 16)))  # moves the running statistics
    return net


def test_lists_are_accepted(trained):
    """pytagi's dictionaries hold lists, and no running statistics: those stay as they are."""
    net = make()
    lists = {k: tuple(a.tolist() for a in v) for k, v in trained.state_dict().items() if not k.endswith(".running")}
    with pytest.warns(UserWarning, match="the running statistics of BatchNorm2d.2, .* are not given"):
        net.load_state_dict(lists)
    for mine, theirs in zip(net.parameters(), trained.parameters(), strict=True):
        for k in range(len(FIELDS)):
            np.testing.assert_array_equal(mine[k], theirs[k])
    np.testing.assert_array_equal(net.layers[2].running_mean, 0)


def test_state_dict_is_a_copy(trained):
    state = trained.state_dict()
    state["Linear.4"][0][0] += 1
    assert trained.state_dict() != state
    assert trained.state_dict() == trained.state_dict()


def test_state_dict_compares_like_a_dictionary(trained):
    state = trained.state_dict()
    assert state != {} and {**state} == state
    assert state != {**state, "Linear.4": tuple(a + 1 for a in state["Linear.4"])}
    assert state != {**state, "extra": ()}


def test_a_state_dict_that_an_earlier_version_has_pickled(trained):
    """Its class was in another module then."""
    text = pickle.dumps(trained.state_dict(), 0)
    assert b"pytagi_ddp.nn.files.state_dicts\n" in text
    earlier = text.replace(b"pytagi_ddp.nn.files.state_dicts\n", b"pytagi_ddp.nn.files.persistence\n")
    assert pickle.loads(earlier) == trained.state_dict()


def test_bad_state_dicts_change_nothing(trained):
    state = trained.state_dict()
    mu_w, var_w, mu_b, var_b = state["Linear.4"]
    without = {key: value for key, value in state.items() if key != "Linear.4"}
    changed = [
        (r"Linear\.4 var_w must hold 96 values, got 95", (mu_w, var_w[1:], mu_b, var_b)),
        (r"Linear\.4: expected 4 arrays .* got 3", (mu_w, var_w, mu_b)),
        (r"Linear\.4 var_w holds variances and must not be negative, the smallest is -", (mu_w, -var_w, mu_b, var_b)),
        (r"Linear\.4 mu_b: 3 of 3 values are NaN or infinite", (mu_w, var_w, mu_b * np.inf, var_b)),
    ]
    cases = [
        (KeyError, r"it lacks Linear\.4", without),
        (TypeError, "a state dict is a dictionary .* got NoneType", None),
        (TypeError, r"keys of a state dict are texts such as 'Linear\.0', got 4", {**state, 4: ()}),
        (TypeError, r"Linear\.4: expected 4 arrays \(mu_w, var_w, mu_b, var_b\), got int", {**state, "Linear.4": 4}),
        (ValueError, r"Linear\.4 mu_w must be an array of numbers", {**state, "Linear.4": ([0, [1]], [], [], [])}),
        (KeyError, r"it has no place for Linear\.7", {**state, "Linear.7": (mu_w, var_w, mu_b, var_b)}),
        *((ValueError, message, without | {"Linear.4": arrays}) for message, arrays in changed),
    ]
    net = make()
    before = net.state_dict()
    for kind, message, bad in cases:
        with pytest.raises(kind, match=message):
            net.load_state_dict(bad)
        assert net.state_dict() == before


@pytest.mark.filterwarnings("ignore:the running statistics of:UserWarning")
@pytest.mark.parametrize("way", ["load_state_dict", "params_from", "load", "load_csv"])
def test_deltas_that_wait_are_dropped(trained, tmp_path, way):
    """They are of the parameters before. What is refused drops nothing."""
    trained.save(tmp_path / "net")
    trained.save_csv(tmp_path / "net")
    other = randomise(make())
    loads = {
        "load_state_dict": lambda net: net.load_state_dict(trained.state_dict()),
        "params_from": lambda net: net.params_from(trained),
        "load": lambda net: net.load(tmp_path / "net"),
        "load_csv": lambda net: net.load_csv(tmp_path / "net"),
    }
    other(np.ones((4, 16)))
    other.set_delta_z(np.ones(12), -np.ones(12))
    other.backward()
    with pytest.raises(KeyError):
        other.load_state_dict({})
    assert other.passes.waiting == 4
    loads[way](other)
    other.step()
    assert [a.tolist() for a in other.parameters()[-1]] == [a.tolist() for a in trained.parameters()[-1]]


def test_views_of_the_same_network_may_be_given():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    one, other = net.state_dict().values()
    views = [(layer.mu_w, layer.var_w, layer.mu_b, layer.var_b) for layer in net.layers]
    net.load_state_dict({"Linear.0": views[1], "Linear.1": views[0]})
    for given, has in zip((other, one), net.state_dict().values(), strict=True):
        for values, now in zip(given, has, strict=True):
            np.testing.assert_array_equal(now, values)
