"""Regression with error bars that are estimated from samples the networks have not learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_X_y, column_or_1d

from pytagi_ddp.estimators.choice import MORE_SEEDS
from pytagi_ddp.estimators.distributions import EnsemblePrediction, TargetsPrediction
from pytagi_ddp.estimators.ensemble import (
    FARTHEST,
    EnsembleEstimator,
    scales_of,
    unchanged_unless_done,
    unwrapped,
)
from pytagi_ddp.estimators.extrapolation import Extrapolation
from pytagi_ddp.estimators.folds import learnt_by
from pytagi_ddp.estimators.inputs import explained, sample_weights, warn_of_extremes
from pytagi_ddp.estimators.locks import lock_of
from pytagi_ddp.estimators.members import LEAST_NOISE, fit_values, learn, observe_values, weighted
from pytagi_ddp.estimators.noise import GivenNoise, LearntNoise, Moments, Noise, learn_noise
from pytagi_ddp.estimators.observed import (
    NAMES,
    REAL,
    LikelihoodNoise,
    begin,
    check_name,
    check_targets,
    fit_observations,
    observed,
    units,
)
from pytagi_ddp.estimators.repeated import groups_of, learn_intercept
from pytagi_ddp.nn import Sequential
from pytagi_ddp.validate import as_bools, as_numbers

BEYOND = 5.0**2  # squared standard deviations: an observation farther from its prediction counts for less
REMEMBERED = 50  # `partial_fit` estimates the noise from about this number of the last batches
COMPARED = 3000  # samples at which the networks of all folds are compared
RECENT = 3  # the weights of the first batches grow with their number k as k^3, since networks predict the first badly


def probabilities_of(quantiles: ArrayLike) -> np.ndarray:
    """The probabilities as a flat float64 array.

    Raises:
        ValueError: not a list of probabilities between 0 and 1.
    """
    try:
        asked = np.asarray(quantiles, np.float64)
    except (TypeError, ValueError):
        asked = np.zeros(0)
    if asked.ndim != 1 or not asked.size or not ((asked > 0) & (asked < 1)).all():
        raise ValueError(
            f"quantiles is a list of probabilities between 0 and 1, such as [0.05, 0.95]; got {quantiles!r}"
        )
    return asked


class TAGIRegressor(RegressorMixin, EnsembleEstimator):
    """Regression by an ensemble of TAGI networks, whose predictions are Student-t distributions.

    1. Inputs and target are standardised. `n_seeds` networks are trained without each of `n_folds` folds, in batches.
       Before each of the first epochs, evidence is forgotten (`Sequential.forget_evidence`). The variance of the noise
       in an epoch is the mean squared error after the previous epoch.
    2. Each sample is predicted by the networks that have not seen it, which gives the residuals r. Other TAGI networks
       learn h, a prediction of ln r^2 from the inputs and the prediction of the first networks.
    3. The scale s of the noise, ln s^2 = a + b h, and the degrees of freedom v are chosen by maximum likelihood of r.
       For n samples v is at most n - 1 (and at least 3), because a scale from few residuals is uncertain.
       Where the networks' variance, or that between their means, is larger than at any sample, s^2 grows with it. Where
       a category is rare or missing, it has a factor, from the errors at such samples.
    4. Samples with equal inputs (unless they are more than a tenth of all) are in one fold. If they have more in common
       than networks predict, y = f(x) + u + e, where the random intercept u is the same for equal inputs: m and s at an
       input that was learnt depend on its observations, too.

    The prediction is the mean m of all networks' means. An observation is y = m + s t, where t has Student's
    t-distribution with v degrees of freedom. If y has the shape (n, targets), each target is an output of all networks,
    and has its own m, s and v.

    Args:
        hidden_layer_sizes: units of each hidden layer (ReLU); (): none, so that networks are linear functions. None:
            (50,), (50, 50) or (), whichever predicts unseen samples best. With one fold and in `partial_fit` no sample
            is unseen, and it is (50,).
        epochs: of each network. None: 200,000 divided by the number of samples, at least 40 and at most 100. If
            `hidden_layer_sizes` is None as well, (50, 50) with 5 epochs is tried too: many epochs may fit the noise.
        batch_size: samples in a step. Small batches keep steps accurate.
        sigma_v: standard deviation of the noise of observations, in units of y, if it is known; one for all targets, or
            one for each. Predictions are then Gaussian, and the variances of the networks have the factor, from 1/1024
            to 1024, with which samples that were not learnt are most probable. None: the noise is learnt, as above.
            If each sample has its own, s: sigma_v=d with the weights (d / s)^2, where d = mean(1 / s^2)^(-1/2).
        heteroscedastic: whether the learnt noise depends on the inputs. If not, the scale s is the same wherever there
            are samples, and larger only far from them and with missing inputs. In `partial_fit` without `fit` the noise
            does not depend on the inputs.
        student_t: whether the degrees of freedom are learnt. If not, predictions are Gaussian.
        likelihood: None: as above. A name: the kind of y, by a class of `pytagi_ddp.likelihoods`. "gaussian",
            "student_t" and "laplace": numbers with the same noise everywhere; "gamma" and "lognormal": numbers above
            0, with the same relative noise; "poisson" and "negative_binomial": counts. Counts and positive numbers
            have the mean e^z of an output z, "lognormal" the median. Samples that were not learnt choose the noise, and
            (not in `partial_fit`) how far outputs of counts and positive numbers are moved towards a constant, and a
            limit of their variances. The prediction is the mixture over the networks. `sigma_v`, `heteroscedastic` and
            `student_t` are for None.
        n_folds: number of folds, at most the number of samples. 1: the noise is learnt from residuals of samples that
            the networks have learnt, and is too small.
        n_seeds: networks for each fold. None: from 2 to 4, as few as predict unseen samples almost as well as 4 (the
            root mean squared error is larger by 0.4 % at most, by extrapolation from one and two), or 2 if `max_time`
            is not sufficient for 4; with `likelihood` 4, and in `partial_fit` without `fit` 2.
        forget: factor on all variances before an epoch, which never go above their prior. 1: nothing is forgotten.
        forget_until: fraction of the epochs after which nothing more is forgotten.
        n_bins: bins of each column in a piecewise-linear encoding of the inputs (`nn.PiecewiseLinearEncoding`), 0 for
            none. None: the number that predicts unseen samples best (in `partial_fit` without `fit`: none), and where
            these help, inputs for values that occur often, and scales of the columns by their relevance.
        categorical_features: columns that hold categories, as a mask, numbers or names; "from_dtype": those of a table
            (pandas, polars, PyArrow) that hold categories or text; None: none. Each category becomes an input.
        max_time: seconds. Units and epochs that are not given are doubled while predictions improve. A kind of network
            is only tried if the time is sufficient to train all networks of the kind. Results then depend on the
            machine. None: the usual choices, without a limit.
        known_rows: whether predictions at inputs that were learnt use their observations, as in 4. It may be set to
            False after `fit`. If it is False in `fit`, the estimator does not keep these inputs.
        n_jobs: networks that are trained at the same time, each on one thread, in processes of joblib. None: 1, -1: all
            cores. More processes than networks are not started. The results do not depend on it.
            `joblib.parallel_config` chooses another backend.
        random_state: seed of priors, folds and batches, or a `numpy.random.RandomState`. None: another seed each time.
        verbose: 1 shows a progress bar, which counts networks; from 2 on joblib prints more. 0: nothing is printed.

    Attributes:
        networks_: the networks, fold by fold. noise_: the learnt noise, in units of the standardised target; a list of
            them if there are several targets.
        degrees_of_freedom_: v, or one for each target. With `likelihood`, use `noise_.likelihood` instead.
        n_features_in_, feature_names_in_: as in scikit-learn.

    NaN among the inputs is a missing value, which counts as N(0, 1), the standardised prior. The prediction is then the
    mean over 64 draws from it, and wider by the variance over the draws.

    Any number of threads may predict with a fitted estimator, also while one thread is in `partial_fit` (but not in
    `fit`); calls wait for each other. In batches of different sizes, predictions of a sample differ by rounding: by
    about 1e-6 of the standard deviation of y.

    Example:
        >>> regressor = TAGIRegressor(random_state=0).fit(X, y)
        >>> mean, std = regressor.predict(X_new, return_std=True)
        >>> low, high = regressor.predict_interval(X_new, 0.9)

    Source: Goulet, Nguyen & Amiri (2021), JMLR 22, for TAGI; Lange, Little & Taylor (1989), "Robust statistical
    modeling using the t distribution", JASA 84, for the scale.
    """

    likelihood: str | None = None  # estimators that earlier versions pickled do not have it
    networks_: list[Sequential]
    _y_mean: np.ndarray  # of each target; as _y_std
    _y_std: np.ndarray
    noise_: Noise | list[Noise]
    _beyond: Extrapolation | None = None  # None: `fit` was not called, or by an earlier version
    _batches: int | None  # number of batches from which `partial_fit` has estimated the noise; None: it does not

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | None = None,
        *,
        epochs: int | None = None,
        batch_size: int = 16,
        sigma_v: float | Sequence[float] | None = None,
        heteroscedastic: bool = True,
        student_t: bool = True,
        likelihood: str | None = None,
        n_folds: int = 5,
        n_seeds: int | None = None,
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
        self.heteroscedastic = heteroscedastic
        self.student_t = student_t
        self.likelihood = likelihood
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
    ) -> TAGIRegressor:
        """Trains from scratch. If an exception (or Ctrl-C) ends it, the estimator is as it was before.

        Args:
            X: (n, features) numbers, n at least 2; NaN is missing. Columns that are constant have no effect.
            y: n numbers, or (n, targets).
            sample_weight: n weights of at least 0, None for 1: how often each sample counts. In training, the variance
                of its noise is divided by its weight (with a `likelihood`, its log-likelihood is multiplied by it).
                Scales, noise and the choice of layers use weighted means. A weight of 2 counts as much as two copies
                (not bit for bit; and copies are observations that agree), and 0 leaves the sample out. Weights with a
                mean of 1 keep the amount of evidence.
            groups: n labels. Samples with one label (of a patient, a place, a day) are in one fold, so that errors and
                error bars are those for further groups. None: only samples with equal inputs are kept together.

        Raises:
            ValueError: data that scikit-learn refuses, or a parameter out of its range; the message says which.
            TypeError: a parameter that is not a number, integer or bool, as it should be.

        Warns:
            UserWarning: columns without any number, which are ignored, with values that are equal in float32, or that
                tell persons or places apart (without groups); or y with extremes, compared with which most of its
                numbers are nearly equal.
        """
        with unchanged_unless_done(self):
            self._fit(X, y, sample_weight, groups)
        return self

    def _fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, groups: ArrayLike | None) -> None:
        x, y, weights = self._take(X, y, sample_weight, reset=True)
        trainings, seeds, noise = self._trainings(len(y), y.shape[1]), self._seeds(), self._given_noise()
        fold = self._folds(x, groups, sample_weight, *seeds(1))
        self._leave_out_constant(x)
        self._learnt = [self._categories_of(x[learnt_by(fold, k)]) for k in range(int(fold.max()) + 1)]

        def unseen(networks: list[list[Sequential]], rows: np.ndarray | slice = slice(None)) -> Moments:
            """The prediction of each of these samples, by the networks that were trained without its fold."""
            parts = [fold[rows] == k for k in range(len(networks))]
            return Moments.of(networks, parts, x[rows], self._learnt[: len(networks)])

        name, outputs, shares = self.likelihood, range(y.shape[1]), weights / weights.mean()

        def fitted(moments: Moments, rows: np.ndarray | slice = slice(None)) -> list[LikelihoodNoise]:
            start = LikelihoodNoise(NAMES[str(name)]())
            return [start.with_slope(moments.target(k), y[rows, k], weights[rows]) for k in outputs]

        def loss(networks: list[list[Sequential]]) -> np.ndarray:
            rows = fold < len(networks)
            moments = unseen(networks, rows)
            if name is None:
                return shares[rows] * ((moments.mu - y[rows]) ** 2).mean(1)
            noises = fitted(moments, rows)
            parts = [noise.distribution(x[rows], moments.target(k), 0.0, 1.0) for k, noise in enumerate(noises)]
            return -shares[rows] * TargetsPrediction(parts).log_prob(y[rows]).mean(1)

        train = partial(fit_values, noise=noise) if name is None else partial(fit_observations, name=name)
        count = self.n_seeds if name is None else self.n_seeds or MORE_SEEDS
        networks, alike = self._train(train, trainings, (x, y, weights), fold, loss=loss, seeds=seeds, count=count)
        everyone = [net for some in networks for net in some]
        noises: list[Any]
        if name is not None:
            noises = fitted(unseen(networks))
        elif noise is not None:
            noises = [GivenNoise(variance) for variance in noise.tolist()]
            if len(networks) > 1:
                moments = unseen(networks)
                noises = [some.fitted(moments.target(k), y[:, k], weights) for k, some in enumerate(noises)]
        else:
            moments, some = unseen(networks), fold < len(alike)
            gain = np.full(y.shape, np.nan)
            gain[some] = moments.spread if alike is networks else unseen(alike, some).spread
            gain *= 1 / len(networks[0]) - 1 / len(everyone)
            some_x = x[:: len(x) // COMPARED + 1]  # learnt by most networks
            together = Moments.of([everyone], [slice(None)], some_x, self._learnt).spread
            spread = np.maximum(moments.spread.mean(0), together.mean(0))
            noises = [
                learn_noise(
                    x,
                    y[:, k],
                    weights,
                    moments.target(k),
                    fold,
                    gain=gain[:, k],
                    heteroscedastic=self.heteroscedastic,
                    student_t=self.student_t,
                    seeds=seeds(len(networks)),
                    run=self._run,
                    others=self._categories.of_others(),
                    spread=float(spread[k]),
                    most_spread=float(together[:, k].max()),
                )
                for k in outputs
            ]
            if len(networks) > 1 and self.known_rows:
                self._learn_intercepts(noises, x, y, weights, moments, everyone)
        self._set_noises(noises)
        numbers = len(self._categories.numbers) if self._categories.known else x.shape[1]
        self._beyond = Extrapolation.of(everyone, x, numbers)
        self._batches, self.networks_ = None, everyone

    def _learn_intercepts(
        self,
        noises: list[LearntNoise],
        x: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray,
        moments: Moments,
        networks: list[Sequential],
    ) -> None:
        """Sets what samples with equal inputs have in common; moments: by networks that have not learnt them."""
        if len(np.unique(groups_of(x))) == len(x):
            return
        seen = Moments.of([networks], [slice(None)], x, self._learnt).mu
        blocks = self._categories.blocks()
        for k, noise in enumerate(noises):
            target = moments.target(k)
            noise.intercept = learn_intercept(
                x, y[:, k], weights, target.mu, seen[:, k], noise.log_scale2(x, target), noise.degrees, blocks
            )

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> TAGIRegressor:
        """Learns further samples in one pass. Each is evidence once, and nothing is forgotten.

        The first call of a new estimator sets the means and standard deviations by which all samples are standardised:
        give it about a hundred samples. Unless `sigma_v` is given, the variance of the noise is estimated from the
        errors of the last batches, which are predicted before they are learnt; samples with missing inputs, or far from
        others, count for less. It is one for all inputs, and predictions are Gaussian. After `fit`, the noise of `fit`
        is kept. Unless `sigma_v` is given, an observation that is more than five standard deviations from its
        prediction counts as five in the noise, and is learnt as if the standard deviation of its noise were a fifth of
        the distance: the larger the distance, the smaller its effect.

        Args:
            X: (n, features) numbers; NaN is missing. y: n numbers, or (n, targets). sample_weight: as in `fit`.

        Raises:
            ValueError: as in `fit`; another number of targets or another likelihood than before; or the first call has
                one sample only, or all its y are equal.

        Warns:
            UserWarning: columns that are constant in the first call, or have no number there and are ignored; or y
                as in `fit`.
        """
        first = not hasattr(self, "networks_")
        with unchanged_unless_done(self):
            x, y, weights = self._take(X, y, sample_weight, reset=first)
            training, given = self._trainings(len(y), y.shape[1])[0], self._given_noise()
            networks = self._untrained(training, x) if first else []
            if first and (np.ptp(y, 0) == 0).any():
                raise ValueError(
                    "all y are equal, but the first call of partial_fit fixes the scale of y: give it samples that vary"
                )
        if first:
            targets = range(y.shape[1])
            if self.likelihood is not None:
                networks = [begin(net, self.likelihood, y, weights) for net in networks]
                self._set_noises([LikelihoodNoise(NAMES[self.likelihood]()) for _ in targets])
            else:
                self._set_noises([GivenNoise(1.0 if given is None else given[k]) for k in targets])
            self._learnt = [self._categories_of(x)]
            self._batches, self.networks_ = 0 if given is None else None, networks
        elif given is not None and isinstance(self._noises[0], GivenNoise):
            pairs = zip(self._noises, given.tolist(), strict=True)
            self._set_noises([replace(noise, variance=variance) for noise, variance in pairs])
            self._batches = None
        estimated = self.likelihood is not None and self._batches is not None
        with lock_of(self):
            moments = self._moments(x) if estimated and not first else None
        size = min(self.batch_size, len(y))
        for start in range(0, len(y), size):
            rows = slice(start, start + size)
            with lock_of(self):
                learn_once = self._learn_once if self.likelihood is None else self._observe_once
                learn_once(x[rows], y[rows], weights[rows])
        if not first:
            with lock_of(self):
                self._learn_categories(x)
                if self._beyond is not None:
                    self._beyond = self._beyond.with_range_of(x)
        if estimated:
            with lock_of(self):
                self._fit_likelihoods(moments or self._moments(x), y, weights, -(-len(y) // size))
        return self

    def _observe_once(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> None:
        observe, weights = observed([noise.likelihood for noise in self._noises]), weights.astype(np.float32)
        rows = np.random.default_rng(0).permutation(len(y))
        for net in self.networks_:
            learn(net, len(y), rows, observe, x, y, weights)

    def _fit_likelihoods(self, moments: Moments, y: np.ndarray, weights: np.ndarray, batches: int) -> None:
        """Moves the noise towards that of these batches.

        Args:
            moments: their prediction before they were learnt (of the first batches, after they were learnt). Only its
                means are used: the variances of networks that have seen few samples would explain all errors, the noise
                would be 0, and the networks would follow each observation.
        """
        moments, before = moments.known(), self._batches or 0
        share = batches / (before + batches)
        noises = [noise.fitted(moments.target(k), y[:, k], weights, share) for k, noise in enumerate(self._noises)]
        self._batches = min(before + batches, REMEMBERED)
        self._set_noises(noises)

    def _learn_once(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> None:
        moments, noises, batches = self._moments(x), list(self._noises), self._batches
        errors = (moments.mu - y) ** 2
        predicted = moments.var + moments.spread + moments.missing + moments.outside
        if isinstance(noises[0], GivenNoise) and batches is not None:
            batches += 1
            share = max((1 + RECENT) / (batches + 1 + RECENT), 1 / (REMEMBERED + 1))
            for k, noise in enumerate(noises):
                limits = predicted[:, k] + noise.variance
                mean = partial(np.average, weights=weights / limits)  # errors that are small anyway show the noise best
                error = float(mean(np.minimum(errors[:, k], BEYOND * limits)))
                excess = max(error - float(mean(predicted[:, k])), error / 10, LEAST_NOISE)
                noises[k] = replace(noise, variance=noise.variance + share * (excess - noise.variance))
        variances = np.empty(y.shape)
        for k, noise in enumerate(noises):
            target = moments.target(k)
            variances[:, k] = noise.of_observations(x, target)
            if noise.intercept is not None:
                noise.intercept.learn(x, y[:, k] - target.mu, weights, noise.log_scale2(x, target))
        if self.sigma_v is None:
            variances = np.maximum(variances, errors / BEYOND - predicted)
        variances = weighted(variances, weights, y.shape)
        rows = np.random.default_rng(0).permutation(len(y))
        for net in self.networks_:
            learn(net, len(y), rows, observe_values, x, y, variances)
        self._batches = batches
        self._set_noises(noises)

    def predict_distribution(self, X: ArrayLike) -> EnsemblePrediction:
        """The distributions of observations. All other predictions are parts of it.

            distribution = regressor.predict_distribution(X)
            low, high = distribution.interval(0.9)
            draws = distribution.sample(1000, seed=0)
            print(distribution.epistemic / distribution.variance)

        Args:
            X: (n, features) numbers; NaN is missing.

        Raises:
            ValueError: a number of X is more than 1e15 standard deviations from the samples that were learnt.

        Warns:
            UserWarning: most values of a column of categories are unknown (unless they are few and of the known type).

        Returns:
            n distributions, or (n, targets), in units of y, with `mean`, `variance`, `std`, `pdf(y)`, `log_prob(y)`,
            `cdf(y)`, `quantile(q)`, `interval(level)`, `sample(n, seed)`, `crps(y)`, `epistemic`, `spread` and
            `aleatoric`: see `EnsemblePrediction`.
        """
        x = self._standardised(X)
        with lock_of(self):
            moments = self._moments(x)
            units = zip(self._noises, np.atleast_1d(self._y_mean), np.atleast_1d(self._y_std), strict=True)
            parts = [
                noise.distribution(x, moments.target(k), mean, std, self.known_rows)
                for k, (noise, mean, std) in enumerate(units)
            ]
        return TargetsPrediction(parts) if self._several else parts[0]

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False, quantiles: None = None) -> np.ndarray: ...
    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True], quantiles: None = None
    ) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def predict(
        self, X: ArrayLike, return_std: bool, quantiles: None = None
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...
    @overload
    def predict(self, X: ArrayLike, return_std: bool = False, *, quantiles: ArrayLike) -> tuple[np.ndarray, ...]: ...
    @overload
    def predict(self, X: ArrayLike, return_std: bool, quantiles: ArrayLike) -> tuple[np.ndarray, ...]: ...
    def predict(
        self, X: ArrayLike, return_std: bool = False, quantiles: ArrayLike | None = None
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Predicted means and, if asked for, standard deviations and quantiles of observations (noise included).

        Args:
            X: (n, features) numbers; NaN is missing.
            return_std: whether standard deviations are returned as well.
            quantiles: probabilities between 0 and 1, such as [0.05, 0.95]; None: no quantiles.

        Returns:
            means; (means, standard deviations); (means, quantiles); or (means, standard deviations, quantiles). Means
            and standard deviations are (n,) or (n, targets), quantiles have one more dimension with one column for each
            probability, all in units of y. A Pipeline passes the arguments on:
            `pipeline.predict(X, return_std=True, quantiles=[0.05, 0.95])`.

        Raises:
            ValueError: quantiles that are not probabilities between 0 and 1.
        """
        asked = None if quantiles is None else probabilities_of(quantiles)
        distribution = self.predict_distribution(X)
        results = [distribution.mean]
        if return_std:
            results.append(distribution.std)
        if asked is not None:
            results.append(np.stack([distribution.quantile(q) for q in asked], -1))
        return tuple(results) if len(results) > 1 else results[0]

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central intervals, each of which contains the observation with the probability `coverage`.

        Returns:
            (low, high), n or (n, targets) of each, in units of y.

        Raises:
            ValueError: a coverage that is not between 0 and 1. TypeError: not a number.
        """
        (coverage,) = as_numbers("predict_interval", "(0, 1)", coverage=coverage)
        return self.predict_distribution(X).interval(coverage)

    def log_likelihood(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """ln of the predicted density at each of n observations y, in units of y. Compare models by its mean.

        The shape is (n, targets) for several targets; their sum is the log-likelihood of a sample.
        """
        distribution = self.predict_distribution(X)
        return distribution.log_prob(observations(y, distribution))

    def crps(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score of each of n observations y, in units of y; smaller is better.

        It is the integral over all u of (P(observation <= u) - [y <= u])^2. For a prediction without error bars it is
        the absolute error. Compare models by its mean; outliers have less effect on it than on `log_likelihood`. The
        shape is (n, targets) for several targets.

        Source: Gneiting & Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", JASA 102.
        """
        distribution = self.predict_distribution(X)
        return distribution.crps(observations(y, distribution))

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2 of the n predictions; `sample_weight`: n weights of the samples, None for equal ones."""
        return super().score(X, unwrapped(y, "y"), unwrapped(sample_weight, "sample_weight"))

    @property
    def degrees_of_freedom_(self) -> float | np.ndarray:
        if self.likelihood is not None:
            raise AttributeError("degrees of freedom belong to likelihood=None: see noise_.likelihood")
        degrees = [noise.degrees for noise in self._noises]
        return np.array(degrees) if self._several else degrees[0]

    @property
    def _several(self) -> bool:
        return isinstance(self.noise_, list)

    @property
    def _noises(self) -> list[Any]:
        """The noise of each target."""
        return self.noise_ if isinstance(self.noise_, list) else [self.noise_]

    def _set_noises(self, noises: list[Any]) -> None:
        self.noise_ = noises if len(noises) > 1 else noises[0]

    def _take(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Standardised float32 samples (n, features) and (n, targets), and their weights, without those of weight 0.

        With `reset`, these samples define the standardisation of all later ones.
        """
        X, y = self._numbers(X, reset, sample_weight), unwrapped(y, "y")
        with explained(y, "y"):
            X, y = check_X_y(X, y, ensure_all_finite="allow-nan", y_numeric=True, multi_output=True, estimator=self)
        if issparse(y):
            raise TypeError("y is sparse: give it dense, as y.toarray()")
        if y.ndim == 2 and y.shape[1] < 2:
            y = column_or_1d(y, warn=True)
        y = y.reshape(len(y), -1).astype(np.float64)
        weights = sample_weights(sample_weight, len(y))
        bools = {"heteroscedastic": self.heteroscedastic, "student_t": self.student_t, "known_rows": self.known_rows}
        as_bools("TAGIRegressor", **bools)
        check_name(self.likelihood)
        if self.likelihood is not None:
            check_targets(self.likelihood, y)
        if not reset:
            first, now = self._noises[0], None if self.likelihood is None else NAMES[self.likelihood]()
            if type(getattr(first, "likelihood", None)) is not type(now):
                raise ValueError(f"likelihood has changed since the first call, to {self.likelihood!r}: fit anew")
        rows = np.flatnonzero(weights)
        X, y, weights = X[rows], y[rows], weights[rows]
        if reset:
            self._standardise_by(X, weights)
            scales = units(self.likelihood, y, weights) if self.likelihood else scales_of(y, weights)
            self._y_mean, self._y_std = scales
            if self.likelihood is None or self.likelihood in REAL:
                warn_of_extremes(y, self._y_std, rows)
        elif y.shape[1] != np.size(self._y_mean):
            raise ValueError(f"y has {y.shape[1]} targets, and had {np.size(self._y_mean)} in the first call")
        scaled = (y - self._y_mean) / self._y_std
        if (np.abs(scaled) > FARTHEST).any():
            raise ValueError(f"y has numbers that are more than {FARTHEST:.0e} standard deviations away from its mean")
        return self._scaled(X), scaled.astype(np.float32), weights

    def _given_noise(self) -> np.ndarray | None:
        """Variances of the standardised targets, if they are given."""
        if self.sigma_v is None:
            return None
        if self.likelihood is not None:
            raise ValueError(f"sigma_v is for likelihood=None: the noise of likelihood={self.likelihood!r} is fitted")
        of_y = np.atleast_1d(self._y_std)
        given: Any = self.sigma_v
        each = list(given) if np.ndim(given) else [given] * len(of_y)
        if len(each) != len(of_y):
            raise ValueError(
                f"sigma_v must be a standard deviation, or one for each of {len(of_y)} targets, got {len(each)}. "
                "Standard deviations s of the samples are given as weights: sigma_v=d, sample_weight=(d / s)**2, where "
                "d is np.mean(s**-2.0) ** -0.5"
            )
        deviations = as_numbers("TAGIRegressor", "(0, inf)", **{f"sigma_v[{k}]": sd for k, sd in enumerate(each)})
        return (np.array(deviations) / of_y) ** 2

    def _moments(self, x: np.ndarray) -> Moments:
        moments = Moments.of([self.networks_], [slice(None)], x, self._learnt)
        return moments if self._beyond is None else replace(moments, outside=self._beyond.variances(x))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def observations(y: ArrayLike, distribution: EnsemblePrediction) -> np.ndarray:
    """Observations as float64, of the shape of their distributions.

    Raises:
        ValueError: another number of them, or of targets.
    """
    found: np.ndarray = np.asarray(unwrapped(y, "y"), np.float64)
    shape = distribution.mean.shape
    found = found if len(shape) == 2 else column_or_1d(found)
    if len(found) != shape[0]:
        raise ValueError(f"X has {shape[0]} samples, but y has {len(found)} observations: give one for each")
    if found.shape != shape:
        raise ValueError(f"y has the shape {found.shape}, and predictions have {shape}: give all targets of a sample")
    return found
