"""Observation models: the deltas of outputs for observations of any kind, and predictions of observations.

An output is a Gaussian z ~ N(m, s). A likelihood p(y | z) turns an observation y into deltas at the output,

    dm = d log Z/dm,    ds = d^2 log Z/dm^2,    Z = E[p(y | z)],

so that the output's posterior has the mean m + s dm and the variance s + s^2 ds. For the Gaussian likelihood these are
the deltas of `OutputUpdater.update`. A prediction is the mixture of p(y | z) over z ~ N(m, s).
"""

from pytagi_ddp.likelihoods.base import Likelihood
from pytagi_ddp.likelihoods.classes import Bernoulli, Categorical, HierarchicalCategorical, Ordinal
from pytagi_ddp.likelihoods.counts import NegativeBinomial, Poisson
from pytagi_ddp.likelihoods.custom import Custom
from pytagi_ddp.likelihoods.gaussian import Censored, Gaussian, HeteroscedasticGaussian, LogNormal
from pytagi_ddp.likelihoods.joint import Joint, JointPrediction
from pytagi_ddp.likelihoods.positive import Gamma
from pytagi_ddp.likelihoods.prediction import Prediction
from pytagi_ddp.likelihoods.robust import Laplace, StudentT

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
