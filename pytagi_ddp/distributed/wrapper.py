"""The base of all wrappers of a network."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, SupportsIndex, TypeVar

import numpy as np

from pytagi_ddp.interrupts import held_back
from pytagi_ddp.nn.core.alone import Method, alone
from pytagi_ddp.nn.core.alone import Network as OneThreadNetwork
from pytagi_ddp.nn.core.attributes import NETWORK, KnownAttributes
from pytagi_ddp.nn.core.fitting import fit
from pytagi_ddp.nn.files.state_dicts import StateDict
from pytagi_ddp.nn.layers.chain import listing
from pytagi_ddp.nn.sequential import Sequential

if TYPE_CHECKING:
    from typing_extensions import Self

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def collective(method: Method[OneThreadNetwork, Arguments, Result]) -> Method[OneThreadNetwork, Arguments, Result]:
    """Makes `method` run in one thread at a time, and raise Ctrl-C at its end, so that no rank leaves it early."""
    return alone(held_back()(method))


def of_network(
    method: Callable[Concatenate[Sequential, Arguments], Result], where: str
) -> Callable[Concatenate[Any, Arguments], Result]:
    """A method of a wrapper that calls the method of the network; `where` ends its docstring."""
    name = method.__name__

    @wraps(method)
    def call(self: Wrapper, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return getattr(self.model, name)(*args, **kwargs)

    call.__doc__ = f"`Sequential.{name}` {where}."
    return call


def attribute_of(part: str, name: str) -> Any:
    """A property of a wrapper: the attribute `name` of its attribute `part`."""
    return property(attrgetter(f"{part}.{name}"), lambda self, value: setattr(getattr(self, part), name, value), doc="")


class Wrapper(KnownAttributes):
    """Wraps the network `model`. Settings of the network have to be assigned to `model`.

    Reading or assigning such a setting here raises an error that says so. Arguments of the constructor (`_settled`)
    cannot be assigned after construction (`_made`).
    """

    model: Sequential
    output_z_buffer: Any  # `BaseHiddenStates`: of this rank, or of the whole batch
    _remedy = "assign it to `model`, on every rank alike"
    _settled: tuple[str, ...] = ()
    _made = False
    _not_copied = "belongs to the ranks of its job"
    fit = fit

    def _unknown(self, name: str) -> str:
        if hasattr(self.__dict__.get("model"), name):
            return f"{name!r} is an attribute of the network, not of {type(self).__name__}: {self._remedy}"
        return super()._unknown(name)

    def __repr__(self) -> str:
        return listing(type(self).__name__, {"model": self.__dict__.get("model")})

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"a {name} {self._not_copied}: copy or pickle its `model` instead")

    if not TYPE_CHECKING:  # otherwise type checkers would accept every name

        def __setattr__(self, name: str, value: Any) -> None:
            if self._made and name in self._settled:
                raise AttributeError(
                    f"{name!r} of a {type(self).__name__} is settled by its constructor: make another one, of a new "
                    "network"
                )
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(type(self.__dict__.get("model")), name):
                text += f": it is one of the network, `model.{name}`"
            elif name == "module":
                text += ": the network is `model`"
            elif name in NETWORK:
                text += f"; of the network, `model`: {NETWORK[name]}"
            raise AttributeError(text, name=name, obj=self)

    def train(self, mode: bool = True) -> Self:
        """Training mode, see `Sequential.train`."""
        self.model.train(mode)
        return self

    def eval(self) -> Self:
        """Evaluation mode, see `Sequential.eval`."""
        return self.train(False)

    def get_outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """(mu, var) of the last forward pass, flat copies; of a pipeline, on the rank that has the last stage."""
        states = self.output_z_buffer
        return np.array(states.mu_a), np.array(states.var_a)

    def state_dict(self) -> StateDict:
        """Parameters and running statistics. They are equal on every rank, except between merges.

        If ranks merge, running statistics differ after a pass in training mode, until the next merge.
        """
        return self.model.state_dict()

    def save(self, filename: str | bytes | Path) -> None:
        """`Sequential.save`."""
        self.model.save(filename)
