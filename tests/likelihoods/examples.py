"""A likelihood of each kind that observes every output alone, and a number that it may observe there.

Deltas, predictions and pickles of all of them are tested. (Predictions also observe 1, and numbers from 0 to 3.)
"""

from pytagi_ddp import likelihoods as lk

EXAMPLES = {
    "Gaussian": (lk.Gaussian(0.5), 0.4),
    "LogNormal": (lk.LogNormal(0.5), 0.4),
    "StudentT": (lk.StudentT(6, 0.5), 0.4),
    "Laplace": (lk.Laplace(0.5), 0.4),
    "Gamma": (lk.Gamma(3), 0.7),
    "Poisson": (lk.Poisson(4), 3),
    "NegativeBinomial": (lk.NegativeBinomial(5), 3),
    "Censored": (lk.Censored(0.5), 0.4),
    "Bernoulli": (lk.Bernoulli(), 1),
    "probit": (lk.Bernoulli("probit"), 1),
    "Ordinal": (lk.Ordinal(4), 1),
}
# These have tests of their own.
OTHERS = {"Categorical", "HierarchicalCategorical", "HeteroscedasticGaussian", "Custom", "Joint"}


def kinds() -> dict[str, type[lk.Likelihood]]:
    """All likelihoods of the library, by their names."""
    found = {name: getattr(lk, name) for name in lk.__all__ if name != "Likelihood"}
    return {name: kind for name, kind in found.items() if issubclass(kind, lk.Likelihood)}
