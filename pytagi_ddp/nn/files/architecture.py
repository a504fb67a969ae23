"""The layers of a network and their settings as text, for files and for the comparison between ranks."""

import json
from itertools import zip_longest
from typing import Any

import numpy as np

from pytagi_ddp.nn.core.network import Network

SINCE = {"through_statistics": False}  # settings that earlier versions did not have, with their values there


def architecture(model: Network) -> str:
    """The settings of every layer by its key, in forward order, as JSON.

    A block has an entry if it has settings of its own; its inner layers follow with their own keys.

    Raises:
        TypeError: `settings` of a layer gives no dict, or something else than numbers, strings, and lists or arrays.
    """
    layers = {key: layer._own_settings() for key, layer in model.named_layers()}
    for key, settings in layers.items():
        if not isinstance(settings, dict):
            raise TypeError(f"settings() of {key} has to give a dict of arguments, got {settings!r:.80}")
    return json.dumps({key: _plain(settings, key) for key, settings in layers.items()}, separators=(",", ":"))


def _plain(value: Any, of: str) -> Any:
    """`value` without tuples, and numbers and arrays of NumPy."""
    if isinstance(value, dict):
        return {name: _plain(part, f"{name} of {of}") for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, of) for part in value]
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist(), of)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{of}: settings() gives numbers, strings, and lists or arrays of them, got {type(value).__name__}")


def first_difference(ours: str, theirs: str) -> tuple[str, Any, Any] | None:
    """(what, ours, theirs): the first difference between two results of `architecture`; None if they are equal.

    `what` is `"<setting> of <key>"`, or `"layer <number>"` if the layers themselves differ.

    Raises:
        ValueError: a text that `architecture` has not written.
    """
    a, b = _layers(ours), _layers(theirs)
    nothing: tuple[str, dict] = ("no layer", {})
    for number, ((key, mine), (other_key, other)) in enumerate(zip_longest(a, b, fillvalue=nothing)):
        if key != other_key:
            return f"layer {number}", key, other_key
        for name in mine | other:
            here, there = (settings.get(name, SINCE.get(name, "not given")) for settings in (mine, other))
            if here != there:
                return f"{name} of {key}", here, there
    return None


def _layers(text: str) -> list[tuple[str, dict]]:
    layers = json.loads(text)
    if not isinstance(layers, dict) or not all(isinstance(settings, dict) for settings in layers.values()):
        raise ValueError("no layers by key")
    return list(layers.items())


def sizes(model: Network) -> str:
    """The architecture as in files of format 1: a line for each layer that computes, with pytagi's sizes."""
    return "".join(f"{key}: {leaf.get_layer_info()}\n" for key, leaf in model.named_leaves())


def first_other_size(ours: str, theirs: str) -> tuple[str, str, str] | None:
    """`first_difference` for two results of `sizes`."""
    lines = zip_longest(ours.splitlines(), theirs.splitlines(), fillvalue="no layer")
    return next(((f"layer {k}", mine, other) for k, (mine, other) in enumerate(lines) if mine != other), None)
