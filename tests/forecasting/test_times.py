"""Times: which ones are regular, what follows them, and what the calendar says about them."""

import datetime

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.forecasting.times import BUSINESS_DAYS, FIXED, MONTHS, Times, waves

pd = pytest.importorskip("pandas", reason="pandas is not installed")

# Frequency, number of steps, unit, season, and the cycles that are inputs.
REGULAR = [
    ("MS", 30, MONTHS, 12, ["year"]),
    ("ME", 30, MONTHS, 12, ["year"]),
    ("QS", 12, MONTHS, 4, ["year"]),
    ("QE", 12, MONTHS, 4, ["year"]),
    ("YS", 12, MONTHS, 1, []),
    ("h", 60, FIXED, 24, ["day"]),
    ("h", 400, FIXED, 24, ["day", "week"]),
    ("15min", 300, FIXED, 96, ["day"]),
    ("D", 800, FIXED, 7, ["week", "year"]),
    ("W", 120, FIXED, 52, ["year"]),
    ("B", 60, BUSINESS_DAYS, 5, ["week"]),
    ("B", 600, BUSINESS_DAYS, 5, ["week", "year"]),
    ("10ms", 60, FIXED, 8640000, []),
]


@pytest.mark.parametrize(("step", "number", "unit", "season", "cycles"), REGULAR)
def test_regular_times_go_on(step, number, unit, season, cycles):
    index = pd.date_range("2019-01-15 06:00", periods=number + 30, freq=step)
    times = Times.read(index[:number], number)
    assert times.unit == unit and times.season() == season and list(times.cycles()) == cycles
    np.testing.assert_array_equal(times.extended(30).values, index.values.astype("M8[us]"))
    numbers = times.extended(30).numbers()
    np.testing.assert_allclose(np.diff(numbers), 1, atol=1e-6)
    np.testing.assert_array_equal(times.first(5).values, times.values[:5])


@pytest.mark.parametrize("step", ["M", "Q", "D", "h", "W"])
def test_periods_are_their_beginnings(step):
    index = pd.period_range("2020-01-01", periods=60, freq=step)
    times = Times.read(index[:50], 50)
    np.testing.assert_array_equal(times.extended(10).values, index.start_time.values.astype("M8[us]"))


def test_columns_lists_and_strings_are_read():
    index = pd.date_range("2020-01-01", periods=20, freq="D")
    dates = [datetime.date(2020, 1, 1) + datetime.timedelta(k) for k in range(20)]
    polars = pytest.importorskip("polars", reason="polars is not installed")
    for given in (pd.Series(index, range(5, 25)), index.values, dates, list(map(str, dates)), polars.Series(dates)):
        np.testing.assert_array_equal(Times.read(given, 20).values, index.values.astype("M8[us]"))


@pytest.mark.parametrize(("zone", "day"), [("Europe/Berlin", "2024-03-30"), ("America/New_York", "2024-11-02")])
def test_hours_of_a_time_zone_go_through_the_change_of_clocks(zone, day):
    index = pd.date_range(day, periods=72, freq="h", tz=zone)
    times = Times.read(index[:12], 12)
    ahead = times.extended(60)
    for found in (Times.read(index, 72), ahead):
        np.testing.assert_array_equal(found.values, index.tz_convert(None).to_numpy().astype("M8[us]"))
        np.testing.assert_array_equal(found.local, index.tz_localize(None).to_numpy().astype("M8[us]"))
        np.testing.assert_allclose(24 * found.phases()["day"], index.hour, atol=1e-6)


@pytest.mark.parametrize("step", ["D", "B", "MS", "ME"])
def test_days_of_a_time_zone_begin_at_its_midnight(step):
    index = pd.date_range("2024-01-01", periods=150, freq=step, tz="Europe/Berlin")
    times = Times.read(index[:50], 50).extended(100)
    np.testing.assert_array_equal(times.values, index.tz_convert(None).to_numpy().astype("M8[us]"))
    np.testing.assert_allclose(times.phases()["day"], 0, atol=1e-9)


def test_a_time_zone_of_polars_is_the_same():
    polars = pytest.importorskip("polars", reason="polars is not installed")
    index = pd.date_range("2024-03-30", periods=72, freq="h", tz="Europe/Berlin")
    column = polars.Series(index.tz_convert(None).to_numpy())
    column = column.dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")
    found, same = Times.read(column, 72), Times.read(index, 72)
    np.testing.assert_array_equal(found.values, same.values)
    np.testing.assert_array_equal(found.local, same.local)


def test_phases_are_those_of_the_calendar():
    index = pd.date_range("2023-05-07", periods=500, freq="6h")  # a Sunday
    phases = Times.read(index, 500).phases()
    np.testing.assert_allclose(24 * phases["day"], index.hour, atol=1e-9)
    np.testing.assert_allclose(7 * phases["week"], (index.day_of_week + 1) % 7 + index.hour / 24, atol=1e-9)
    np.testing.assert_allclose(365.2425 * phases["year"], index.day_of_year - 1 + index.hour / 24, atol=1e-9)
    assert len(waves(np.zeros(2), 12)) == 6 and len(waves(np.zeros(2), 4)) == 2 and waves(np.zeros(2), 1) == []


DAYS = pd.date_range("2020-01-01", periods=20, freq="D")


@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        (np.arange(20), TypeError, "must be dates, got numbers"),
        (["day"] * 20, TypeError, "must be dates: "),
        (DAYS[:19], ValueError, r"shape \(19,\), and there are 20 time steps"),
        (DAYS[::-1], ValueError, "must increase, but 2020-01-20T"),
        (DAYS.repeat(2)[:20], ValueError, "must increase"),
        (DAYS.delete(7).append(DAYS[-1:] + pd.Timedelta("1D")), ValueError, "2 days, 0:00:00 apart, .* y.asfreq"),
        (DAYS.where(DAYS[3] != DAYS), ValueError, "no date at step 3"),
        (pd.bdate_range("2020-01-01", periods=21).delete(5), ValueError, r"asfreq\('B'\)"),  # a holiday
    ],
)
def test_others_are_refused(times, error, message):
    with pytest.raises(error, match=message):
        Times.read(times, 20)


@pytest.mark.parametrize(
    ("frequency", "start", "found"),
    [
        (
            "MS",
            "2012-01-01",
            "2020-07-01T.* and 2020-09-01T.* are 2 months apart, and most of them 1 month\\.",
        ),
        ("ME", "2012-01-31", "2020-07-31T.* and 2020-09-30T.* are 2 months apart, and most of them 1 month\\."),
        ("B", "2020-01-01", "2020-05-22T.* and 2020-05-26T.* are 2 business days apart, .* 1 business day\\."),
        ("D", "2020-01-01", "2020-04-12T.* and 2020-04-14T.* are 2 days, 0:00:00 apart, and most of them 1 day, 0"),
    ],
)
def test_a_gap_is_named(frequency, start, found):
    times = pd.date_range(start, periods=120, freq=frequency).delete(103)
    with pytest.raises(ValueError, match=found):
        Times.read(times, len(times))
