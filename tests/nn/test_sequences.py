"""Layers without time that get a sequence: they treat each time step as a sample."""

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.nn.core.state import Shape
from tests import learning
from tests.nn.networks import leaves, random_batch, randomise

STEPS, FEATURES = 4, 6


class Passed(nn.BaseLayer):
    """Passes its input on, and says nothing about it."""

    def forward(self, state, saved):
        return state

    def backward(self, delta, saved):
        return delta


class Sequence(Passed):
    """States that the input is a sequence, and passes it on."""

    def __init__(self, steps=STEPS, features=FEATURES):
        super().__init__()
        self.stated = Shape.of_sequence(steps, features)

    def default_input_shape(self):
        return self.stated


def learn(net: nn.Sequential, x, var_x, y) -> dict[str, np.ndarray]:
    """A step; all that comes of it."""
    net.input_state_update = True
    result = dict(zip(("mean", "variance"), learning.learn(net, x, y, 0.3, var_x), strict=True))
    return result | {"deltas of the input": np.array(net.get_input_states()), "parameters": net.arena.theta.copy()}


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)],
        lambda: [nn.LayerNorm([6]), nn.Linear(6, 2), nn.Tanh()],
        lambda: [nn.Linear(6, 5), nn.BatchNorm2d(5), nn.Sigmoid(), nn.Linear(5, 2)],
        lambda: [nn.Linear(6, 4), nn.Softmax(), nn.Linear(4, 3), nn.Remax()],
        lambda: [nn.Linear(6, 4), nn.EvenExp(), nn.Linear(4, 3), nn.ClosedFormSoftmax()],
        lambda: [
            nn.Linear(6, 5),
            nn.ResNetBlock(nn.LayerBlock(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)), nn.Linear(5, 2)),
        ],
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_time_steps_are_samples(layers, batch):
    """To the last bit, the cap on a step's change included: it is that of batch x time steps samples."""
    manual_seed(1)
    net, rows = (randomise(nn.Sequential(*head, *layers())) for head in ([Sequence()], []))
    assert (net.in_shape.sequence, net.out_shape.steps) == ((STEPS, FEATURES), STEPS)
    rows.arena.theta[...] = net.arena.theta
    x, var_x, y, _ = random_batch(net, batch)
    x, var_x = 0.2 * x, 0.2 * var_x  # the exponential of more overflows
    actual, expected = learn(net, x, var_x, y), learn(rows, x.ravel(), var_x.ravel(), y.ravel())
    for name, want in expected.items():
        np.testing.assert_array_equal(actual[name], want, err_msg=name)
    assert {leaf.steps for leaf in leaves(net) if leaf.num_weights} == {STEPS}


