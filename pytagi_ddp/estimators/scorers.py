"""Scores of predicted distributions, for `scoring=` of scikit-learn's searches and cross-validation.

A scorer is called with a fitted estimator, X and y, and returns a number; the larger, the better (but `coverage_scorer`
has its best value in between). The estimator is a `TAGIRegressor`, or a Pipeline or a search that ends with one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import assert_all_finite
from sklearn.utils.metadata_routing import MetadataRequest

from pytagi_ddp.estimators.classifier import TAGIClassifier
from pytagi_ddp.estimators.distributions import EnsemblePrediction
from pytagi_ddp.estimators.inputs import explained, sample_weights
from pytagi_ddp.estimators.regressor import TAGIRegressor, observations

COVERAGE = 0.9
Score = Callable[..., float]


class Requesting:
    """A scorer that asks for `sample_weight`, or refuses it, where scikit-learn routes metadata.

    Args:
        score: the scorer. sample_weight: True, False, None (weights are an error) or the name of the weights.
    """

    def __init__(self, score: Score, sample_weight: bool | str | None = None):
        self._score, self._asked = score, sample_weight
        self.__name__ = score.__name__

    def __repr__(self) -> str:
        return f"{self.__name__}.set_score_request(sample_weight={self._asked!r})"

    def __call__(self, estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        return self._score(estimator, X, y, sample_weight)

    def set_score_request(self, *, sample_weight: bool | str | None) -> "Requesting":
        return Requesting(self._score, sample_weight)

    def get_metadata_routing(self) -> MetadataRequest:
        request = MetadataRequest(owner=self.__name__)
        request.score.add_request(param="sample_weight", alias=self._asked)
        return request


def routed(score: Score) -> Any:
    """A scorer with `set_score_request`, as those of scikit-learn; it stays a function, which can be pickled."""
    plain = Requesting(score)
    score.set_score_request = plain.set_score_request  # type: ignore[attr-defined]
    score.get_metadata_routing = plain.get_metadata_routing  # type: ignore[attr-defined]
    return score


@routed
def log_likelihood_scorer(estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Mean ln of the predicted density at the observations y, in units of y: see `TAGIRegressor.log_likelihood`.

        GridSearchCV(pipeline, grid, scoring=log_likelihood_scorer)

    With metadata routing, `log_likelihood_scorer.set_score_request(sample_weight=True)` is given the weights.

    Args:
        estimator: fitted; a `TAGIRegressor`, or a Pipeline or a search that ends with one.
        X: n samples. y: n observations, or (n, targets); their density is the product over the targets.
        sample_weight: n weights of the samples in the mean; None for equal ones.

    Raises:
        TypeError: another estimator. A TransformedTargetRegressor is one: densities would be those of transformed
            targets, and differ by the derivative of the transform.
        ValueError: an observation is missing or infinite.
    """
    distribution, observed = _predicted(estimator, X, y)
    logs = distribution.log_prob(observed)
    return _mean(logs.sum(1) if logs.ndim == 2 else logs, sample_weight)


@routed
def neg_crps_scorer(estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Minus the mean continuous ranked probability score, in units of y: see `TAGIRegressor.crps`.

    Args:
        estimator, X, y, sample_weight: as of `log_likelihood_scorer`. The mean is over several targets, too, whose
            units should be alike.

    Raises:
        TypeError, ValueError: as `log_likelihood_scorer`.
    """
    distribution, observed = _predicted(estimator, X, y)
    return -_mean(distribution.crps(observed), sample_weight)


@routed
def neg_interval_score_scorer(
    estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
) -> float:
    """Minus the mean score of central intervals (l, u) of 90 %, a = 0.1, in units of y.

        (u - l) + 2/a max(l - y, 0) + 2/a max(y - u, 0)

    Narrow intervals score well, unless observations lie outside of them.

    Args:
        estimator, X, y, sample_weight: as of `neg_crps_scorer`.

    Raises:
        TypeError, ValueError: as `log_likelihood_scorer`.

    Source: Gneiting & Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", JASA 102.
    """
    distribution, observed = _predicted(estimator, X, y)
    low, high = distribution.interval(COVERAGE)
    outside = np.maximum(low - observed, 0) + np.maximum(observed - high, 0)
    return -_mean(high - low + 2 / (1 - COVERAGE) * outside, sample_weight)


@routed
def coverage_scorer(estimator: Any, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
    """Share of the observations that lie inside their central intervals of 90 %: 0.9 at best.

    Use it in reports together with other scores. A search by it would choose the widest intervals.

        cross_validate(regressor, X, y, scoring={"coverage": coverage_scorer, "crps": neg_crps_scorer})

    Args:
        estimator, X, y, sample_weight: as of `neg_crps_scorer`.

    Raises:
        TypeError, ValueError: as `log_likelihood_scorer`.
    """
    distribution, observed = _predicted(estimator, X, y)
    low, high = distribution.interval(COVERAGE)
    return _mean((low <= observed) & (observed <= high), sample_weight)


def _predicted(estimator: Any, X: Any, y: Any) -> tuple[EnsemblePrediction, np.ndarray]:
    """Distributions, and their observations."""
    regressor, X = _regressor(estimator, X)
    distribution = regressor.predict_distribution(X)
    observed = observations(y, distribution)
    with explained(observed, "y"):
        assert_all_finite(observed, input_name="y")
    return distribution, observed


def _mean(scores: np.ndarray, sample_weight: ArrayLike | None) -> float:
    """Over the samples by their weights, and over targets."""
    if sample_weight is None:
        return float(np.mean(scores))
    weights = sample_weights(sample_weight, len(scores), learnt=False)
    return float(np.mean(np.average(scores, 0, weights)))


def _regressor(estimator: Any, X: Any) -> tuple[TAGIRegressor, Any]:
    """The regressor at the end of pipelines and searches, also frozen ones, and its inputs."""
    while not isinstance(estimator, TAGIRegressor):
        if isinstance(estimator, Pipeline):
            X = estimator[:-1].transform(X) if len(estimator) > 1 else X
            estimator = estimator[-1]
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        elif isinstance(estimator, TransformedTargetRegressor):
            raise TypeError(
                "a TransformedTargetRegressor predicts no distribution: that of its regressor is one of transformed "
                "targets, whose scores are not those of y. Leave it out: a TAGIRegressor standardises y by itself"
            )
        elif isinstance(estimator, TAGIClassifier):
            raise TypeError('this scorer is for a TAGIRegressor: use scoring="neg_log_loss" for a TAGIClassifier')
        else:
            raise TypeError(
                f"this scorer takes a TAGIRegressor, or a Pipeline or a search that ends with one, "
                f"got {type(estimator).__name__}"
            )
    return estimator, X
