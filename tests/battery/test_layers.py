"""Every layer of `pytagi_ddp.nn` through every check that applies to it."""

import inspect

import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.activation import Activation
from tests.battery import CHECKS
from tests.battery.keeping import PRIOR
from tests.battery.layers import EXAMPLES, examples_of, layers_of
from tests.battery.numerics import oracles

LAYERS = layers_of(nn)
ALL = {
    f"{kind.__name__}, {place}": example
    for kind in LAYERS
    if kind in EXAMPLES or issubclass(kind, Activation)  # the others fail below
    for place, example in examples_of(kind).items()
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("example", ALL.values(), ids=ALL)
def test_layer(example, check):
    why = check(example)
    if why:
        pytest.skip(why)


@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_every_layer_has_examples_and_an_oracle(kind):
    """And every argument of its constructor has another value than the default in one of them."""
    nets = [example.network() for example in examples_of(kind).values()]
    assert oracles(kind), f"add {kind.__name__} to the reference in tests/nn, or recorded results to tests/golden"
    settings = [layer.settings() for net in nets for _, layer in net.named_layers() if type(layer) is kind]
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is not parameter.empty and name not in PRIOR:
            unusual = any(given[name] != parameter.default for given in settings)
            assert unusual, f"no example has a {name} other than {parameter.default}"
