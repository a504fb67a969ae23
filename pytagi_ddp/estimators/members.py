"""The networks of an ensemble: small dense networks, each trained separately from its own seed.

Repeated epochs count the same evidence again: with the posterior of one epoch as the prior of the next, variances
shrink like 1/t, and learning stops long before the data are fitted. So evidence is forgotten before each of the first
epochs, see `Sequential.forget_evidence`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass

import numpy as np

from pytagi_ddp.estimators.encoding import CategoryInputs, Encoding
from pytagi_ddp.kernels.formulas.encoding import ROUNDING
from pytagi_ddp.nn import Linear, OutputUpdater, ReLU, Sequential
from pytagi_ddp.nn.core.forgetting import FORGETS_UNTIL, forgets_before
from pytagi_ddp.nn.core.init import manual_seed, use_own_generator

SAMPLES = 200_000  # the default number of epochs shows a network about this many samples, but is at least 40
LEAST_NOISE = 1e-5  # lower limit of the noise variance, for a target of variance 1
MOST_NOISE = 1e30  # upper limit of it, in float32
TESTED = 256  # samples by which the noise is estimated before an epoch: its standard error is then about 9 %
CHANGED, LEAST_TESTED = 100_000, 16  # predictions for the relevance of all inputs together, and at least of each
LEAST_SCALE = 0.03  # of an input, relative to the largest one
PREDICTED = 512  # samples that are predicted at a time
DRAWS = 64  # draws of missing inputs
SIMILAR = 16  # values, around one that was not learnt, of which it may be any
WORK_OF_A_STEP = 5000  # cost of a step without its products, in weights
Observe = Callable[..., None]  # called with a network, an updater and the targets of a batch


@dataclass(frozen=True)
class Training:
    """How one network is made and trained.

    Attributes:
        hidden: units of each hidden layer. outputs: number of outputs.
        epochs, batch_size: number of epochs, and samples of a batch. An epoch consists of whole batches; the remaining
            samples are used in other epochs.
        forget: factor on all variances before an epoch. until: share of the epochs after which nothing is forgotten.
        gain: factor on the prior standard deviations of weights.
        encoding: of the inputs, in front of the layers, or None.
        scaled_by: the training to whose networks the `relevance` of each input is its scale, or None.
    """

    hidden: tuple[int, ...]
    epochs: int
    batch_size: int = 16
    outputs: int = 1
    forget: float = 4.0
    until: float = FORGETS_UNTIL
    gain: float = 1.0
    encoding: Encoding | None = None
    scaled_by: Training | None = None

    def network(self, inputs: int, seed: int) -> Sequential:
        """An untrained network, whose prior is drawn from `seed`; the library's random generator is not used."""

        def draw() -> Sequential:
            use_own_generator()
            manual_seed(seed)
            e, sizes = self.encoding, itertools.pairwise(self._sizes(inputs))
            layers = [part for size in sizes for part in (Linear(*size, gain_weight=self.gain), ReLU())]
            net = Sequential(*([] if e is None else [e.layer()]), *layers[:-1])
            net.missing_inputs = "standard normal"
            return net

        return copy_context().run(draw)

    def work(self, inputs: int) -> float:
        """Approximate time of training on one sample, in a unit that is the same for all trainings."""
        return self.epochs * (WORK_OF_A_STEP + sum(a * b for a, b in itertools.pairwise(self._sizes(inputs))))

    def _sizes(self, inputs: int) -> tuple[int, ...]:
        return (self.inputs(inputs), *self.hidden, self.outputs)

    def inputs(self, inputs: int) -> int:
        """The number of inputs after the encoding."""
        return inputs if self.encoding is None else self.encoding.outputs

    def prepare(self, net: Sequential, epoch: int) -> None:
        """To be called before each epoch, from 0 on: forgets evidence, except before the first and the last ones."""
        if self.forget > 1 and forgets_before(epoch, self.epochs, self.until):
            net.forget_evidence(self.forget)


def default_epochs(samples: int, most: int) -> int:
    return int(np.clip(SAMPLES / samples, 40, most))


