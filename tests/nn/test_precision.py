"""`Sequential(precision="mixed")`: who may ask for it, what it keeps, and how far its networks are from float32's."""

import copy
import pickle

import numpy as np
import pytest

from pytagi_ddp import manual_seed, nn
from pytagi_ddp.kernels.cpu.layers.linear import why_not_mixed
from tests.learning import learn
from tests.nn.networks import FIELDS, learned, pass_through, random_batch, randomise

REASON = why_not_mixed()
needs_bfloat16 = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def network(**options) -> nn.Sequential:
    """Dense, plain and Winograd products, blocks, and layers without products between them."""
    manual_seed(0)
    return randomise(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, in_width=8, in_height=8),
            nn.MixtureReLU(),
            nn.BatchNorm2d(16),
            nn.ResNetBlock(nn.LayerBlock(nn.Conv2d(16, 16, 3, padding=1), nn.MixtureReLU())),
            nn.AvgPool2d(2),
            nn.Linear(256, 20),
            nn.MixtureReLU(),
            nn.Linear(20, 5),
            **options,
        )
    )


def test_float32_unless_asked():
    assert network().precision == "float32"


@pytest.mark.parametrize("value", ["float16", None])
def test_refuses_an_unknown_precision(value):
    layer, net = nn.Linear(2, 1), network()
    with pytest.raises(ValueError, match='expected "float32" or "mixed"'):
        nn.Sequential(layer, precision=value)
    nn.Sequential(layer)  # the refused network did not keep it
    with pytest.raises(ValueError, match='expected "float32" or "mixed"'):
        net.precision = value
    assert net.precision == "float32"


@pytest.mark.skipif(REASON is None, reason="this CPU has the instructions")
def test_refuses_a_cpu_without_the_instructions():
    with pytest.raises(RuntimeError, match="avx512_bf16"):
        network(precision="mixed")


@needs_bfloat16
def test_stays_on_the_cpu():
    net = network(precision="mixed")
    with pytest.raises(RuntimeError, match="allow_tf32"):
        net.to_device("cuda:0")
    assert (net.device, net.precision) == ("cpu", "mixed")


@needs_bfloat16
def test_copies_and_pickles_keep_it():
    net = network(precision="mixed")
    batch = random_batch(net, 40)
    expected = net(*batch[:2])
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.precision == "mixed"
        for got, want in zip(other(*batch[:2]), expected, strict=True):
            np.testing.assert_array_equal(got, want)


@needs_bfloat16
def test_setting_it_is_as_good_as_asking_for_it():
    net = network()
    other = copy.deepcopy(net)
    batch = random_batch(net, 40)
    single = pass_through(net, *batch)
    net.precision = "mixed"
    mixed = pass_through(net, *batch)
    net.precision = "float32"
    for name, again in pass_through(net, *batch).items():
        np.testing.assert_array_equal(again, single[name], err_msg=name)
    other.precision = "mixed"
    for name, again in pass_through(other, *batch).items():
        np.testing.assert_array_equal(again, mixed[name], err_msg=name)
    assert (mixed["output variance"] != single["output variance"]).any()


@needs_bfloat16
def test_a_pass_back_needs_a_new_forward_pass():
    net = network()
    net(*random_batch(net, 3)[:2])
    net.precision = "mixed"
    with pytest.raises(RuntimeError, match="forward pass"):
        net.backward()


@needs_bfloat16
@pytest.mark.parametrize("batch", [1, 40])
def test_a_pass_is_near_that_of_float32(batch):
    net = network()
    data = random_batch(net, batch)
    expected = pass_through(net, *data)
    net.precision = "mixed"
    for name, got in pass_through(net, *data).items():
        scale = np.sqrt(np.mean(np.square(expected[name])))
        assert np.sqrt(np.mean(np.square(got - expected[name]))) <= 0.01 * scale, name
    assert (net.get_outputs()[1] > 0).all()


@needs_bfloat16
def test_training_is_near_that_of_float32():
    nets = network(), network()
    for parameters in zip(*map(learned, nets), strict=True):
        for field in FIELDS:
            getattr(parameters[1], field)[...] = getattr(parameters[0], field)
    nets[1].precision = "mixed"
    x, var_x, *_ = random_batch(nets[0], 40)
    y = np.random.default_rng(5).standard_normal((40, 5)).astype(np.float32)
    for net in nets:
        for _ in range(5):
            learn(net, x, y, var_x=var_x)
    (mu, var), (mixed_mu, mixed_var) = (net.predict(x, var_x=var_x) for net in nets)
    assert np.abs(mixed_mu - mu).max() < 0.05 * np.sqrt(var).min()
    np.testing.assert_allclose(mixed_var, var, rtol=0.02)
