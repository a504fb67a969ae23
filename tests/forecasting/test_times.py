"""Times: which ones are regular, what follows them, and what the calendar says about them."""

import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from pytagi_ddp.forecasting.times import BUSINESS_DAYS, FIXED, MONTHS, NUMBERS, Times, waves

pd = pytest.importorskip("pandas", reason="pandas is not installed")

# Frequency, number of steps, unit, season, and the cycles that are inputs.
REGULAR = [
    ("MS", 30, MONTHS, 12, ["year"]),
    ("ME", 30, MONTHS, 12, ["year"]),
    ("QS", 12, MONTHS, 4, ["year"]),
    ("QE", 12, MONTHS, 4, ["year"]),
    ("YS", 12, MONTHS, 1, []),
    ("BMS", 30, MONTHS, 12, ["year"]),
    ("BME", 30, MONTHS, 12, ["year"]),
    ("BQE", 12, MONTHS, 4, ["year"]),
    ("BYE", 12, MONTHS, 1, []),
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


@pytest.mark.parametrize("known", [6, 9, 12])
@pytest.mark.parametrize(
    ("zone", "step", "day"),  # the clocks go from 0:00 to 1:00 on the ninth day
    [
        ("America/Santiago", "D", "2024-08-31"),
        ("America/Santiago", "7D", "2024-07-14"),
        ("Africa/Cairo", "B", "2024-04-16"),
        ("Asia/Beirut", "D", "2024-03-23"),
        ("America/Asuncion", "MS", "2017-02-01"),
    ],
)
def test_a_midnight_that_the_clocks_skip_moves_forward(zone, step, day, known):
    naive = pd.date_range(day, periods=24, freq=step)
    index = naive.tz_localize(zone, nonexistent="shift_forward")
    assert index[8].hour == 1 and (index.delete(8).hour == 0).all()
    for first in (0, 8 if known > 8 else 0):
        times = Times.read(index[first : known + first], known).extended(24 - known - first)
        np.testing.assert_array_equal(times.values, index[first:].tz_convert(None).to_numpy().astype("M8[us]"))
        np.testing.assert_array_equal(times.local, naive[first:].to_numpy().astype("M8[us]"))
        assert times.on_clocks
        np.testing.assert_allclose(np.diff(times.numbers()), 1, atol=1e-6)


def test_a_midnight_that_occurs_twice_is_the_first():
    index = pd.date_range("2024-10-25", periods=20, freq="D").tz_localize("America/Havana", ambiguous=np.full(20, True))
    times = Times.read(index[:5], 5).extended(15)
    np.testing.assert_array_equal(times.values, index.tz_convert(None).to_numpy().astype("M8[us]"))
    hours = Times.read(pd.date_range("2024-09-06", periods=90, freq="h", tz="America/Santiago"), 90)
    assert not hours.on_clocks and hours.local[49] - hours.local[48] == np.timedelta64(1, "h")
    assert hours.local[48] == np.datetime64("2024-09-08T01:00")


def test_whole_numbers_are_times_without_a_calendar():
    column = pd.Series(range(1964, 2024, 4), name="year")
    polars = pytest.importorskip("polars", reason="polars is not installed")
    objects = pd.Index(list(column), dtype=object)
    for given in (
        column,
        pd.Index(column),
        column.astype("Int64"),
        objects,
        list(column),
        polars.Series(column.values),
    ):
        times = Times.read(given, 15)
        assert times.unit == NUMBERS and times.season() == 1 and times.cycles() == times.phases() == {}
        np.testing.assert_array_equal(times.extended(2).values, range(1964, 2032, 4))
        np.testing.assert_array_equal(times.without(13).numbers(), [504, 505])
    assert times.step_in_words() is None and Times.read(column, 15).name == "year"
    assert Times.read([7], 1).extended(1).values.tolist() == [7, 8]


def test_dates_with_a_time_zone_keep_it():
    index = pd.date_range("2024-03-30", periods=30, freq="h", tz="Europe/Berlin")
    berlin = index.tz
    for given in (
        pd.Index(list(index), dtype=object),
        list(index),
        [datetime.datetime(2024, 3, 30 + k // 24, k % 24, tzinfo=ZoneInfo(str(berlin))) for k in range(26)],
    ):
        found, same = Times.read(given, len(given)), Times.read(index[: len(given)], len(given))
        np.testing.assert_array_equal(found.values, same.values)
        np.testing.assert_array_equal(found.local, same.local)
        assert str(found.zone) == str(berlin)  # pytz, which pandas 2 uses, has several objects for one zone


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
        (np.arange(20.0), TypeError, r"must be dates or whole numbers, got float64; .*\(seconds, unit='s'\)$"),
        (np.arange(20) % 3, ValueError, "times holds 2 before 0, .*y.reindex"),
        (list(DAYS.tz_localize("UTC")[:10]) + list(DAYS.tz_localize("Asia/Tokyo")[10:]), TypeError, "Asia/Tokyo, UTC"),
        (list(DAYS.tz_localize("UTC")[:10]) + list(DAYS[10:]), TypeError, "one time zone, got None, UTC"),
        ([f"{day}+01:00" for day in DAYS], TypeError, r"'2020-01-01 00:00:00\+01:00' has a time zone"),
        (["day"] * 20, TypeError, "must be dates: "),
        (DAYS[:19], ValueError, r"shape \(19,\), and there are 20 time steps"),
        (DAYS[::-1], ValueError, "must increase, but 2020-01-20T"),
        (DAYS.repeat(2)[:20], ValueError, "must increase, but 2020-01-01T.* occurs twice"),
        (pd.date_range("2020", periods=20, freq="SME"), ValueError, r"means of months: y.resample\('MS'\).mean\(\)$"),
        (pd.date_range("2020", periods=20, freq="WOM-3FRI"), ValueError, r"index.to_period\('M'\)\)$"),
        (DAYS.delete(7).append(DAYS[-1:] + pd.Timedelta("1D")), ValueError, "2 days, 0:00:00 apart, .* pandas$"),
        (
            pd.date_range("2020-03-20", periods=20, tz="Europe/Paris").tz_convert("UTC"),
            ValueError,
            "23:00:00 apart, .* changes its clocks, convert them to its time zone: tz_convert$",
        ),
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
