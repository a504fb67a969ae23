"""Every layer of `pytagi_ddp.nn` through every check that applies to it."""

import inspect

import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.layers.activation import Activation
from tests.battery import CHECKS
from tests.battery.keeping import PRIOR
from tests.battery.layers import EXAMPLES, examples_of, layers_of
from tests.battery.numerics import oracles, threads_do_not_change_numbers

LAYERS = layers_of(nn)
ALL = {
    f"{kind.__name__}, {place}": example
    for kind in LAYERS
    if kind in EXAMPLES or issubclass(kind, Activation)  # the others fail below
    for place, example in examples_of(kind).items()
}


def marked(check):
    """A check; the one that compiles each loop for threads, too, is slow."""
    return pytest.param(check, marks=[pytest.mark.slow] if check is threads_do_not_change_numbers else [])


def example_marked(name: str):
    """An example; all places of a layer but its first are slow together."""
    kind = name.partition(",")[0]
    first = next(other for other in ALL if other.partition(",")[0] == kind)
    return pytest.param(ALL[name], id=name, marks=[] if name == first else [pytest.mark.slow])


@pytest.mark.parametrize("check", [marked(check) for check in CHECKS], ids=[check.__name__ for check in CHECKS])
@pytest.mark.parametrize("example", [example_marked(name) for name in ALL])
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
