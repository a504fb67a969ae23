"""`fit` of networks. Its loop is in `pytagi_ddp.training`, which imports this package and so is found late."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack


class Observed(Protocol):
    """The methods of a likelihood that the trainer calls. Programs may define their own."""

    def update(self, output_states: Any, y: Any, delta_states: Any, weight: ArrayLike = 1.0) -> None: ...
    def prediction(self, mu: Any, var: Any) -> Any: ...


class Options(TypedDict, total=False):
    """Options of the `Trainer`, weights and validation."""

    batch_size: int | None
    seed: int
    evidence: Mapping[str, Any] | None
    forget: float
    bn_batches: int
    average_last: float
    metrics: Mapping[str, Callable[[Any, Any], ArrayLike]] | None
    callbacks: Sequence[Any]
    weight: ArrayLike | None
    validation: Any


# Imports the loop when it is needed. The package sets it when it is imported.
find_loop: Callable[[], Callable[..., Any]] | None = None


def fit(
    self: Any,
    x: Any,
    y: Any = None,
    likelihood: Observed | None = None,
    epochs: int = 10,
    **options: Unpack[Options],
) -> list[dict[str, float]]:
    """Trains the network for some epochs: the short way to `pytagi_ddp.training.Trainer`, whose loop it is.

        history = net.fit(x, y, Gaussian(0.1), epochs=20, validation=(x_validation, y_validation))

    Many calls with one epoch do not train like one call: the steps at the end of each are small, as the schedule plans
    (`EvidenceSchedule`). For work between epochs use a callback.

    Args:
        x: inputs, a row for each sample; or, without y, a loader or an iterable of batches (x, y)
            or (x, y, weight).
        y: observations.
        likelihood: how outputs are observed. None: `Categorical` or `Bernoulli` if the data are classes.
        epochs: passes over the data.
        options: of the `Trainer` (batch_size, seed, evidence, callbacks, ...); weight, how often each sample counts,
            (samples,), or each of its observations; and validation, (x, y) or (x, y, weight).

    Returns:
        The results of each epoch, as `Trainer.fit`.

    Raises:
        ValueError, TypeError: as `Trainer` and `Trainer.fit`.
    """
    assert find_loop is not None
    return find_loop()(self, x, y, likelihood, epochs, **options)
