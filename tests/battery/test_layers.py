"""Every layer of `pytagi_ddp.nn` through every check that applies to it."""

import inspect
from collections.abc import Iterator

import pytest

from pytagi_ddp import nn
from pytagi_ddp.nn.layers.activation import Activation
from tests.battery import CHECKS, keeping, numerics
from tests.battery.keeping import PRIOR
from tests.battery.layers import EXAMPLES, examples_of, layers_of
from tests.battery.numerics import oracles
from tests.mpi.ddp_networks import WITHOUT_BATCH_NORM, with_batch_norm

LAYERS = layers_of(nn)
ALL = {
    f"{kind.__name__}, {place}": example
    for kind in LAYERS
    if kind in EXAMPLES or issubclass(kind, Activation)  # the others fail below
    for place, example in examples_of(kind).items()
}


# What an activation has to do with these does not depend on its place.
ONE_PLACE = {
    keeping.copies_continue_alone,
    keeping.forgetting_ends_at_the_prior,
    keeping.frozen_layers_stay_as_they_are,
    keeping.files_bring_everything_back,
    keeping.settings_make_the_layer_again,
    keeping.files_of_other_settings_are_refused,
    numerics.threads_do_not_change_products,
    numerics.threads_do_not_change_numbers,
}


def cases() -> Iterator:
    """Each example with each check; all places of a layer but its first are slow together, and so is one check."""
    firsts: dict[str, str] = {}
    for name, example in ALL.items():
        kind = name.partition(",")[0]
        first = name == firsts.setdefault(kind, name)
        for check in CHECKS:
            if first or getattr(nn, kind) in EXAMPLES or check not in ONE_PLACE:
                fast = first and check is not numerics.threads_do_not_change_numbers
                marks = [] if fast else [pytest.mark.slow]
                yield pytest.param(example, check, id=f"{name}-{check.__name__}", marks=marks)


@pytest.mark.parametrize(("example", "check"), [*cases()])
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


def test_every_layer_is_trained_on_many_ranks():
    nets = [make() for make in (*WITHOUT_BATCH_NORM.values(), with_batch_norm)]
    there = {type(layer) for net in nets for _, layer in net.named_layers()}
    missing = [kind.__name__ for kind in LAYERS if kind not in there]
    assert not missing, f"add a network with {', '.join(missing)} to WITHOUT_BATCH_NORM in tests/mpi/ddp_networks.py"
