"""Methods that all ranks call together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.alone import HasOneThread, alone

Network = TypeVar("Network", bound=HasOneThread)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def collective(
    method: Callable[Concatenate[Network, Arguments], Result],
) -> Callable[Concatenate[Network, Arguments], Result]:
    """`method`, of one thread at a time, and with Ctrl-C answered at its end: no rank leaves it in the middle."""
    return alone(held_back()(method))
