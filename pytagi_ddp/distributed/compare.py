"""Comparison of networks across ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pytagi_ddp.distributed.communicator import Communicator
from pytagi_ddp.nn.files.architecture import architecture, first_difference
from pytagi_ddp.nn.sequential import Sequential


class ReplicaMismatchError(RuntimeError):
    """The replicas of a network are no longer equal."""


def compare_networks(communicator: Communicator, model: Sequential, options: Mapping[str, Any]) -> None:
    """Raises ValueError on every rank if layers, settings or options of some rank differ from rank 0. Collective.

    It names the first difference (layer and setting), and both ranks.
    """
    of_network = {
        "parameters": f"{model.num_parameters} of {model.arena.dtype}",
        "the list of frozen layers": [key for key, leaf in model.named_leaves() if leaf.frozen],
        "the schedule": repr(model.schedule),
    }
    everyone = communicator.all_gather_object(
        (architecture(model), {**of_network, **options}), "the construction of a network of ranks"
    )
    first, first_options = everyone[0]
    for rank, (theirs, their_options) in enumerate(everyone):
        if difference := first_difference(first, theirs):
            what, a, b = difference
            raise ValueError(
                f"ranks 0 and {rank} have different networks: {what} is {a} on rank 0 and {b} on rank {rank}"
            )
        _compare(rank, "have different options", first_options, their_options)


def compare_arguments(communicator: Communicator, call: str, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError on every rank if the `arguments` of some rank to `call` differ from rank 0. Collective."""
    everyone = communicator.all_gather_object(arguments, call)
    for rank, theirs in enumerate(everyone):
        _compare(rank, f"call {call} with different arguments", everyone[0], theirs)


def _compare(rank: int, what: str, first: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raises ValueError if `theirs`, the values of `rank`, differ from `first`, those of rank 0."""
    for name, value in first.items():
        if theirs[name] != value:
            raise ValueError(
                f"ranks 0 and {rank} {what}: {name} is {value!r} on rank 0 and {theirs[name]!r} on rank {rank}"
            )


def compare_parameters(communicator: Communicator, model: Sequential) -> None:
    """Raises ReplicaMismatchError on every rank if parameters or running statistics differ. Collective."""
    digests = []
    for key, values in model.state_dict().items():
        digests.append((key, hashlib.blake2b(b"".join(array.tobytes() for array in values), digest_size=16).digest()))
    everyone = communicator.all_gather_object(digests, "a comparison of parameters")
    for rank, theirs in enumerate(everyone):
        for ours, other in zip(everyone[0], theirs, strict=True):
            if ours != other:
                raise ReplicaMismatchError(
                    f"ranks 0 and {rank} have different parameters in {ours[0]}: one of them was changed on its own, "
                    "or loaded from another file; synchronize() makes them equal again"
                )
