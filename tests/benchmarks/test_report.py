"""How figures are shown."""

import pytest

from benchmarks.report import Spread, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.34, "12.3 s"),
        (0.9996, "1.00 s"),
        (0.5, "500 ms"),
        (0.00123, "1.23 ms"),
        (45.6e-6, "45.6 us"),
        (0, "0.00 us"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_spread():
    assert Spread.of([4.0, 1.0, 2.0, 3.0, 5.0]) == (3, 2, 4)
    assert Spread.of([7.0]) == (7, 7, 7)
