"""Checks of the shapes of a loop's arguments, because compiled code could access memory outside arrays."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pytagi_ddp.kernels.cpu.runtime.extension import size_error

KEPT = 1000  # limit of stored combinations of shapes, because a program may use many batch sizes


class Shapes:
    """Checks the arguments of the loop `function`. Valid shapes are not checked again.

    Args:
        declared: a word for each argument. "bf" is an array of two dimensions, b x f: a letter is the same length in
            all words, and a digit is that length. "=s" is a number with the name s. "_" is any argument.
        fits: a further condition on these lengths and numbers.
        undeclared: number of arguments before them that no call has.

    Attributes:
        names, words: name and declaration of each argument.
    """

    def __init__(
        self, function: Callable, declared: str, fits: Callable[[Any], bool] | None = None, undeclared: int = 0
    ):
        self._call = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self.names = function.__code__.co_varnames[undeclared : function.__code__.co_argcount]
        self.words, self._fits = declared.split(), fits
        if len(self.words) != len(self.names):
            raise TypeError(f"{self._call}{self.names} is declared with {declared!r}")
        self._places = [k for k, word in enumerate(self.words) if word != "_"]
        self._known: set[tuple] = set()

    def check(self, arguments: tuple) -> None:
        """Raises ValueError, with the shape of each array, if the arguments do not fit together."""
        shapes = tuple([getattr(arguments[k], "shape", arguments[k]) for k in self._places])
        if shapes in self._known:
            return
        lengths: dict[str, Any] = {}
        for k, shape in zip(self._places, shapes, strict=True):
            word = self.words[k]
            if word[0] == "=":
                lengths[word[1:]] = shape
            elif len(word) != len(shape) or any(
                length != (int(name) if name.isdigit() else lengths.setdefault(name, length))
                for name, length in zip(word, shape, strict=True)
            ):
                self._refuse(arguments)
        if self._fits is not None and not self._fits(SimpleNamespace(**lengths)):
            self._refuse(arguments)
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known.add(shapes)

    def _refuse(self, arguments: tuple) -> None:
        named = zip(self.names, arguments, strict=True)
        raise size_error(self._call, **{name: array for name, array in named if hasattr(array, "shape")})
