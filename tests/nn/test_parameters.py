"""Parameters as seen from layers, the network's dictionaries, and the arena; keys as pytagi 0.2.1 recorded them."""

import numpy as np
import pytest

from pytagi_ddp import nn
from tests.nn.networks import DELTAS, FIELDS, learned, pass_through, random_batch, randomise


def branch(c_in, c_out, **options):
    return [nn.Conv2d(c_in, c_out, **options), nn.ReLU(), nn.BatchNorm2d(c_out)]


def recorded_network() -> nn.Sequential:
    strided = {"kernel_size": 3, "stride": 2, "padding": 1, "padding_type": 2}
    same = {"kernel_size": 3, "padding": 1}
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, in_width=4, in_height=4),
        nn.MixtureReLU(),
        nn.BatchNorm2d(2),
        nn.ResNetBlock(
            nn.LayerBlock(*branch(2, 4, **strided), *branch(4, 4, **same)),
            nn.LayerBlock(*branch(2, 4, kernel_size=2, stride=2)),
        ),
        nn.LayerBlock(nn.Conv2d(4, 4, **same), nn.BatchNorm2d(4), nn.ReLU()),
        nn.AvgPool2d(2),
        nn.Linear(4, 2),
    )


RECORDED_INFO = (
    "Conv2d(1,2,4,4,3)\nMixtureReLU()\nBatchNorm2d()\nResNetBlock(32,16)\nLayerBlock(16,16)\n"
    "AvgPool2d(4,4,1,1,2)\nLinear(4,2)\n"
)
RECORDED_KEYS = {
    "Conv2d.0": (18, 2),
    "BatchNorm2d.2": (2, 2),
    "Conv2d.main.3.0": (72, 4),
    "BatchNorm2d.main.3.2": (4, 4),
    "Conv2d.main.3.3": (144, 4),
    "BatchNorm2d.main.3.5": (4, 4),
    "Conv2d.shortcut.3.0": (32, 4),
    "BatchNorm2d.shortcut.3.2": (4, 4),
    "Conv2d.4.0": (144, 4),
    "BatchNorm2d.4.1": (4, 4),
    "Linear.6": (8, 2),
}


@pytest.fixture
def net():
    return randomise(recorded_network())


def test_stack_info(net):
    assert net.get_layer_stack_info() == RECORDED_INFO


def test_state_dict_keys_and_sizes(net):
    state = net.state_dict()
    parameters = {key: value for key, value in state.items() if not key.endswith(".running")}
    assert list(parameters) == list(RECORDED_KEYS)
    for key, (weights, biases) in RECORDED_KEYS.items():
        assert [a.size for a in state[key]] == [weights, weights, biases, biases]
        assert all(a.dtype == np.float32 for a in state[key])
    running = {key: [a.size for a in state[key]] for key in state.keys() - parameters.keys()}
    assert running == {f"{k}.running": [n, n, 0, 0] for k, (n, _) in RECORDED_KEYS.items() if "BatchNorm" in k}


def test_parameters_are_in_forward_order_main_before_shortcut(net):
    expected = [(w, w, b, b) for w, b in RECORDED_KEYS.values()]
    assert [tuple(a.size for a in arrays) for arrays in net.parameters()] == expected


