"""Classification with probabilities that are calibrated on samples outside the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_X_y, column_or_1d

from pytagi_ddp.estimators.encoding import CategoryInputs
from pytagi_ddp.estimators.ensemble import EnsembleEstimator, unchanged_unless_done, unwrapped
from pytagi_ddp.estimators.folds import learnt_by
from pytagi_ddp.estimators.inputs import explained, sample_weights
from pytagi_ddp.estimators.locks import lock_of
from pytagi_ddp.estimators.members import Training, learn, moments_apart, run_epoch, weighted
from pytagi_ddp.estimators.noise import of_each
from pytagi_ddp.estimators.repeated import SharedClasses, learn_classes
from pytagi_ddp.likelihoods import Categorical
from pytagi_ddp.likelihoods.classes import expected_softmax
from pytagi_ddp.nn import EvidenceSchedule, OutputUpdater, Sequential
from pytagi_ddp.nn.hierarchical_softmax import class_probabilities, encode_classes, hierarchical_softmax
from pytagi_ddp.validate import as_bools, as_numbers

COUNT = 16.0  # of the schedule; the temperature corrects probabilities that are too certain
TEMPERATURES = np.geomspace(0.1, 8, 53)
SIGMA_V = 0.5  # default for networks with a hierarchical softmax
LEAST = 1e-12  # probability


class TAGIClassifier(ClassifierMixin, EnsembleEstimator):
    """Classification by an ensemble of TAGI networks with a `Categorical` likelihood.

    1. Inputs are standardised. For each of `n_folds` folds, `n_seeds` networks are trained on the samples of the other
       folds, with the evidence-weighted step (`nn.EvidenceSchedule`, `count=16`): so epochs do not add evidence.
    2. The probability p of a class is the mean over the networks. Probabilities are tempered, p^(1/T) / sum p^(1/T). T
       makes the samples most likely under the networks that have not seen them, with the prior ln T ~ N(0, 1/4).
    3. Samples with equal inputs (unless they are more than a tenth of all) are in one fold. If their classes have more
       in common than networks predict, the probabilities at an input that was learnt are (a p + c)/(a + n), for n
       samples, c of which have the class. The samples choose a.

    Args:
        sigma_v: None, or a number for the networks of versions before 0.3: a hierarchical softmax, where +1 and -1 with
            noise of this standard deviation encode a class, and evidence is forgotten between epochs according to
            `forget` and `forget_until`.
        hidden_layer_sizes, epochs, batch_size, n_folds, forget, forget_until: as in `TAGIRegressor`. With one fold,
            probabilities are not tempered.
        n_seeds: networks for each fold. None: 2 to 4, as in `TAGIRegressor`, by the log loss.
        n_bins, categorical_features, max_time, known_rows, n_jobs, random_state, verbose: as in `TAGIRegressor`.

    Attributes:
        classes_: the classes, sorted. networks_: the networks, fold by fold. temperature_: T.
        n_features_in_, feature_names_in_: as in scikit-learn.

    NaN in the inputs is a missing value, which counts as N(0, 1) after standardisation. Threads and batches: as for
    `TAGIRegressor`. Probabilities of a sample differ by less than 1e-5 if it is predicted in another batch.

    Source: `likelihoods.Categorical`, `nn.EvidenceSchedule`, `nn.hierarchical_softmax`; Guo et al. (2017), "On
    calibration of modern neural networks", for T.
    """

    _shared: SharedClasses | None = None  # what is known of inputs that have been learnt
    _tree = True  # whether the networks have a hierarchical softmax, as those of earlier versions

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | None = None,
        *,
        epochs: int | None = None,
        batch_size: int = 16,
        sigma_v: float | None = None,
        n_folds: int = 5,
        n_seeds: int = 2,
        forget: float = 4.0,
        forget_until: float = 0.7,
        n_bins: int | None = None,
        categorical_features: Any = "from_dtype",
        max_time: float | None = None,
        known_rows: bool = True,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.epochs = epochs
        self.batch_size = batch_size
        self.sigma_v = sigma_v
        self.n_folds = n_folds
        self.n_seeds = n_seeds
        self.forget = forget
        self.forget_until = forget_until
        self.n_bins = n_bins
        self.categorical_features = categorical_features
        self.max_time = max_time
        self.known_rows = known_rows
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> TAGIClassifier:
        """Trains from scratch. If an exception (or Ctrl-C) ends it, the estimator is as it was before.

        Args:
            X: (n, features) numbers, n at least 2; NaN is missing. Columns that are constant have no effect.
            y: n classes, at least two different ones.
            sample_weight: n weights of at least 0, None for 1: how often each sample counts, as in `TAGIRegressor.fit`.
                `sklearn.utils.class_weight.compute_sample_weight("balanced", y)` gives every class the same weight.
            groups: n labels of groups that are kept together, as in `TAGIRegressor.fit`.

        Raises:
            ValueError: data that scikit-learn refuses, or an invalid parameter, which is named.

        Warns:
            UserWarning: columns without any number, which are ignored, with values that are equal in float32, or that
                tell persons or places apart (without groups).
        """
        with unchanged_unless_done(self):
            self._fit(X, y, sample_weight, groups)
        return self

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, groups: ArrayLike | None) -> None:
        x, numbers, weights = self._take(X, y, sample_weight, None, reset=True)
        self._tree = self.sigma_v is not None
        trainings, seeds = self._trainings(len(x), self._outputs()), self._seeds()
        fold = self._folds(x, groups, sample_weight, *seeds(1))
        self._leave_out_constant(x)
        self._learnt = [self._categories_of(x[learnt_by(fold, k)]) for k in range(int(fold.max()) + 1)]

        def unseen(networks: list[list[Sequential]]) -> np.ndarray:
            """Probabilities for each sample of the folds of these networks, which have not learnt it."""
            rows = fold < len(networks)
            probabilities = np.empty((np.count_nonzero(rows), len(self.classes_)))
            for k, some in enumerate(networks):
                probabilities[fold[rows] == k] = self._probabilities(some, x[fold == k], [self._learnt[k]])
            return probabilities

        def loss(networks: list[list[Sequential]]) -> np.ndarray:
            rows = fold < len(networks)
            return -weights[rows] / weights.mean() * log_likelihood(unseen(networks), numbers[rows])

        networks, _ = self._train(
            partial(fit_classes, classes=len(self.classes_), sigma_v=self.sigma_v),
            trainings,
            (x, numbers, weights),
            fold,
            loss=loss,
            seeds=seeds,
            count=self.n_seeds,
        )
        self.temperature_, self._shared = 1.0, None
        if len(networks) > 1:
            probabilities = unseen(networks)
            self.temperature_ = most_likely_temperature(probabilities, numbers, weights)
            unshared = tempered(probabilities, self.temperature_)
            if self.known_rows:
                self._shared = learn_classes(x, numbers, weights, unshared, self._categories.blocks())
        self.networks_ = [net for some in networks for net in some]

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> TAGIClassifier:
        """Learns further samples, each of them once; no network forgets evidence.

        The first call of a new estimator sets the standardisation, which later calls do not change: give it about a
        hundred samples.

        Args:
            X: (n, features) numbers; NaN is missing. y: n classes.
            classes: all classes that will ever occur; needed in the first call only, by default those of y.
            sample_weight: as in `fit`.

        Raises:
            ValueError: as in `fit`; other classes than in the first call; or a first call with one sample.

        Warns:
            UserWarning: columns that are constant in the first call, or have no number there and are ignored.
        """
        first = not hasattr(self, "networks_")
        with unchanged_unless_done(self):
            x, numbers, weights = self._take(X, y, sample_weight, classes, reset=first)
            if first:
                self._tree = self.sigma_v is not None
            training = self._trainings(len(x), self._outputs())[0]
            if first:
                self._learnt = [self._categories_of(x)]
                self.temperature_, self._shared, self.networks_ = 1.0, None, self._untrained(training, x)
        noise = (self.sigma_v or SIGMA_V) if self._tree else None
        observe, *targets = labels(numbers, weights, len(self.classes_), noise)
        with lock_of(self):
            for k, net in enumerate(self.networks_):
                learn(net, self.batch_size, np.random.default_rng(k).permutation(len(x)), observe, x, *targets)
            if not first:
                self._learn_categories(x)
            if self._shared is not None:
                self._shared.learn(x, numbers, weights)
        return self

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """(n, classes) probabilities, in the order of `classes_`.

        Args:
            X: (n, features) numbers; NaN is missing.
        """
        x = self._standardised(X)
        with lock_of(self):
            probabilities = self._probabilities(self.networks_, x, self._learnt)
            probabilities = tempered(probabilities, self.temperature_)
            if self._shared is not None and self.known_rows:
                probabilities = self._shared.given(x, probabilities)
        return probabilities

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """ln of the probabilities that `predict_proba` returns."""
        return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each of n samples."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Share of the n samples whose class is right; `sample_weight`: n weights, None for equal ones."""
        return super().score(X, unwrapped(y, "y", text=True), unwrapped(sample_weight, "sample_weight"))

    def _take(
        self, X: Any, y: Any, sample_weight: Any, classes: ArrayLike | None, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(standardised float32 samples, class numbers, weights), without the samples of weight 0.

        With `reset` they determine scales, features and classes.
        """
        X, y = self._numbers(X, reset, sample_weight), unwrapped(y, "y", text=True)
        with explained(y, "y"):
            X, y = check_X_y(X, y, ensure_all_finite="allow-nan", estimator=self)
            check_classification_targets(y)
        classes = None if classes is None else unwrapped(classes, "classes", text=True)
        y = column_or_1d(y, warn=True)
        weights = sample_weights(sample_weight, len(y))
        X, y, weights = (array[weights > 0] for array in (X, y, weights))
        as_bools("TAGIClassifier", known_rows=self.known_rows)
        if self.sigma_v is not None:
            as_numbers("TAGIClassifier", "(0, inf)", sigma_v=self.sigma_v)
        if reset:
            self._standardise_by(X, weights)
            self.classes_ = unique_labels(y if classes is None else classes)
            if len(self.classes_) < 2:
                raise ValueError(
                    f"a classifier needs at least two classes, y has 1 class: {self.classes_.tolist()[0]!r} (give the "
                    "classes of later samples to the first partial_fit, as classes=)"
                )
        elif classes is not None and not np.array_equal(unique_labels(classes), self.classes_):
            raise ValueError(f"classes are not those of the first call, which were {self.classes_.tolist()}")
        if len(unknown := np.setdiff1d(y, self.classes_)):
            raise ValueError(f"y has classes that are not among those of the first call: {unknown.tolist()}")
        return self._scaled(X), np.searchsorted(self.classes_, y), weights

    def _outputs(self) -> int:
        return encode_classes(len(self.classes_))[2] if self._tree else len(self.classes_)

    def _probabilities(
        self, networks: list[Sequential], x: np.ndarray, learnt: Sequence[Sequence[CategoryInputs]]
    ) -> np.ndarray:
        classes = len(self.classes_)
        tree, total = hierarchical_softmax(classes) if self._tree else None, np.zeros((len(x), classes))
        for net, categories in zip(networks, of_each(learnt, len(networks)), strict=True):
            mu, var, added = moments_apart(net, x, categories)
            var += added
            total += expected_softmax(mu, var) if tree is None else class_probabilities(mu, var, tree)
        total /= len(networks)
        return total


def labels(numbers: np.ndarray, weights: np.ndarray, classes: int, sigma_v: float | None) -> tuple[Any, ...]:
    """An `Observe` of class numbers, or with `sigma_v` of their paths through the tree; and its targets.

    Each counts as often as its weight, times the weight of the network's schedule if there is one.
    """
    if sigma_v is None:
        likelihood = Categorical(classes)

        def observe_class(net: Sequential, updater: OutputUpdater, numbers: np.ndarray, weights: np.ndarray) -> None:
            count = 1.0 if net.schedule is None else net.schedule.weight
            likelihood.observe(net, numbers, count * weights)

        return observe_class, numbers.astype(np.int32), weights.astype(np.float32)
    signs, units, _ = encode_classes(classes)
    signs, units = signs[numbers].astype(np.float32), units[numbers]

    def observe_path(net: Sequential, updater: OutputUpdater, y: np.ndarray, var: np.ndarray, at: np.ndarray) -> None:
        updater.update_using_indices(net.output_z_buffer, y, var, at, net.input_delta_z_buffer)

    return observe_path, signs, weighted(sigma_v**2, weights, signs.shape), units


def fit_classes(
    training: Training,
    x: np.ndarray,
    numbers: np.ndarray,
    weights: np.ndarray,
    seed: int,
    classes: int,
    sigma_v: float | None,
) -> Sequential:
    """A network trained on class numbers, which count `weights` times."""
    net, rng = training.network(x.shape[1], seed), np.random.default_rng(seed)
    observe, *targets = labels(numbers, weights, classes, sigma_v)
    if sigma_v is None:
        EvidenceSchedule(net, max(len(x) // training.batch_size, 1), training.epochs, count=COUNT)
    for epoch in range(training.epochs):
        if sigma_v is not None:
            training.prepare(net, epoch)
        run_epoch(net, training.batch_size, rng, observe, x, *targets)
    net.schedule = None  # later samples are new evidence
    return net


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """p^(1/T) / sum p^(1/T), of each row."""
    logs = np.log(np.maximum(probabilities, LEAST)) / temperature
    powers = np.exp(logs - logs.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def log_likelihood(probabilities: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """ln P(class of a sample), of each."""
    return np.log(np.maximum(probabilities[np.arange(len(numbers)), numbers], LEAST))


def most_likely_temperature(probabilities: np.ndarray, numbers: np.ndarray, weights: np.ndarray) -> float:
    """The most probable T, with the prior ln T ~ N(0, 1/4). Without it, T is 0 if all of a few samples are right.

    The weight of a sample is the number of times that it counts.
    """

    def log_posterior(t: float) -> float:
        return float(weights @ log_likelihood(tempered(probabilities, t), numbers)) - 2 * math.log(t) ** 2

    return float(max(TEMPERATURES, key=log_posterior))
