"""Descriptors for arguments of a layer: `Setting` may be assigned at any time, `Fixed` only by the constructor."""

from numbers import Real
from typing import Any

from pytagi_ddp.nn.core.layer import BaseLayer
from pytagi_ddp.nn.core.step import Change
from pytagi_ddp.validate import as_bools

FINITE = -1e38, 1e38  # limits of a `Setting` without other limits


class Argument:
    """An attribute that a layer's constructor assigns."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, layer: BaseLayer | None, owner: type | None = None) -> Any:
        if layer is None:
            return self
        try:
            return layer.__dict__[self._name]
        except KeyError:  # the constructor has not set it yet
            raise AttributeError(f"{type(layer).__name__} has no {self._name} yet") from None


class Setting(Argument):
    """A number that kernel calls use: assigning it drops the calls that were recorded with the old value.

    Args:
        least, most: the smallest and the largest value that it may have.
    """

    def __init__(self, least: float, most: float):
        self._least, self._most = least, most

    def __set__(self, layer: BaseLayer, value: float) -> None:
        if not (isinstance(value, Real) and self._least <= value <= self._most):  # False for NaN
            raise ValueError(f"{layer.name} needs {self._least:g} <= {self._name} <= {self._most:g}, got {value!r}")
        with layer._alone:
            layer.__dict__[self._name] = value
            if layer._owner is not None:
                layer._owner.passes.invalidate(Change.SETTINGS)


class Switch(Setting):
    """A setting that is on or off."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def __set__(self, layer: BaseLayer, value: Any) -> None:
        super().__set__(layer, as_bools(layer.name, **{self._name: value})[0])


class Fixed(Argument):
    """An argument that the layer is built with: only the constructor may assign it."""

    def __set__(self, layer: BaseLayer, value: Any) -> None:
        if self._name in layer.__dict__:
            raise AttributeError(
                f"{type(layer).__name__}.{self._name} cannot be assigned: make a new layer, and a new network"
            )
        layer.__dict__[self._name] = value
