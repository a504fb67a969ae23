"""Assignments that an object accepts: attributes that it has. A misspelt one would be without effect, in silence."""

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

PACKAGE = __name__.partition(".")[0]
FREEZE = "layer.freeze() and layer.unfreeze() decide whether steps change the parameters of a layer"
NO_RATE = (
    "TAGI has none: the size of a step follows from the variances of the parameters (gain_weight, gain_bias) and of "
    "the observations"
)
MISTAKEN = {  # names that other libraries give to what is done otherwise here
    **dict.fromkeys(("requires_grad", "requires_grad_", "trainable"), FREEZE),
    **dict.fromkeys(("learning_rate", "lr"), NO_RATE),
}


def near_misses(name: str, owner: object) -> str:
    """The end of a message: the public attributes of `owner` whose names are like `name`, if there are any."""
    names = {known for known in dir(owner) if not known.startswith("_")}
    near = get_close_matches(name, sorted(names), 3)
    return f": did you mean {' or '.join(near)}?" if near else "."


def _by_the_package() -> bool:
    """Whether the code that makes an assignment is of this package."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__setattr__" and frame.f_back is not None:
        frame = frame.f_back
    return _is_of_the_package(frame.f_globals.get("__name__", ""))


def _is_of_the_package(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


class KnownAttributes:
    """Base of layers, networks and their wrappers: refuses the assignment of a public attribute that is not there.

    A class that is defined outside of the package may have attributes of its own, set at any time, but for those in
    `MISTAKEN`.
    """

    if not TYPE_CHECKING:  # or every name would pass as an attribute

        def __setattr__(self, name: str, value: Any) -> None:
            # Not self.__dict__: Python reads attributes of an object faster as long as nobody has asked for that.
            if name[:1] != "_" and not hasattr(type(self), name) and not hasattr(self, name):
                free = not _is_of_the_package(type(self).__module__) and name not in MISTAKEN
                if not free and not _by_the_package():
                    raise AttributeError(self._unknown(name), name=name, obj=self)
            super().__setattr__(name, value)

    def _unknown(self, name: str) -> str:
        """The message for an assignment to `name`, which is not an attribute."""
        if name in MISTAKEN:
            return f"{type(self).__name__} has no attribute {name!r}: {MISTAKEN[name]}"
        text = f"{type(self).__name__} has no attribute {name!r}, and setting it would have no effect"
        return f"{text}{near_misses(name, self)} (An attribute of your own begins with _, or is one of a subclass.)"
