"""Methods that all ranks call together."""

from __future__ import annotations

from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.alone import Arguments, Method, Network, Result, alone


def collective(method: Method[Network, Arguments, Result]) -> Method[Network, Arguments, Result]:
    """Makes `method` run in one thread at a time, and answer Ctrl-C at its end, so that no rank leaves it midway."""
    return alone(held_back()(method))
