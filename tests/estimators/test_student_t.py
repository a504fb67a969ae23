"""Student-t distributions against SciPy's, and the scale that residuals are fitted by."""

import math

import numpy as np
import pytest

from pytagi_ddp.estimators.student_t import DEGREES, fit_scale, log_density, quantile


@pytest.mark.parametrize("degrees", DEGREES)
def test_density_and_quantile(degrees):
    from scipy import stats

    rng = np.random.default_rng(0)
    r, log_scale2 = rng.normal(size=50), rng.normal(size=50)
    there = stats.norm if math.isinf(degrees) else stats.t(degrees)
    expected = there.logpdf(r / np.exp(log_scale2 / 2)) - log_scale2 / 2
    np.testing.assert_allclose(log_density(r**2, log_scale2, degrees), expected, rtol=1e-10)
    assert quantile(0.95, degrees) == pytest.approx(there.ppf(0.95))


@pytest.mark.parametrize("degrees", [4.0, math.inf])
def test_the_scale_is_found(degrees):
    rng = np.random.default_rng(0)
    h = rng.normal(size=20_000)
    t = rng.normal(size=h.size) if math.isinf(degrees) else rng.standard_t(degrees, h.size)
    found = fit_scale((np.exp(0.5 * (-1 + 0.7 * h)) * t) ** 2, h)
    assert found.offset == pytest.approx(-1, abs=0.05) and found.slope == pytest.approx(0.7, abs=0.03)
    assert found.degrees == degrees or (math.isinf(degrees) and found.degrees >= 20)
    assert fit_scale(t**2, h, (math.inf,)).degrees == math.inf
