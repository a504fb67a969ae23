"""One posterior from several: those of ranks, or of the steps of training (`mixed`).

Ranks start from a common prior N(m0, s0), and have different samples. The summands of each rank (`contribution`) are
added over the ranks, and the sums give the merged parameter (`merged`).

    mean                  m = mean of m_r                          s = mean of s_r
    precision-weighted    m = sum m_r/s_r / sum 1/s_r              1/s = 1/s0 + sum (1/s_r - 1/s0)
    damped product        m = m0 + sum (m_r - m0)/s_r / t          as precision-weighted
                          t = sqrt(R)/s0 + sum (1/s_r - 1/s0) for R ranks that have gained precision in total

The product of the posteriors of all ranks, over R - 1 times the prior, has t = 1/s: each rank changes the mean as if
the others had not, and networks overshoot. The precision-weighted mean has t = R/s0 + sum (1/s_r - 1/s0).

With these two, the evidence of each rank and the prior count once in the variance. If the ranks have lost precision in
total, their mean precision is used, which is positive. With a prior of variance 0, the mean is used. A parameter that
no rank has changed (as in frozen layers) keeps its bits. The evidence of a rank during a merge is added to the result
(`rebased`): the product of both posteriors, divided by the posterior that both contain.
"""

import math

import numpy as np

from pytagi_ddp.kernels.formulas.bounds import at_least
from pytagi_ddp.kernels.formulas.formula import formula
from pytagi_ddp.kernels.formulas.rules import DAMPED_PRODUCT, MEAN

ZERO, ONE = np.float32(0), np.float32(1)
LEAST = np.float32(1 / 64)  # smallest remaining share of a precision


@formula
def contribution(m, s, m0, s0, rule):
    """A rank's summands: changes of mean and variance; or precision times change of mean, and change of precision."""
    if rule != MEAN and s0 > ZERO:
        precision = ONE / s
        return precision * (m - m0), precision - ONE / s0
    return m - m0, s - s0


@formula
def merged(m0, s0, first, second, ranks, rule):
    """(m, s) from the prior and the sums of `contribution` over `ranks` ranks."""
    if rule != MEAN and s0 > ZERO:
        prior = ONE / s0
        mean_precision = prior + second / ranks
        precision = prior + second if second > ZERO else mean_precision
        divisor = ranks * mean_precision
        if rule == DAMPED_PRODUCT:
            root = math.sqrt(ranks)
            divisor = root * prior + second if second > ZERO else root * mean_precision
        return m0 + first / divisor, (s0 if second == ZERO else ONE / precision)
    return m0 + first / ranks, at_least(s0 + second / ranks, ZERO)  # below 0 if ranks began with other priors


@formula
def rebased(m, s, m0, s0, m1, s1):
    """N(m, s) N(m1, s1) / N(m0, s0): adds the evidence between N(m0, s0) and N(m, s) to N(m1, s1)."""
    if s0 > ZERO and s1 > ZERO:
        precision, base = ONE / s, ONE / s1
        gained = precision - ONE / s0
        total = at_least(base + gained, LEAST * base)
        return m1 + (precision * (m - m0) + gained * (m0 - m1)) / total, (s1 if gained == ZERO else ONE / total)
    return m1 + (m - m0), at_least(s1 + (s - s0), ZERO)


@formula
def mixed(m, s, new_m, new_s, weight):
    """Mean and variance of the mixture (1 - weight) N(m, s) + weight N(new_m, new_s)."""
    d = new_m - m
    return m + weight * d, s + weight * ((new_s - s) + (ONE - weight) * d * d)