def test_a_flat_sample():
    """Linear(time steps x features) takes a sample as a whole, and its cap counts samples."""
    net, flat = (randomise(nn.Sequential(*head, nn.Linear(STEPS * FEATURES, 2))) for head in ([Sequence()], []))
    flat.arena.theta[...] = net.arena.theta
    batch = random_batch(net, 1)[:3]
    for actual, expected in zip(learn(net, *batch).values(), learn(flat, *batch).values(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert net.layers[1].steps == 1 and net.out_shape == Shape(2)


def test_shapes_of_inputs_and_predictions():
    net = nn.Sequential(Sequence(), nn.Linear(FEATURES, 2))
    x = random_batch(net, 3)[0]
    expected = net(x)
    for shape in ((3, STEPS, FEATURES), (3, STEPS * FEATURES), (-1,)):
        np.testing.assert_array_equal(net(x.reshape(shape)), expected)
    mu, var = net.predict(x, batch_size=2)
    assert mu.shape == var.shape == (3, STEPS, 2)
    np.testing.assert_allclose(mu.reshape(-1), expected[0], 1e-6)
    with pytest.raises(ValueError, match="not a whole number of samples of 24 inputs"):
        net(x[0, :FEATURES])


def test_observations_of_some_outputs_of_each_step():
    net = nn.Sequential(Sequence(), nn.Linear(FEATURES, 5))
    net(random_batch(net, 2)[0])
    index = np.arange(2 * STEPS * 2).reshape(2, STEPS, 2) % 5 + 1
    updater, deltas = nn.OutputUpdater("cpu"), net.input_delta_z_buffer
    updater.update_using_indices(net.output_z_buffer, np.ones(16), np.ones(16), index, deltas)
    observed = np.zeros((2 * STEPS, 5), bool)
    observed[np.arange(8)[:, None], index.reshape(8, 2) - 1] = True
    np.testing.assert_array_equal(deltas.delta_var.reshape(8, 5) != 0, observed)
    with pytest.raises(ValueError, match="from 1 to 5"):
        updater.update_using_indices(net.output_z_buffer, np.ones(8), np.ones(8), np.full(8, 6), deltas)


@pytest.mark.parametrize("layer", [lambda: nn.Linear(5, 2), lambda: nn.LayerNorm([4]), lambda: nn.BatchNorm2d(5)])
def test_sizes_that_do_not_fit(layer):
    with pytest.raises(ValueError, match="gives 4x6"):
        nn.Sequential(Sequence(), layer())
    with pytest.raises(ValueError, match=r"EvenExp .* gives 4x3"):
        nn.Sequential(Sequence(), nn.Linear(FEATURES, 3), nn.EvenExp())


@pytest.mark.parametrize("sequence", [lambda: nn.LSTM(8, 8, 4), lambda: nn.MultiheadAttention(8, 2, seq_len=4)])
def test_layers_before_the_first_that_says_how_many_time_steps_there_are(sequence):
    """They take each by itself, as behind a layer that gives a sequence; a flat one takes the sample as a whole."""
    by_step = [lambda: nn.Linear(3, 5), nn.Tanh, lambda: nn.LayerNorm([5]), lambda: nn.Linear(5, 8)]
    net = nn.Sequential(nn.ReLU(), *(layer() for layer in by_step), sequence(), nn.Linear(8, 2))
    assert (net.in_shape.sequence, net.out_shape.sequence) == ((4, 3), (4, 2))
    assert [layer.steps for layer in net.layers if isinstance(layer, nn.Linear)] == [4, 4, 4]
    x = random_batch(net, 2)[0].reshape(2, 4, 3)
    head, tail = nn.Sequential(*(layer() for layer in by_step)), nn.Sequential(sequence(), nn.Linear(8, 2))
    for part, first in ((head, 1), (tail, 5)):
        for mine, theirs in zip(part.layers, net.layers[first:], strict=False):
            if mine.parameters:
                mine.mu_w, mine.var_w, mine.mu_b, mine.var_b = theirs.parameters.views
    np.testing.assert_allclose(net(x), tail(*head(np.maximum(x, 0))), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.LayerBlock(nn.Linear(3, 8), nn.ReLU()), nn.LSTM(8, 8, 4)],
        lambda: [nn.Linear(3, 8), nn.ResNetBlock(nn.LayerBlock(nn.Linear(8, 5), nn.Linear(5, 8))), nn.LSTM(8, 8, 4)],
        lambda: [nn.Linear(3, 8), nn.ResNetBlock(nn.LayerBlock(nn.RMSNorm(8), nn.MultiheadAttention(8, 2, seq_len=4)))],
        lambda: [nn.Parallel(nn.Linear(3, 5), None, merge="concat"), nn.LSTM(8, 8, 4)],
        lambda: [nn.Parallel(nn.Linear(1, 2), nn.Linear(2, 6), merge="concat", split=[1, 2]), nn.LSTM(8, 8, 4)],
        lambda: [nn.Parallel(nn.Linear(3, 8), nn.LSTM(3, 8, 4))],
    ],
)
def test_blocks_before_or_around_the_first_that_says_how_many_time_steps_there_are(layers):
    """As if a layer before them said it."""
    net, told = (randomise(nn.Sequential(*head, *layers(), nn.Linear(8, 2))) for head in ([], [Sequence(4, 3)]))
    assert (net.in_shape.sequence, net.out_shape.sequence) == ((4, 3), (4, 2))
    told.arena.theta[...] = net.arena.theta
    x, var_x, y, _ = random_batch(net, 2)
    np.testing.assert_equal(learn(net, x, var_x, y), learn(told, x, var_x, y))


def test_a_branch_of_unknown_features_before_an_lstm():
    """It may need the sample as a whole."""
    with pytest.raises(ValueError, match=r"needs an input of 4x8 .* gives 8"):
        nn.Sequential(nn.Linear(3, 8), nn.Parallel(None, Passed()), nn.LSTM(8, 8, 4))


def test_layers_before_an_lstm_that_give_a_flat_sample_or_do_not_fit():
    assert nn.Sequential(nn.Linear(3, 32), nn.LSTM(8, 8, 4)).in_shape == Shape(3)
    with pytest.raises(ValueError, match=r"needs an input of 4x8 .* gives 7"):
        nn.Sequential(nn.Linear(3, 7), nn.LSTM(8, 8, 4))
