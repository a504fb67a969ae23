"""Checks of the options of a training, before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pytagi_ddp.nn.run.evidence import NUMBERS
from pytagi_ddp.training.callback import Callback

OF_EVIDENCE = (*NUMBERS, "steps_per_epoch")


def check_options(evidence: Any, metrics: Any, callbacks: Any) -> None:
    """Raises TypeError if one of them, options of the `Trainer`, is of another kind."""
    if evidence is not None:
        if not isinstance(evidence, Mapping):
            raise TypeError(f"evidence is None or a dict of {', '.join(OF_EVIDENCE)}; got {evidence!r:.60}")
        check_names("evidence", evidence, OF_EVIDENCE)
    if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
        raise TypeError(f"metrics is a dict of functions (prediction, y) by their names; got {metrics!r:.60}")
    for name in metrics or ():
        if not isinstance(name, str) or not name:
            raise TypeError(f"names of metrics are strings, got {name!r:.60}")
    for callback in callbacks if isinstance(callbacks, Iterable) else (None,):
        if not isinstance(callback, Callback):
            wrong = callbacks if callback is None else callback
            raise TypeError(f"callbacks are instances of Callback in a list, got {wrong!r:.60}")


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError if one of the `given` names is not known."""
    known = list(known)
    for name in given:
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise TypeError(f"{what} has no option {name!r}; {hint}")
