"""The benchmark of predictions."""

import re

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from benchmarks import serving


def test_it_reports_times_of_each_way_to_predict():
    report = serving.report(3, [4], [1, 20], repeat=3)
    assert "20 networks of [4] units, 3 features" in report
    ways = [line for line in report.splitlines() if "/" in line and "percentile" not in line]
    assert len(ways) >= 2
    for line in ways:
        times = [float(number) for number in re.findall(r"\d+\.\d+", line)]
        assert len(times) == 4 and times[0] <= times[1]
