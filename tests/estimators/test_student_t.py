"""Student-t distributions against SciPy's, and the scale that residuals are fitted by."""

import math

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.estimators.student_t import DEGREES, fit_scale, log_density, quantile, ranked_score


@pytest.mark.parametrize("degrees", DEGREES)
def test_density_and_quantile(degrees):
    from scipy import stats

    rng = np.random.default_rng(0)
    r, log_scale2 = rng.normal(size=50), rng.normal(size=50)
    there = stats.norm if math.isinf(degrees) else stats.t(degrees)
    expected = there.logpdf(r / np.exp(log_scale2 / 2)) - log_scale2 / 2
    np.testing.assert_allclose(log_density(r**2, log_scale2, degrees), expected, rtol=1e-10)
    assert quantile(0.95, degrees) == pytest.approx(there.ppf(0.95))
    np.testing.assert_allclose(quantile(np.array([0.05, 0.5]), degrees), there.ppf([0.05, 0.5]), atol=1e-12)


@pytest.mark.parametrize("degrees", DEGREES)
def test_the_ranked_score_is_its_integral(degrees):
    from scipy import integrate, stats

    there = stats.norm if math.isinf(degrees) else stats.t(degrees)
    z = np.array([-3.0, -0.2, 0.0, 1.5, 40.0])

    def integral(miss, low, high):
        return integrate.quad(lambda u: miss(u) ** 2, low, high, limit=200)[0]

    expected = [integral(there.cdf, -np.inf, place) + integral(there.sf, place, np.inf) for place in z]
    np.testing.assert_allclose(ranked_score(z, degrees), expected, rtol=1e-6)
    far = np.array([1e200, -1e200])  # an absolute error there
    np.testing.assert_allclose(ranked_score(far, degrees), np.abs(far))


@pytest.mark.parametrize("degrees", [4.0, math.inf])
def test_the_scale_is_found(degrees):
    rng = np.random.default_rng(0)
    h = rng.normal(size=20_000)
    t = rng.normal(size=h.size) if math.isinf(degrees) else rng.standard_t(degrees, h.size)
    found = fit_scale((np.exp(0.5 * (-1 + 0.7 * h)) * t) ** 2, h)
    assert found.offset == pytest.approx(-1, abs=0.05) and found.slope == pytest.approx(0.7, abs=0.03)
    assert found.degrees == degrees or (math.isinf(degrees) and found.degrees >= 20)
    assert fit_scale(t**2, h, (math.inf,)).degrees == math.inf


@pytest.mark.parametrize("degrees", [4.0, math.inf])
def test_the_slope_of_few_residuals_has_a_prior(degrees):
    """The offset and the slope are the most probable ones."""
    squares, h = np.array([0.01, 0.04, 25.0]), np.array([-1.0, 0.0, 1.0])
    found = fit_scale(squares, h, (degrees,))

    def log_posterior(offset, slope):
        return log_density(squares, offset + slope * h, degrees).sum() - slope**2 / 2

    top = log_posterior(found.offset, found.slope)
    for change in (-0.05, 0.05):
        assert (
            max(log_posterior(found.offset + change, found.slope), log_posterior(found.offset, found.slope + change))
            < top
        )
