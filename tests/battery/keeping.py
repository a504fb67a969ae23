"""Checks of what outlasts a network: copies, files, and the settings that describe it."""

import copy
import inspect
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pytagi_ddp import manual_seed, nn
from tests.battery.example import (
    Example,
    assert_continue_alike,
    assert_same_bits,
    check,
    memory,
    observe,
    snapshot,
    train,
)
from tests.headers import with_header
from tests.pickled import out_of_band

# Arguments of constructors that are not settings: they shape the prior, and are not needed once it is drawn.
PRIOR = {"gain_weight", "gain_bias", "init_method", "scale"}


@check
def copies_continue_alone(example: Example) -> None:
    """Copies by deepcopy and pickle, made while deltas accumulate, continue with the same bits, and share no memory.

    So do those of pickles whose arrays come back read-only.
    """
    for duplicate in (copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net)), out_of_band):
        net = train(example.network(), 4, 3)
        with net.accumulate():
            observe(net, 4)
        twin = duplicate(net)
        pairs = zip(memory(net).items(), memory(twin).values(), strict=True)
        shared = [name for (name, mine), theirs in pairs if np.shares_memory(mine, theirs)]
        assert not shared, f"a copy shares {shared}"
        kept = snapshot(net)
        assert_same_bits(snapshot(twin), kept, "a copy")
        train(twin, 3, 5)
        assert_same_bits(snapshot(net), kept, "what a copy was made of, after the copy has learned")
        train(net, 3, 5)
        assert_continue_alike(twin, net, "a copy")


@check
def forgetting_ends_at_the_prior(example: Example) -> None:
    """`forget_evidence` multiplies variances by the factor, up to those of the prior, and leaves means as they are.

    Recorded passes compute with the new variances.
    """
    manual_seed(1)
    net = example.make()
    prior = net.arena.theta[1].copy()
    train(net, 4, 4, 4)
    mu, var = net.arena.theta.copy()
    assert (var < prior).any(), "nothing is learned: nothing could be seen here"
    net.forget_evidence(1.5)
    expected = np.minimum(np.float32(1.5) * var, np.maximum(prior, var))
    assert_same_bits({"theta": net.arena.theta}, {"theta": np.array([mu, expected])}, "forgetting")
    assert_continue_alike(net, copy.deepcopy(net), "after forgetting, a copy, which has recorded nothing")


@check
def frozen_layers_stay_as_they_are(example: Example) -> None:
    """No step and no forgetting changes a frozen layer. The others learn what they would have learnt beside it."""
    net = train(example.network(), 4, 4, 4)
    leaves = [leaf for _, leaf in net.named_leaves() if leaf.parameters is not None]
    for position, leaf in enumerate(leaves):
        twin = copy.deepcopy(net)
        leaf.freeze()
        assert leaf.frozen and "frozen" in repr(leaf) and "frozen" in net.summary()
        kept = [moments.copy() for moments in leaf.parameters.views]
        for each in (net, twin):
            observe(each, 4)
            each.step()
        others = [leaf for _, leaf in twin.named_leaves() if leaf.parameters is not None]
        for k, (own, other) in enumerate(zip(leaves, others, strict=True)):
            expected = kept if k == position else other.parameters.views
            for a, b in zip(own.parameters.views, expected, strict=True):
                assert np.array_equal(a, b, equal_nan=True), f"parameters of leaf {k}, with leaf {position} frozen"
        twin = copy.deepcopy(net)
        net.forget_evidence(1.5)
        train(net, 4, 4, 4)
        assert all(map(np.array_equal, leaf.parameters.views, kept)), "a frozen layer learns in recorded passes"
        train(twin, 4)
        frozen = [leaf for _, leaf in twin.named_leaves() if leaf.frozen]
        assert len(frozen) == 1 and all(map(np.array_equal, frozen[0].parameters.views, kept)), "a copy has lost it"
        leaf.unfreeze()
        train(net, 4, 4)
        assert not all(map(np.array_equal, leaf.parameters.views, kept)), "a layer learns no longer"


