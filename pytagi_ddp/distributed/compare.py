"""Comparison of networks across ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

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
    model.passes.new_schedule = False


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


def compare_replicas(
    communicator: Communicator, model: Sequential, call: str, part: int = 0, whole: bool = True
) -> None:
    """Raises ReplicaMismatchError on every rank if ranks have different parameters, frozen layers or schedules.

    Collective. It takes a pass over the parameters, and sends a number for each tensor.

    Args:
        communicator: of all ranks. model: this rank's replica. call: its name in messages.
        part: index of the stage that `model` is, or 0.
        whole: whether parameters are to be equal: they are neither in shards nor, on any rank, between two merges.
    """
    schedule = model.schedule
    own: dict[str, Any] = {"the list of frozen layers": [key for key, leaf in model.named_leaves() if leaf.frozen]}
    own["the EvidenceSchedule"] = None if schedule is None else schedule.state_dict() | {"steps": None}
    everyone = communicator.all_gather_object((part, own, _checksums(model) if whole else None), call)
    compares = all(checksums is not None for _, _, checksums in everyone)
    firsts: dict[int, tuple[int, dict[str, Any]]] = {}
    for rank, (theirs, values, checksums) in enumerate(everyone):
        values |= checksums if compares else {}
        first, expected = firsts.setdefault(theirs, (rank, values))
        for name, value in expected.items():
            if values[name] != value:
                raise ReplicaMismatchError(
                    f"ranks {first} and {rank} have different networks in {call}: {name} is {value} on rank {first} "
                    f"and {values[name]} on rank {rank}. One of them was changed alone: load(), freeze() and "
                    "assignments belong on every rank, and a callback that changes the network needs on_all_ranks = "
                    "True. synchronize() makes parameters equal again"
                )


def _checksums(model: Sequential) -> dict[str, int]:
    """A checksum of each tensor that ranks have in common."""
    arena, on_host = model.arena, model.device == "cpu"
    learned, running = (a if on_host else model.kernels.array.to_host(a) for a in (arena.theta, arena.statistics))
    found = {}
    for spec in arena.tensors:
        if spec.kind != "carried":
            row = running if spec.kind == "running" else learned[int(spec.variance)]
            found[f"the checksum of {spec.name}"] = crc32(row[spec.begin : spec.end].data)
    return found
