"""Methods that all ranks call together."""

from __future__ import annotations

from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.alone import Arguments, Method, Network, Result, alone


def collective(method: Method[Network, Arguments, Result]) -> Method[Network, Arguments, Result]:
    """`method`, of one thread at a time, and with Ctrl-C answered at its end: no rank leaves it in the middle."""
    return alone(held_back()(method))
