"""Posterior moments of an output by quadrature in float64."""

from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

COARSE, FINE = 1501, 8001  # points: to find where the posterior is, and for its moments


def moments(
    m: float,
    s: float,
    log_likelihood: Callable[[np.ndarray], np.ndarray],
    centre: float | None = None,
    scale: float = 1,
) -> tuple[float, float]:
    """(sqrt(s) dm, s ds) = (mean of u, its variance - 1), u = (z - m)/sqrt(s) under N(z; m, s) p(y | z).

    centre, scale: where the likelihood has a kink, or a maximum besides that of the prior, and its width.
    """
    sd = np.sqrt(s)
    log_f = lambda z: -((z - m) ** 2) / (2 * s) + log_likelihood(z)  # noqa: E731
    near = np.zeros(0) if centre is None else centre + scale * np.sinh(np.linspace(-14, 14, 3001))
    low, high = min(m - 40 * sd, -120), max(m + 40 * sd, 120)
    points = COARSE
    while True:
        more = m + sd * np.linspace(-9, 9, COARSE)
        inside = [part[(part > low) & (part < high)] for part in (near, more)]
        grid = np.unique(np.concatenate([np.linspace(low, high, points), *inside]))
        with np.errstate(all="ignore"):
            logs = np.nan_to_num(log_f(grid), nan=-np.inf, neginf=-np.inf)
        if points == FINE:
            break
        kept, before = np.flatnonzero(logs > logs.max() - 45), high - low
        low, high = grid[max(kept[0] - 1, 0)], grid[min(kept[-1] + 1, len(grid) - 1)]
        points = COARSE if high - low < before / 2 else FINE
    w = np.exp(logs - logs.max())
    w[1:-1] *= (grid[2:] - grid[:-2]) / 2
    w[0] = w[-1] = 0
    w /= w.sum()
    u = (grid - m) / sd
    mean = w @ u
    return mean, w @ (u - mean) ** 2 - 1


def log_interval(low: float, high: float, sigma: float) -> Callable[[np.ndarray], np.ndarray]:
    def log_likelihood(z: np.ndarray) -> np.ndarray:
        a, b = (low - z) / sigma, (high - z) / sigma
        turned = a + b > 0
        a, b = np.where(turned, -b, a), np.where(turned, -a, b)
        below, up_to = log_ndtr(a), log_ndtr(b)
        return up_to + np.log(-np.expm1(below - up_to))

    return log_likelihood
