"""Comparison of networks across ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.nn.sequential import Sequential

SETTINGS = ("window", "eps", "momentum")  # of a layer, that its sizes do not show


class ReplicaMismatchError(RuntimeError):
    """The replicas of a network are no longer equal."""


def compare_networks(communicator: Communicator, model: Sequential, options: Mapping[str, Any]) -> None:
    """Raises on every rank if some rank has other layers than rank 0, or other options. Collective.

    Raises:
        ValueError: names the first difference, and both ranks.
    """
    layers = [
        (key, leaf.get_layer_info(), leaf.num_weights, leaf.num_biases, str(model.arena.theta.dtype))
        for key, leaf in model.named_leaves()
    ]
    settings = {
        f"{name} of {key}": str(getattr(leaf, name))
        for key, leaf in model.named_leaves()
        for name in SETTINGS
        if hasattr(leaf, name)
    }
    everyone = communicator.all_gather_object((layers, {**options, **settings}))
    first, first_options = everyone[0]
    for rank, (theirs, their_options) in enumerate(everyone):
        for k in range(max(len(first), len(theirs))):
            a, b = (network[k] if k < len(network) else "no layer" for network in (first, theirs))
            if a != b:
                raise ValueError(
                    f"ranks 0 and {rank} have different networks: layer {k} is {a} on rank 0 and {b} on rank "
                    f"{rank} (key, layer, weights, biases, dtype)"
                )
        for name, value in first_options.items():
            if their_options[name] != value:
                raise ValueError(
                    f"ranks 0 and {rank} have different options: {name} is {value!r} on rank 0 and "
                    f"{their_options[name]!r} on rank {rank}"
                )


def compare_parameters(communicator: Communicator, model: Sequential) -> None:
    """Raises on every rank if parameters or running statistics differ between ranks. Collective.

    Raises:
        ReplicaMismatchError: names the first layer that differs, and both ranks.
    """
    digests = []
    for key, values in model.state_dict().items():
        digests.append((key, hashlib.blake2b(b"".join(array.tobytes() for array in values), digest_size=16).digest()))
    everyone = communicator.all_gather_object(digests)
    for rank, theirs in enumerate(everyone):
        for ours, other in zip(everyone[0], theirs, strict=True):
            if ours != other:
                raise ReplicaMismatchError(
                    f"ranks 0 and {rank} have different parameters in {ours[0]}: one of them was changed on its own, "
                    "or loaded from another file; synchronize() makes them equal again"
                )