@check
def files_bring_everything_back(example: Example) -> None:
    """Another network becomes equal by loading a file or a state dictionary, and equal networks write equal files."""
    net = train(example.network(), 4, 3)
    read, filled = example.network(seed=2), example.network(seed=2)
    kept = net.state_dict(carried=True)
    assert read.state_dict() != kept, "another seed gives the same network: nothing could be seen here"
    with TemporaryDirectory() as folder:
        file, again = Path(folder, "net"), Path(folder, "again")
        net.save(file, carried=True)
        read.load(file)
        read.save(again, carried=True)
        assert file.read_bytes() == again.read_bytes(), "equal networks, other bytes"
    filled.load_state_dict(kept)
    for other, source in ((read, "a file"), (filled, "a dictionary")):
        assert other.state_dict(carried=True) == kept, f"not all comes back from {source}"
        assert_continue_alike(other, copy.deepcopy(net), source)


@check
def settings_make_the_layer_again(example: Example) -> None:
    """`settings()` are all arguments of the constructor but those of the prior, and `repr` shows them.

    A network of layers that are made again from their settings learns the same.
    """
    net = train(example.network(), 4)
    for _, leaf in net.named_leaves():
        settings, kind = leaf.settings(), type(leaf)
        arguments = {
            name
            for name, p in inspect.signature(kind).parameters.items()
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        }
        assert settings.keys() == arguments - PRIOR, f"{kind.__name__}: settings {set(settings)}, arguments {arguments}"
        shown = f"{leaf.name}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"
        assert repr(leaf) == repr(kind(**settings)) == shown, f"{leaf!r} is made again as {kind(**settings)!r}"
    again = nn.Sequential(*map(_made_again, net.layers))
    again.load_state_dict(net.state_dict(carried=True))
    assert_continue_alike(again, net, "a network of the same settings")


@check
def settings_that_are_assigned_count(example: Example) -> None:
    """A setting that is assigned takes effect at once, also in passes that were recorded; or it is refused."""
    net = train(example.network(), 4, 4, 4)
    for key, leaf in net.named_leaves():
        for name, value in leaf.settings().items():
            try:
                setattr(leaf, name, _another(value))
            except (AttributeError, ValueError):
                continue
            again = nn.Sequential(*map(_made_again, net.layers))
            again.load_state_dict(net.state_dict(carried=True))
            assert_continue_alike(net, again, f"{name} of {key} assigned")


def _made_again(layer: nn.BaseLayer) -> nn.BaseLayer:
    if isinstance(layer, nn.LayerBlock):
        return nn.LayerBlock(*map(_made_again, layer.layers))
    if isinstance(layer, nn.ResNetBlock):
        return nn.ResNetBlock(_made_again(layer.main_block), layer.shortcut and _made_again(layer.shortcut))
    if isinstance(layer, nn.Parallel):
        branches = [branch and _made_again(branch) for branch in layer.branches]
        return nn.Parallel(*branches, merge=layer.merge, split=layer.split)
    return type(layer)(**layer.settings())


@check
def files_of_other_settings_are_refused(example: Example) -> None:
    """`load` refuses a file in which a setting of a layer differs, names both values, and changes nothing."""
    net = example.network()
    before = net.state_dict()
    with TemporaryDirectory() as folder:
        file = Path(folder, "net")
        net.save(file)
        data = file.read_bytes()
        for key, leaf in net.named_leaves():
            for name, value in leaf.settings().items():
                other = _another(value)
                file.write_bytes(_with_architecture(data, lambda layers: layers[key].update({name: other})))  # noqa: B023
                message = _refusal(lambda: net.load(file))
                expected = f"{name} of {key} is {other!r} there and {value!r} here"
                assert message is not None and re.search(re.escape(expected), message), f"{expected}: got {message}"
    assert net.state_dict() == before, "a file that is refused changes the network"


def _another(value: Any) -> Any:
    """Another value of the same type."""
    if value is None or isinstance(value, bool):
        return not value
    return [*value, 1] if isinstance(value, list) else value + type(value)(1)


def _with_architecture(data: bytes, change: Callable[[dict], None]) -> bytes:
    """A file of a network after a change of the architecture that it describes."""

    def change_layers(header: dict) -> None:
        layers = json.loads(header["__metadata__"]["architecture"])
        change(layers)
        header["__metadata__"]["architecture"] = json.dumps(layers)

    return with_header(data, change_layers)


def _refusal(function: Callable[[], None]) -> str | None:
    """The message of the ValueError that a function raises, or None."""
    try:
        function()
    except ValueError as error:
        return str(error)
    return None
