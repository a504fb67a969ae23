"""Observation models: the deltas of outputs for observations of any kind, and predictions of observations.

An output is a Gaussian z ~ N(m, s). A likelihood p(y | z) turns an observation y into deltas at the output,

    dm = d log Z/dm,    ds = d^2 log Z/dm^2,    Z = E[p(y | z)],

so that the output's posterior has the mean m + s dm and the variance s + s^2 ds. For the Gaussian likelihood these are
the deltas of `OutputUpdater.update`. A prediction is the mixture of p(y | z) over z ~ N(m, s).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytagi_ddp.likelihoods.base import Likelihood
    from pytagi_ddp.likelihoods.classes import Bernoulli, Categorical, HierarchicalCategorical, Ordinal
    from pytagi_ddp.likelihoods.counts import NegativeBinomial, Poisson
    from pytagi_ddp.likelihoods.custom import Custom
    from pytagi_ddp.likelihoods.gaussian import Censored, Gaussian, HeteroscedasticGaussian, LogNormal
    from pytagi_ddp.likelihoods.joint import Joint, JointPrediction
    from pytagi_ddp.likelihoods.positive import Gamma
    from pytagi_ddp.likelihoods.prediction import Prediction
    from pytagi_ddp.likelihoods.robust import Laplace, StudentT

_PLACES = {
    "base": ("Likelihood",),
    "classes": ("Bernoulli", "Categorical", "HierarchicalCategorical", "Ordinal"),
    "counts": ("NegativeBinomial", "Poisson"),
    "custom": ("Custom",),
    "gaussian": ("Censored", "Gaussian", "HeteroscedasticGaussian", "LogNormal"),
    "joint": ("Joint", "JointPrediction"),
    "positive": ("Gamma",),
    "prediction": ("Prediction",),
    "robust": ("Laplace", "StudentT"),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "Bernoulli",
    "Categorical",
    "Censored",
    "Custom",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "HierarchicalCategorical",
    "Joint",
    "JointPrediction",
    "Laplace",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Prediction",
    "StudentT",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    """Imports each likelihood at its first use."""
    if name in _MODULE_OF:
        return import_module(f"{__name__}.{_MODULE_OF[name]}").__dict__[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