def test_what_is_told_by_layer_of_the_network(net):
    pass_through(net, *random_batch(net, 3))
    net.step()
    assert set(net.get_neg_var_w_counter()) == set(RECORDED_INFO.split())
    moments = net.get_norm_mean_var()
    sizes = {key: [[len(a) for a in arrays] for arrays in value] for key, value in moments.items()}
    assert sizes == {
        "BatchNorm2d()_2": [[2]] * 4,
        "ResNetBlock(32,16)_3": [[4, 4, 4]] * 4,
        "LayerBlock(16,16)_4": [[4]] * 4,
    }
    running_mean, running_var, mean, var = (arrays[0] for arrays in moments["BatchNorm2d()_2"])
    np.testing.assert_allclose(running_mean, 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(running_var, 0.9 + 0.1 * var, rtol=1e-5)


def test_block_counts_are_those_of_its_layers(net):
    net(np.zeros(16, np.float32).repeat(2))
    for leaf in learned(net):
        leaf.delta_var_w = np.zeros(leaf.num_weights)
    main, shortcut = net.layers[3].main_block.layers, net.layers[3].shortcut.layers
    for layer in (main[0], main[3], shortcut[2]):
        layer.var_w = np.full(layer.num_weights, 0.01)
        layer.delta_var_w = [-1, -1] + [0] * (layer.num_weights - 2)
    net.step()
    counts = net.get_neg_var_w_counter()
    assert counts.pop("ResNetBlock(32,16)") == 6
    assert set(counts.values()) == {0}


def test_views_write_into_the_arena(net):
    """mu_w and its kin are the memory that a step changes and an all-reduce sends."""
    for k, leaf in enumerate(learned(net)):
        leaf.mu_w[...] = k
        leaf.var_b[0] = 0.5 + k
    start = 0
    for k, leaf in enumerate(learned(net)):
        np.testing.assert_array_equal(net.arena.theta[0, start : start + leaf.num_weights], k)
        assert net.arena.theta[1, start + leaf.num_weights] == 0.5 + k
        start += leaf.num_weights + leaf.num_biases
    assert start == net.num_parameters == net.arena.num_parameters


def test_assignment_takes_lists_and_any_shape(net):
    linear = net.layers[-1]
    linear.mu_w = [[1, 2, 3, 4], [5, 6, 7, 8]]
    linear.var_w = np.arange(8, dtype=np.float64)[::-1]
    np.testing.assert_array_equal(linear.mu_w, [1, 2, 3, 4, 5, 6, 7, 8])
    np.testing.assert_array_equal(linear.var_w, [7, 6, 5, 4, 3, 2, 1, 0])
    net.eval()
    mu, _ = net(np.zeros(16))
    linear.mu_w[...] *= 2
    linear.mu_b = 2 * linear.mu_b
    np.testing.assert_allclose(net(np.zeros(16))[0], 2 * mu, rtol=1e-6)


def test_deltas_are_scaled_by_the_prior(net):
    """delta_mu = s sum A dm and delta_var = s^2 sum A^2 ds; the arena holds the sums themselves."""
    pass_through(net, *random_batch(net, 4))
    linear = net.layers[-1]
    g, h = net.arena.delta[:, -10:-2]
    np.testing.assert_allclose(linear.delta_mu_w, linear.var_w * g, rtol=1e-6)
    np.testing.assert_allclose(linear.delta_var_w, linear.var_w**2 * h, rtol=1e-6)
    assert np.abs(g).min() > 0 and np.abs(h).min() > 0


def test_assigned_deltas_are_what_a_step_adds(net):
    net(np.zeros(32, np.float32))
    linear = net.layers[-1]
    linear.var_w = np.full(8, 4.0)
    before = np.array(linear.mu_w)
    linear.delta_mu_w, linear.delta_var_w = np.linspace(-0.9, 0.9, 8), np.full(8, -0.5)
    np.testing.assert_allclose(linear.delta_mu_w, np.linspace(-0.9, 0.9, 8), rtol=1e-6)
    np.testing.assert_allclose(linear.delta_var_w, -0.5, rtol=1e-6)
    net.step()
    np.testing.assert_allclose(linear.mu_w - before, np.linspace(-0.9, 0.9, 8), rtol=1e-5)
    np.testing.assert_allclose(linear.var_w, 3.5, rtol=1e-6)


def test_a_delta_cannot_be_changed_in_place(net):
    """It is computed when read: a change of the copy would be lost, so it is refused."""
    with pytest.raises(ValueError, match="read-only"):
        net.layers[-1].delta_mu_w[0] = 1


@pytest.mark.parametrize("field", FIELDS + DELTAS)
def test_bad_values_are_named(net, field):
    linear = net.layers[-1]
    size = getattr(linear, field).size
    with pytest.raises(ValueError, match=f"{field} has {size} values, got {size + 1}"):
        setattr(linear, field, np.ones(size + 1))
    if not field.startswith("delta"):
        with pytest.raises(ValueError, match=rf"{field}: 1 of \d+ values are NaN or infinite"):
            setattr(linear, field, [np.nan] + [1] * (size - 1))
    if field.startswith("var"):
        with pytest.raises(ValueError, match=f"{field} holds variances and must not be negative, the smallest is -2"):
            setattr(linear, field, [-2] + [1] * (size - 1))


def test_layers_without_parameters():
    relu = nn.ReLU()
    assert relu.mu_w.size == relu.delta_var_b.size == 0
    with pytest.raises(AttributeError, match=r"ReLU\(\) has no parameters of its own"):
        relu.mu_w = [1]


def test_init_weight_bias_draws_anew(net):
    conv = net.layers[0]
    before = np.array(conv.mu_w)
    conv.init_weight_bias()
    assert not np.array_equal(conv.mu_w, before)
    np.testing.assert_allclose(conv.var_w, 1 / 9, rtol=1e-6)
    np.testing.assert_array_equal(net.arena.theta[0, :18], conv.mu_w)


def test_params_from(net):
    other = randomise(recorded_network(), seed=9)
    x = random_batch(other, 4)[0]
    other(x)
    net.params_from(other)
    assert net.state_dict() == other.state_dict()
    other.layers[0].mu_w[0] += 1
    assert net.state_dict() != other.state_dict()


class Annotated(nn.Linear):
    def __init__(self):
        self.before = 1
        super().__init__(2, 3)
        self.epoch = 3


def test_attributes_of_the_users_own(net):
    """A class of the user's may have them; in one of the library a misspelt name would be without effect."""
    layer = Annotated()
    layer.note = "stem"
    assert (layer.before, layer.epoch, layer.note) == (1, 3, "stem")
    net.layers[0]._note = "private"
    with pytest.raises(AttributeError, match=r"Annotated has no attribute 'trainable': layer\.freeze"):
        layer.trainable = False


@pytest.mark.parametrize("of", [lambda net: net.layers[0], lambda net: net], ids=["layer", "network"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("requires_grad", "layer.freeze"),
        ("trainable", "layer.freeze"),
        ("learning_rate", "TAGI has none"),
        ("traning", "did you mean training"),
        ("divice", "did you mean device"),
        ("epoch", "the library would not read it"),
    ],
)
def test_attributes_that_are_not_there(net, of, name, remedy):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'.*{remedy}"):
        setattr(of(net), name, 1)
    assert not hasattr(of(net), name)


def test_arrays_of_another_shape_are_refused():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    layer = net.layers[0]
    w = np.arange(6.0).reshape(2, 3)
    for shape in ((3, 2), (6,), (6, 1), (3, 2, 1)):
        layer.mu_w = w.reshape(shape)
        np.testing.assert_array_equal(layer.mu_w, w.ravel())
    with pytest.raises(
        ValueError, match=r"mu_w has the shape \(3, 2\), or flat \(6,\), got \(2, 3\): is it transposed"
    ):
        layer.mu_w = w
    state = net.state_dict()
    state["Linear.1"] = (w.T, *state["Linear.1"][1:])
    with pytest.raises(ValueError, match=r"Linear.1 mu_w has the shape \(2, 3\), .* got \(3, 2\)"):
        net.load_state_dict(state)
    conv = nn.Sequential(nn.Conv2d(3, 4, 2, in_width=5, in_height=5)).layers[0]
    conv.var_w = np.ones((4, 12))
    with pytest.raises(ValueError, match="is it transposed"):
        conv.var_w = np.ones((2, 2, 3, 4))


def test_an_operation_in_place_that_is_refused_says_so():
    layer = nn.Sequential(nn.Linear(2, 3)).layers[0]
    with pytest.raises(ValueError, match=r"must not be negative.* has changed var_w in place"):
        layer.var_w -= 1
    with pytest.raises(ValueError, match=r"negative, the smallest is -1\.0$"):
        layer.var_w = np.full(6, -1.0)
