"""Estimators with the interface of scikit-learn: ensembles of small networks with error bars.

    regressor = TAGIRegressor(random_state=0).fit(X, y)
    mean, std = regressor.predict(X_new, return_std=True)

They need scikit-learn (`pip install 'pytagi-ddp[sklearn]'`), which is loaded with this module.
"""

import importlib.util

if importlib.util.find_spec("sklearn") is None:
    raise ImportError(
        "pytagi_ddp.estimators needs scikit-learn, which is not installed: pip install 'pytagi-ddp[sklearn]'"
    )

from pytagi_ddp.estimators.classifier import TAGIClassifier
from pytagi_ddp.estimators.distributions import EnsemblePrediction
from pytagi_ddp.estimators.regressor import TAGIRegressor
from pytagi_ddp.estimators.scorers import (
    coverage_scorer,
    log_likelihood_scorer,
    neg_crps_scorer,
    neg_interval_score_scorer,
)

__all__ = [
    "EnsemblePrediction",
    "TAGIClassifier",
    "TAGIRegressor",
    "coverage_scorer",
    "log_likelihood_scorer",
    "neg_crps_scorer",
    "neg_interval_score_scorer",
]
