"""Regression with error bars that hold for samples the networks have not learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Real
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_X_y, column_or_1d

from pytagi_ddp.estimators.ensemble import EnsembleEstimator, is_deviation, moments_of, unchanged_if_refused, unwrapped
from pytagi_ddp.estimators.folds import assign_folds
from pytagi_ddp.estimators.locks import lock_of
from pytagi_ddp.estimators.members import LEAST_NOISE, fit_values, run_epoch, values
from pytagi_ddp.estimators.noise import GivenNoise, LearntNoise, Prediction, learn_noise
from pytagi_ddp.estimators.student_t import log_density, quantile, ranked_score
from pytagi_ddp.nn import Sequential
from pytagi_ddp.nn.core.validate import as_bools

FARTHEST = 1e15  # a target may lie so many standard deviations from the mean: its square, and sums of it, fit float32
BEYOND = 5.0**2  # squared standard deviations: an observation farther from its prediction counts for less
REMEMBERED = 50  # `partial_fit` estimates the noise from about so many of the last batches


def probabilities_of(quantiles: ArrayLike) -> np.ndarray:
    """The probabilities as a flat float64 array.

    Raises:
        ValueError: something else than a list of probabilities between 0 and 1.
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
       Before each of the first epochs, evidence is forgotten (`Sequential.forget_evidence`). Otherwise repeated epochs
       would count the same evidence again, variances would shrink like 1/t, and learning would freeze. The variance of
       the noise in an epoch is the mean squared error after the epoch before.
    2. Each sample is predicted by the networks that have not seen it, which gives honest residuals r. Other TAGI
       networks learn h, a prediction of ln r^2 from the inputs and the first networks' prediction.
    3. The scale s of the noise, ln s^2 = a + b h, and the degrees of freedom v are chosen by maximum likelihood of r.
       Far from all samples, where the networks' variance is above its largest value at any sample, s^2 grows in
       proportion to it.

    The prediction is the mean m of all networks' means. An observation is y = m + s t, where t has Student's
    t-distribution with v degrees of freedom.

    Args:
        hidden_layer_sizes: units of each hidden layer (ReLU). None: (50,) or (50, 50), whichever predicts unseen
            samples better. With one fold and in `partial_fit` no sample is unseen, and it is (50,).
        epochs: of each network. None: as many as show it 200,000 samples, at least 40 and at most 100. If
            `hidden_layer_sizes` is None as well, (50, 50) with 5 epochs is tried too. Where that is better, many epochs
            fit the noise, and the choice is between it and (400,) with 40 epochs.
        batch_size: samples in a step. A small one keeps steps exact enough.
        sigma_v: standard deviation of the observations' noise, in units of y, where it is known. Predictions are then
            Gaussian. None: the noise is learnt, as above.
        heteroscedastic: whether the learnt noise depends on the inputs. If not, the scale s is the same wherever there
            are samples, and larger only far from them and with missing inputs.
        student_t: whether the degrees of freedom are learnt. If not, predictions are Gaussian.
        n_folds: number of folds, at most the number of samples. 1: the noise is learnt from residuals of samples that
            the networks have learnt from, and comes out too small.
        n_seeds: networks for each fold.
        forget: factor on all variances before an epoch, which never go above their prior. 1: nothing is forgotten.
        forget_until: fraction of the epochs after which nothing is forgotten any more.
        n_bins: bins of each column in a piecewise-linear encoding of the inputs (`nn.PiecewiseLinearEncoding`), 0 for
            none; None: none, 8, 24 or 48, as predicts unseen samples best (in `partial_fit` without `fit`: none).
        categorical_features: columns that hold categories, as a mask, numbers or names; "from_dtype": those of a table
            (pandas, polars, PyArrow) that hold categories or text; None: none. Each category becomes an input.
        max_time: seconds. Layers of twice as many units are tried as long as they predict better, but no training
            begins for a choice if it, and all networks of its kind, would take longer than that. Results then depend
            on the machine. None: the usual choices, without a limit.
        n_jobs: networks that are trained at the same time, in processes of joblib. None: 1, -1: all cores. The results
            do not depend on it. `joblib.parallel_config` chooses another backend.
        random_state: seed of priors, folds and batches, or a `numpy.random.RandomState`. None: another seed each time.
        verbose: verbosity of joblib. 0: nothing is printed.

    Attributes:
        networks_: the networks, fold by fold. noise_: the learnt noise, in units of the standardised target.
        degrees_of_freedom_: v. n_features_in_, feature_names_in_: as in scikit-learn.

    NaN among the inputs is a missing value, which counts as N(0, 1), the standardised prior. The prediction is then the
    mean over 64 draws from it, and wider by the variance over the draws.

    A fitted estimator predicts from any number of threads, one after the other, also while one of them is in
    `partial_fit` (but not in `fit`). Networks compute in float32, and sum in another order in batches of another size:
    the prediction of a sample that stands in another batch differs by up to about 1e-6 of its standard deviation, and
    by less than 1e-5.

    Example:
        >>> regressor = TAGIRegressor(random_state=0).fit(X, y)
        >>> mean, std = regressor.predict(X_new, return_std=True)
        >>> low, high = regressor.predict_interval(X_new, 0.9)

    Source: Goulet, Nguyen & Amiri (2021), JMLR 22, for TAGI; Lange, Little & Taylor (1989), "Robust statistical
    modeling using the t distribution", JASA 84, for the scale.
    """

    networks_: list[Sequential]
    noise_: GivenNoise | LearntNoise
    _batches: int | None  # number of batches from which `partial_fit` has estimated the noise; None: it does not

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | None = None,
        *,
        epochs: int | None = None,
        batch_size: int = 16,
        sigma_v: float | None = None,
        heteroscedastic: bool = True,
        student_t: bool = True,
        n_folds: int = 5,
        n_seeds: int = 2,
        forget: float = 4.0,
        forget_until: float = 0.7,
        n_bins: int | None = None,
        categorical_features: Any = "from_dtype",
        max_time: float | None = None,
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
        self.n_folds = n_folds
        self.n_seeds = n_seeds
        self.forget = forget
        self.forget_until = forget_until
        self.n_bins = n_bins
        self.categorical_features = categorical_features
        self.max_time = max_time
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> TAGIRegressor:
        """Trains anew.

        Args:
            X: (n, features) numbers, n at least 2; NaN is missing. Columns that are constant have no effect.
            y: n numbers.

        Raises:
            ValueError: data that scikit-learn refuses, or a parameter out of its range; the message says which.
            TypeError: `heteroscedastic` or `student_t` is not a truth value.

        Warns:
            UserWarning: columns without any number, which are left out.
        """
        with unchanged_if_refused(self):
            x, y = self._take(X, y, reset=True)
            trainings, seeds, noise = self._trainings(len(y), 1), self._seeds(), self._given_noise()
            fold = assign_folds(len(y), self.n_folds, *seeds(1))
        self._leave_out_constant(x)

        def unseen(networks: list[list[Sequential]]) -> Prediction:
            """The prediction of each sample, by the networks that were trained without its fold."""
            return Prediction.of(networks, [fold == k for k in range(len(networks))], x)

        networks = self._train(
            partial(fit_values, noise=noise),
            trainings,
            (x, y),
            fold,
            loss=lambda networks: (unseen(networks).mu - y) ** 2,
            seeds=seeds,
        )
        everyone = [net for some in networks for net in some]
        if noise is not None:
            self.noise_ = GivenNoise(noise)
        else:
            self.noise_ = learn_noise(
                x,
                y,
                unseen(networks),
                fold,
                networks=len(everyone),
                heteroscedastic=self.heteroscedastic,
                student_t=self.student_t,
                seeds=seeds(len(networks)),
                run=self._run,
            )
        self._batches, self.networks_ = None, everyone  # last: a fit that is interrupted leaves none
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> TAGIRegressor:
        """Learns further samples in one pass. Each is evidence once, and nothing is forgotten.

        The first call of a new estimator fixes the means and standard deviations by which all samples are standardised:
        give it a hundred samples or so. Unless `sigma_v` is given, the variance of the noise is estimated from the
        errors of the last batches, which are predicted before they are learnt, and predictions are Gaussian. After
        `fit` the noise stays as it was learnt there. Unless `sigma_v` is given, an observation that is more than five
        standard deviations off counts as five in the noise, and is learnt as if the standard deviation of its own noise
        were a fifth of its distance: the farther off it is, the less it changes.

        Args:
            X: (n, features) numbers; NaN is missing. y: n numbers.

        Raises:
            ValueError: as in `fit`; or the first call has one sample only, or all its y are equal.

        Warns:
            UserWarning: columns that are constant in the first call, or hold no number there and are left out.
        """
        first = not hasattr(self, "networks_")
        with unchanged_if_refused(self):
            x, y = self._take(X, y, reset=first)
            training, given = self._trainings(len(y), 1)[0], self._given_noise()
            networks = self._untrained(training, x) if first else []
            if first and np.ptp(y) == 0:
                raise ValueError(
                    "all y are equal, but the first call of partial_fit fixes the scale of y: give it samples that vary"
                )
        if first:
            self.noise_ = GivenNoise(1.0 if given is None else given)
            self._batches, self.networks_ = 0 if given is None else None, networks
        elif given is not None and isinstance(self.noise_, GivenNoise):
            self.noise_, self._batches = GivenNoise(given), None
        size = min(self.batch_size, len(y))
        for start in range(0, len(y), size):
            rows = slice(start, start + size)
            with lock_of(self):
                self._learn_once(x[rows], y[rows])
        return self

    def _learn_once(self, x: np.ndarray, y: np.ndarray) -> None:
        prediction, noise, batches = self._prediction(x), self.noise_, self._batches
        errors, predicted = (prediction.mu - y) ** 2, prediction.var + prediction.spread
        if isinstance(noise, GivenNoise) and batches is not None:
            error = float(np.mean(np.minimum(errors, BEYOND * (predicted + noise.variance))))
            excess = max(error - float(np.mean(predicted)), error / 10, LEAST_NOISE)
            batches = min(batches + 1, REMEMBERED)
            noise = GivenNoise(noise.variance + (excess - noise.variance) / (batches + 1))
        variances = noise.of_observations(x, prediction)
        if self.sigma_v is None:
            variances = np.maximum(variances, errors / BEYOND - predicted)
        observe = values(y, variances)
        for net in self.networks_:
            run_epoch(net, x, observe, len(y), np.random.default_rng(0))
        self.noise_, self._batches = noise, batches

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
            and standard deviations are (n,), quantiles (n, number of probabilities), all in units of y. A Pipeline
            passes the arguments on: `pipeline.predict(X, return_std=True, quantiles=[0.05, 0.95])`.

        Raises:
            ValueError: quantiles that are not probabilities, in increasing order, between 0 and 1.
        """
        asked = None if quantiles is None else probabilities_of(quantiles)
        mean, log_scale2 = self._distribution(X)
        if not return_std and asked is None:
            return mean
        results, v, scale = [mean], self.degrees_of_freedom_, np.exp(log_scale2 / 2)
        if return_std:
            results.append(np.sqrt(1.0 if np.isinf(v) else v / (v - 2)) * scale)
        if asked is not None:
            results.append(mean[:, None] + scale[:, None] * quantile(asked, v))
        return tuple(results)

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central intervals, each of which holds an observation with the probability `coverage`.

        Returns:
            (low, high), n of each, in units of y.

        Raises:
            ValueError: a coverage that does not lie between 0 and 1.
        """
        if not (isinstance(coverage, Real) and 0 < coverage < 1):
            raise ValueError(f"coverage is a probability between 0 and 1, got {coverage!r}")
        mean, log_scale2 = self._distribution(X)
        half = quantile((1 + float(coverage)) / 2, self.degrees_of_freedom_) * np.exp(log_scale2 / 2)
        return mean - half, mean + half

    def log_likelihood(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """ln of the predicted density at each of n observations y, in units of y; its mean compares models."""
        scaled, log_scale2 = self._residuals(X, y)
        return log_density(scaled**2, np.zeros(len(scaled)), self.degrees_of_freedom_) - log_scale2 / 2

    def crps(self, X: ArrayLike, y: ArrayLike) -> np.ndarray:
        """Continuous ranked probability score of each of n observations y, in units of y; the smaller, the better.

        It is the integral over all u of (P(observation <= u) - [y <= u])^2. Of a prediction without error bars it is
        the absolute error. Its mean compares models, and minds outliers less than `log_likelihood`.

        Source: Gneiting & Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", JASA 102.
        """
        scaled, log_scale2 = self._residuals(X, y)
        return np.exp(log_scale2 / 2) * ranked_score(scaled, self.degrees_of_freedom_)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R^2 of the n predictions; `sample_weight`: n weights of the samples, None for equal ones."""
        return super().score(X, unwrapped(y, "y"), unwrapped(sample_weight, "sample_weight"))

    @property
    def degrees_of_freedom_(self) -> float:
        return self.noise_.degrees

    def _take(self, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Standardised float32 samples. With `reset`, these samples define the standardisation of all later ones."""
        X, y = self._numbers(X, reset), unwrapped(y, "y")
        X, y = check_X_y(X, y, ensure_all_finite="allow-nan", y_numeric=True, estimator=self)
        y = column_or_1d(y, warn=True).astype(np.float64)
        as_bools("TAGIRegressor", heteroscedastic=self.heteroscedastic, student_t=self.student_t)
        if reset:
            self._standardise_by(X)
            self._y_mean, self._y_std = moments_of("y", y)
        scaled = (y - self._y_mean) / self._y_std
        if (np.abs(scaled) > FARTHEST).any():
            raise ValueError(f"y has numbers that are more than {FARTHEST:.0e} standard deviations away from its mean")
        return self._scaled(X), scaled.astype(np.float32)

    def _given_noise(self) -> float | None:
        if self.sigma_v is not None and not is_deviation(self.sigma_v):
            raise ValueError(f"sigma_v must be a standard deviation, above 0 and finite, or None; got {self.sigma_v!r}")
        return None if self.sigma_v is None else (self.sigma_v / self._y_std) ** 2

    def _residuals(self, X: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Observations minus means, in units of the scale s of each, and ln s^2."""
        mean, log_scale2 = self._distribution(X)
        observed: np.ndarray = column_or_1d(unwrapped(y, "y"), dtype=np.float64)
        if len(observed) != len(mean):
            raise ValueError(f"X has {len(mean)} samples, but y has {len(observed)} observations: give one for each")
        return (observed - mean) * np.exp(-log_scale2 / 2), log_scale2  # squares in units of y may be 0 in float64

    def _prediction(self, x: np.ndarray) -> Prediction:
        return Prediction.of([self.networks_], [slice(None)], x)

    def _distribution(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Means, and ln s^2, in units of y."""
        x = self._standardised(X)
        with lock_of(self):
            prediction = self._prediction(x)
            log_scale2 = self.noise_.log_scale2(x, prediction) + 2 * np.log(self._y_std)
        return prediction.mu * self._y_std + self._y_mean, log_scale2