def run_epoch(
    net: Sequential, batch_size: int, rng: np.random.Generator, observe: Observe, x: np.ndarray, *targets: np.ndarray
) -> None:
    """One epoch of whole batches in random order, see `learn`."""
    batch_size = min(batch_size, len(x))
    learn(net, batch_size, rng.permutation(len(x))[: len(x) // batch_size * batch_size], observe, x, *targets)


def learn(
    net: Sequential, batch_size: int, rows: np.ndarray, observe: Observe, x: np.ndarray, *targets: np.ndarray
) -> None:
    """Learns the samples `rows` once, in this order; the last batch may be smaller than the others.

    `observe(net, updater, *targets)` compares the outputs of a batch with its targets.
    """
    updater = OutputUpdater(net.device)
    x, targets = x[rows], tuple(target[rows] for target in targets)  # at once: faster than batch by batch
    for start in range(0, len(rows), batch_size):
        batch = slice(start, start + batch_size)
        net(x[batch])
        observe(net, updater, *[target[batch] for target in targets])
        net.backward()
        net.step()


def observe_values(net: Sequential, updater: OutputUpdater, y: np.ndarray, variances: np.ndarray) -> None:
    """Observes values y of the outputs, (n, outputs), with as many variances of their noise."""
    updater.update(net.output_z_buffer, y, variances, net.input_delta_z_buffer)


def moments(net: Sequential, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of the outputs, (n, outputs) float64.

    The last batch has one of few sizes, eight between two powers of two: networks record their calls for each size, and
    drop all recordings if there are many.
    """
    last = len(x) % PREDICTED
    more = -last % max(1 << last.bit_length() >> 4, 1)
    batches = [x]
    if more:
        batches = [x[: len(x) - last], np.concatenate([x[len(x) - last :], np.zeros((more, x.shape[1]), x.dtype)])]
    found = [net.predict(batch, PREDICTED) for batch in batches if len(batch) or not more]
    mu, var = (np.concatenate(values)[: len(x)].astype(np.float64) for values in zip(*found, strict=True))
    return mu, var


def relevance(net: Sequential, x: np.ndarray) -> np.ndarray:
    """The relevance of each input: the root mean square change of the prediction if it is that of another sample.

    It is relative to the root mean square of all, and at least `LEAST_SCALE` of the largest.

    Source: Radhakrishnan et al. (2024), "Mechanism for feature learning in neural networks and backpropagation-free
    machine learning models", Science 383, scale inputs by gradients, repeatedly; here are finite differences.
    """
    some = x[:: len(x) // int(np.clip(CHANGED // x.shape[1], LEAST_TESTED, TESTED)) + 1]
    mu, other = moments(net, some)[0], np.random.default_rng(0).permutation(len(some))
    changes = np.zeros(x.shape[1])
    for k in range(len(changes)):
        changed = some.copy()
        changed[:, k] = some[other, k]
        changes[k] = np.sqrt(((moments(net, changed)[0] - mu) ** 2).mean())
    scales = np.maximum(changes, max(LEAST_SCALE * changes.max(), LEAST_NOISE))
    return scales / np.sqrt((scales**2).mean())


def moments_apart(
    net: Sequential, x: np.ndarray, categories: Sequence[CategoryInputs] = ()
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(means, variances, added variances due to missing inputs). A missing input is sampled.

    Propagating its moments would treat the network as linear, because ReLUs are linearised at the mean.

    Args:
        categories: those that the network has learnt. Any other one is sampled from them: its own weights have their
            prior, and inputs that are drawn separately are no category.
    """
    mu, var = moments(net, x)
    added, missing = np.zeros(mu.shape), np.isnan(x)
    unknown = [column.unknown(x) for column in categories]
    for column, which in zip(categories, unknown, strict=True):
        missing[which, column.inputs] = True
    known = known_values(net)
    for k, values in known.items():
        missing[:, k] |= ~near_any(x[:, k], values)
    if not missing.any():
        return mu, var, added
    rows, rng = np.flatnonzero(missing.any(1)), np.random.default_rng(0)
    half = rng.standard_normal((DRAWS // 2, x.shape[1]), np.float32)
    places = {k: rng.permutation(DRAWS) / DRAWS for k in known}
    drawn = [column.drawn((rng.permutation(DRAWS) + 0.5) / DRAWS) for column in categories]
    for start in range(0, len(rows), PREDICTED):  # all rows at once would take 64 times their memory
        block = rows[start : start + PREDICTED]
        some = x[block]
        filled = [np.where(np.isnan(some), z, some) for z in (*half, *-half)]
        for k, values in known.items():
            replaced = missing[block, k]
            for z, place in zip(filled, places[k], strict=True):
                z[replaced, k] = similar(some[replaced, k], values, place)
        for column, which, draws in zip(categories, unknown, drawn, strict=True):
            for z, one in zip(filled, draws, strict=True):
                z[which[block], column.inputs] = one
        mus, variances = np.array([moments(net, z) for z in filled]).swapaxes(0, 1)
        mu[block], var[block], added[block] = mus.mean(0), variances.mean(0), mus.var(0)
    return mu, var, added


def known_values(net: Sequential) -> dict[int, np.ndarray]:
    """The values that have a unit of their own, by the number of the input."""
    values = getattr(net.layers[0], "values", None) or ()
    return {k: np.array(some, np.float32) for k, some in enumerate(values) if some}


def near_any(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Whether each number is one of the values, up to rounding, as in `formulas.encoding.value_unit`."""
    after = np.searchsorted(values, x)
    around = (values[np.clip(k, 0, len(values) - 1)] for k in (after - 1, after))
    return np.any([np.abs(x - value) <= ROUNDING * np.maximum(np.abs(value), 1) for value in around], 0)


def similar(x: np.ndarray, values: np.ndarray, place: float) -> np.ndarray:
    """For each number one of the `SIMILAR` values around it, for NaN one of all values: that at `place`, in [0, 1)."""
    count = min(SIMILAR, len(values))
    first = np.clip(np.searchsorted(values, x) - count // 2, 0, len(values) - count)
    return values[np.where(np.isnan(x), int(place * len(values)), first + int(place * count))]


def weighted(noise: float | np.ndarray, weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Variances of the noise, of this shape, divided by the weights of the observations."""
    return np.broadcast_to(np.minimum(noise / weights[:, None], MOST_NOISE).astype(np.float32), shape)


def fit_values(
    training: Training, x: np.ndarray, y: np.ndarray, weights: np.ndarray, seed: int, noise: np.ndarray | None
) -> Sequential:
    """A network trained on standardised y, (n, outputs), which count `weights` times.

    Args:
        noise: variances of the observations, one for each output. None: 1 in the first epoch, then the mean squared
            errors of at most `TESTED` random samples before each epoch.
    """
    net, rng = training.network(x.shape[1], seed), np.random.default_rng(seed)
    for epoch in range(training.epochs):
        training.prepare(net, epoch)
        variance = noise if noise is not None else 1.0
        if noise is None and epoch:
            some = slice(None) if len(x) <= TESTED else rng.permutation(len(x))[:TESTED]
            variance = squared_error(net, x[some], y[some], weights[some])
        variances = weighted(variance, weights, y.shape)
        run_epoch(net, training.batch_size, rng, observe_values, x, y, variances)
    return net


def squared_error(net: Sequential, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.maximum(weights @ (moments(net, x)[0] - y) ** 2 / weights.sum(), LEAST_NOISE)
