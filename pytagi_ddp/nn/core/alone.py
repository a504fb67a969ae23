"""A lock around methods of a network that only one thread at a time may run."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Network = TypeVar("Network")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Method = Callable[Concatenate[Network, Arguments], Result]


def alone(method: Method[Network, Arguments, Result]) -> Method[Network, Arguments, Result]:
    """Makes `method` raise RuntimeError while another thread is in such a method of the same network."""

    @wraps(method)
    def run(network: Any, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            one_thread = network._one_thread  # of `kernels.one_thread`
        except AttributeError:
            call = f"net.{method.__name__}(...)"
            raise TypeError(f"{method.__qualname__} is called on a network, as {call}, got {network!r:.60}") from None
        with one_thread:
            return method(network, *args, **kwargs)

    return run
