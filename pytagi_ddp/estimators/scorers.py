"""Scores of predicted distributions, for `scoring=` of scikit-learn's searches and cross-validation.

A scorer is called with a fitted estimator, X and y, and returns a number; the larger, the better. The estimator is a
`TAGIRegressor`, or a Pipeline or a search that ends with one.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_consistent_length, column_or_1d

from pytagi_ddp.estimators.classifier import TAGIClassifier
from pytagi_ddp.estimators.ensemble import unwrapped
from pytagi_ddp.estimators.regressor import TAGIRegressor

COVERAGE = 0.9


def log_likelihood_scorer(estimator: Any, X: ArrayLike, y: ArrayLike) -> float:
    """Mean ln of the predicted density at the observations y, in units of y: see `TAGIRegressor.log_likelihood`.

        GridSearchCV(pipeline, grid, scoring=log_likelihood_scorer)

    Args:
        estimator: fitted; a `TAGIRegressor`, or a Pipeline or a search that ends with one.

    Raises:
        TypeError: another estimator. A TransformedTargetRegressor is one: densities would be those of transformed
            targets, and differ by the derivative of the transform.
    """
    regressor, X = _regressor(estimator, X)
    return float(np.mean(regressor.log_likelihood(X, y)))


def neg_crps_scorer(estimator: Any, X: ArrayLike, y: ArrayLike) -> float:
    """Minus the mean continuous ranked probability score, in units of y: see `TAGIRegressor.crps`.

    Args:
        estimator: as of `log_likelihood_scorer`.

    Raises:
        TypeError: as `log_likelihood_scorer`.
    """
    regressor, X = _regressor(estimator, X)
    return -float(np.mean(regressor.crps(X, y)))


def neg_interval_score_scorer(estimator: Any, X: ArrayLike, y: ArrayLike) -> float:
    """Minus the mean score of central intervals (l, u) of 90 %, a = 0.1, in units of y.

        (u - l) + 2/a max(l - y, 0) + 2/a max(y - u, 0)

    Narrow intervals score well, unless observations lie outside of them.

    Args:
        estimator: as of `log_likelihood_scorer`.

    Raises:
        TypeError: as `log_likelihood_scorer`.

    Source: Gneiting & Raftery (2007), "Strictly proper scoring rules, prediction, and estimation", JASA 102.
    """
    regressor, X = _regressor(estimator, X)
    low, high = regressor.predict_interval(X, COVERAGE)
    observed = column_or_1d(unwrapped(y, "y"), dtype=np.float64)
    check_consistent_length(low, observed)
    outside = np.maximum(low - observed, 0) + np.maximum(observed - high, 0)
    return -float(np.mean(high - low + 2 / (1 - COVERAGE) * outside))


def _regressor(estimator: Any, X: Any) -> tuple[TAGIRegressor, Any]:
    """The regressor at the end of pipelines and searches, and its inputs."""
    while not isinstance(estimator, TAGIRegressor):
        if isinstance(estimator, Pipeline):
            X = estimator[:-1].transform(X) if len(estimator) > 1 else X
            estimator = estimator[-1]
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
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
