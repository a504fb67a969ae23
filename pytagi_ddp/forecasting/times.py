"""Regular times or numbers of steps, later ones, and their phases in the calendar."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from numbers import Integral
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

SECOND, DAY = np.timedelta64(1, "s"), 86400.0
HARMONICS = 3
# Length in seconds of each cycle of the calendar.
CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.2425 * DAY}
SEEN = 2  # a cycle is an input if a series covers it at least this number of times
LEAST_STEPS = 2.9  # a cycle counts if it has at least (nearly) three steps
WITH_ZONE = re.compile(r":.*(Z|[+-]\d\d:?\d\d)$")  # the end of a text such as 2020-01-31T10:00+01:00
EPOCH = np.datetime64(0, "us")
FIRST, LAST = np.datetime64("1000", "us"), np.datetime64("9999-12-31T23:59:59", "us")
EPOCH_WEEKDAY = 4  # 1970-01-01 was a Thursday: day 4 of a week that begins on a Sunday
MONTHS, BUSINESS_DAYS, FIXED, NUMBERS = "months", "business days", "fixed", "numbers"
# The day of a month from which the times of its steps have a constant distance.
START, END, FIRST_BUSINESS_DAY, LAST_BUSINESS_DAY = ANCHORS = range(4)


@dataclass(frozen=True)
class Times:
    """The times of regular steps, or their numbers if they have no dates.

    Attributes:
        values: datetime64[us], one for each step; in UTC if there is a time zone, as `.values` of pandas. int64 numbers
            if that is the unit.
        local: the same times in local time, which the calendar uses. Where the clocks skip the time of a step, it is
            the time that they skip. zone: the time zone, or None.
        unit: of a step: MONTHS, BUSINESS_DAYS (Monday to Friday), FIXED, a time that is always the same, or NUMBERS.
        months: of a step, if that is its unit. step: from one step to the next, the mean if it is not fixed.
        on_clocks: whether the steps are regular in local time; else they are regular in UTC.
        anchor: of months: the one of ANCHORS from which each step is as far away.
        name: of the column or index; None: it has none. period: the frequency, as text, if they were periods.
    """

    values: np.ndarray
    local: np.ndarray
    zone: tzinfo | None
    unit: str
    months: int
    step: Any
    on_clocks: bool = True
    anchor: int = START
    name: Any = None
    period: str | None = None

    @classmethod
    def read(cls, times: Any, steps: int, what: str = "times") -> Times:
        """Times from an array of dates or whole numbers, or from a column or index of pandas or polars.

        Args:
            times: the array. steps: the number of them that is needed. what: the name of `times` in messages.

        Raises:
            TypeError: neither dates nor whole numbers, dates of different time zones, or none between the years 1000
                and 9999. ValueError: not one for each step, or irregular ones.
        """
        values, zone, period = _dates(times, what)
        if values.shape != (steps,):
            raise ValueError(f"{what} has the shape {values.shape}, and there are {steps} time steps")
        return replace(cls._regular(values, zone, what), name=getattr(times, "name", None), period=period)

    @classmethod
    def _regular(cls, values: np.ndarray, zone: tzinfo | None, what: str) -> Times:
        """The times with these values, if they are regular."""
        if values.dtype.kind == "i":
            return cls(values, values, None, NUMBERS, 0, _distance(values, what))
        if np.isnat(values).any():
            raise ValueError(f"{what} has no date at step {int(np.flatnonzero(np.isnat(values))[0])}")
        local = values if zone is None else values + _offsets(values, zone)
        if len(values) < 2:
            return cls(values, local, zone, FIXED, 0, np.timedelta64(1, "D").astype("m8[us]"))
        differences = np.diff(values)
        backwards = np.flatnonzero(differences <= 0 * SECOND)
        if len(backwards):
            one, next_one = values[backwards[0]], values[backwards[0] + 1]
            if one == next_one:
                raise ValueError(
                    f"{what} must increase, but {one} occurs twice: keep one row of it, or make many series the "
                    "columns of a table"
                )
            raise ValueError(f"{what} must increase, but {one} is followed by {next_one}: sort them first")
        step = np.timedelta64(round(float(differences.astype(np.int64).mean())), "us")
        clocks = local if zone is None else _with_skipped(local, zone)
        for anchor in ANCHORS:
            months, offsets = _months(clocks, anchor)
            between = np.unique(np.diff(months))
            if len(between) == len(np.unique(offsets)) == 1 and between[0] > 0:
                return cls(values, clocks, zone, MONTHS, int(between[0]), step, anchor=anchor)
        days = not np.diff(clocks)[0] % np.timedelta64(1, "D")
        for on_clocks in (days, not days):  # days begin at midnight, but hours are regular in UTC
            between = np.diff(clocks if on_clocks else values)
            if (between == between[0]).all():
                return cls(values, clocks if on_clocks else local, zone, FIXED, 0, between[0], on_clocks)
        day, clock = clocks.astype("M8[D]"), clocks - clocks.astype("M8[D]")
        if np.is_busday(day).all() and (clock == clock[0]).all() and (np.diff(_business_days(day)) == 1).all():
            return cls(values, clocks, zone, BUSINESS_DAYS, 0, step)
        raise ValueError(_irregular(values, local, what))

    def first(self, steps: int) -> Times:
        """The first ones of these times."""
        return replace(self, values=self.values[:steps], local=self.local[:steps])

    def without(self, steps: int) -> Times:
        """These times without the first ones."""
        return replace(self, values=self.values[steps:], local=self.local[steps:])

    def extended(self, steps: int) -> Times:
        """These times and those of `steps` more time steps."""
        ahead, last = np.arange(1, steps + 1), (self.local if self.on_clocks else self.values)[-1]
        if self.unit == MONTHS:
            months, offsets = _months(self.local[-1:], self.anchor)
            more = _anchors(months + ahead * self.months, self.anchor) + offsets
        elif self.unit == BUSINESS_DAYS:
            day = last.astype("M8[D]")
            more = np.busday_offset(day, ahead).astype("M8[us]") + (last - day)
        else:
            more = last + ahead * self.step
        values = local = more
        if self.zone is not None and self.on_clocks:
            values = _utc(local, self.zone)
        elif self.zone is not None:
            local = values + _offsets(values, self.zone)
        return replace(self, values=np.concatenate([self.values, values]), local=np.concatenate([self.local, local]))

    def number_before(self, start: Any) -> int:
        """The number of times before this one; one without a time zone is local time.

        Raises:
            ValueError: no date, or no whole number if these are numbers; a time zone, and these have none.
        """
        kind = "whole number" if self.unit == NUMBERS else "date"
        try:
            found, zone, _ = _dates([start], "start")
        except TypeError as error:
            raise ValueError(f"start must be a {kind}, as the times of y: {error}") from None
        if (found.dtype.kind == "i") != (self.unit == NUMBERS) or (found.dtype.kind == "M" and np.isnat(found[0])):
            raise ValueError(f"start must be a {kind}, as the times of y; got {start!r}")
        if zone is not None and self.zone is None:
            raise ValueError(f"start has the time zone {zone}, and the times of y have none")
        return int(np.searchsorted(self.local if zone is None else self.values, found[0]))

    def covers(self, other: Times) -> bool:
        """Whether these begin and end with the other ones, or before and after them."""
        return bool(self.values[0] <= other.values[0] and self.values[-1] >= other.values[-1])

    def comparable(self, other: Times) -> bool:
        """Whether both are dates, or both are numbers."""
        return (self.unit == NUMBERS) == (other.unit == NUMBERS)

    def zone_in_words(self) -> str:
        return "no time zone" if self.zone is None else f"the time zone {self.zone}"

    def step_in_words(self) -> str | None:
        """The time of a step; None: the steps have numbers only."""
        if self.unit == NUMBERS:
            return None
        if self.unit == FIXED:
            return _words(self.step)
        return f"{self.months} months" if self.unit == MONTHS else "business days"

    def season(self) -> int:
        """Time steps of the shortest cycle of the calendar that has three of them or more; 1: there is none."""
        if self.unit == NUMBERS:
            return 1
        steps = (length / (self.step / SECOND) for length in CYCLES.values())
        return next((round(number) for number in steps if number >= LEAST_STEPS), 1)

    def cycles(self) -> dict[str, float]:
        """Time steps of each cycle of the calendar that is an input: has three of them, and was seen `SEEN` times."""
        if self.unit == NUMBERS:
            return {}
        step = self.step / SECOND
        span = (len(self.values) - 1) * step
        return {
            name: length / step
            for name, length in CYCLES.items()
            if span >= SEEN * length and length >= LEAST_STEPS * step
        }

    def numbers(self) -> np.ndarray:
        """Numbers of the steps, counted from 1970, or from 0 if they have no dates."""
        if self.unit == NUMBERS:
            return self.values / self.step
        if self.unit == MONTHS:
            return _months(self.local, START)[0] / self.months
        if self.unit == BUSINESS_DAYS:
            return _business_days(self.local.astype("M8[D]")).astype(np.float64)
        return ((self.local if self.on_clocks else self.values) - EPOCH) / self.step

    def phases(self) -> dict[str, np.ndarray]:
        """The phase of each step in the cycles of the calendar, from 0 to 1 in each."""
        if self.unit == NUMBERS:
            return {}
        days = (self.local - EPOCH) / SECOND / DAY
        year = self.local.astype("M8[Y]").astype("M8[us]")
        return {
            "day": days % 1,
            "week": (days + EPOCH_WEEKDAY) / 7 % 1,
            "year": (self.local - year) / SECOND / CYCLES["year"],
        }


def waves(phase: np.ndarray, steps: float) -> list[np.ndarray]:
    """Sines and cosines of a phase (1: a whole cycle) and of its harmonics, as far as `steps` a cycle show them."""
    numbers = [k for k in range(1, HARMONICS + 1) if steps >= 2 * k + 0.9]
    return [wave(2 * np.pi * k * phase) for k in numbers for wave in (np.sin, np.cos)]


def _dates(times: Any, what: str) -> tuple[np.ndarray, tzinfo | None, str | None]:
    """Times as datetime64[us], in UTC if they have a time zone, this zone, and the frequency of periods.

    Whole numbers are returned as int64.
    """
    dates, period = getattr(times, "array", times), None  # of a column or index of pandas
    if hasattr(dates, "to_timestamp"):
        dates, period = dates.to_timestamp(), dates.freqstr
    zone = getattr(dates, "tz", None)
    if (name := getattr(getattr(dates, "dtype", None), "time_zone", None)) is not None:  # a column of polars
        zone = ZoneInfo(name)
    array = np.asarray(dates)
    each = array.ravel().tolist() if array.dtype == object else []
    if array.dtype.kind in "iu" or (each and all(isinstance(one, Integral) for one in each)):
        return array.astype(np.int64), None, None
    if array.dtype.kind in "fbcm":
        advice = "; years become whole numbers by .astype(int), and seconds since 1970 become dates by pd.to_datetime"
        advice = f"{advice}(seconds, unit='s')" if array.dtype.kind == "f" else ""
        raise TypeError(f"{what} must be dates or whole numbers, got {array.dtype}{advice}")
    if array.size and isinstance(text := array.flat[0], str) and WITH_ZONE.search(text):
        raise TypeError(f"{what} must be dates: the text {str(text)!r} has a time zone, which pd.to_datetime reads")
    if zone is None and any(getattr(one, "tzinfo", None) is not None for one in each):
        zones = {str(one.tzinfo) for one in each}  # pytz has several objects for one zone
        if len(zones) > 1:
            raise TypeError(f"{what} must be dates of one time zone, got {', '.join(sorted(zones))}")
        zone = each[0].tzinfo
        dates = [one.astimezone(timezone.utc).replace(tzinfo=None) for one in each]
    try:
        found = np.asarray(dates, "M8[us]")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be dates: {error}") from None
    if ((found < FIRST) | (found > LAST)).any():  # NumPy reads the text 20200131 as a year
        raise TypeError(f"{what} must be dates of the years 1000 to 9999, got {found.min()} to {found.max()}")
    return found, zone, period


def _distance(numbers: np.ndarray, what: str) -> int:
    """From each number to the next one; 1 of a single number.

    Raises:
        ValueError: it is not positive, or changes.
    """
    between = np.diff(numbers)
    if not len(between):
        return 1
    if between[0] <= 0 or np.ptp(between) > 0:
        k = int(np.flatnonzero(between != max(between[0], 1))[0])
        found = f"{numbers[k]} twice" if not between[k] else f"{numbers[k]} before {numbers[k + 1]}"
        raise ValueError(
            f"{what} holds {found}, and there must be a row for each time step: sort them, insert missing ones with "
            "NaN (y.reindex), or, if no step is missing, number them by y.reset_index(drop=True)"
        )
    return int(between[0])


def _offsets(utc: np.ndarray, zone: tzinfo) -> np.ndarray:
    """The offsets of local time from UTC."""
    start = datetime(1970, 1, 1, tzinfo=timezone.utc)
    seconds = ((utc - EPOCH) / SECOND).tolist()
    ahead = [(start + timedelta(seconds=number)).astimezone(zone).utcoffset() for number in seconds]
    return np.array(ahead, "m8[us]")


def _utc(local: np.ndarray, zone: tzinfo) -> np.ndarray:
    """UTC of local times: the first one if there are two. A time that the clocks skip moves forward, as they do."""
    before, after = (_offsets(local + day, zone) for day in np.array([-1, 1], "m8[D]"))
    two_or_none = (_offsets(local - before, zone) == before) | (_offsets(local - after, zone) != after)
    return local - np.where(two_or_none, before, after)


def _with_skipped(local: np.ndarray, zone: tzinfo) -> np.ndarray:
    """Local times of at most one step a day, with the usual time of the day where the clocks skip it."""
    day = local.astype("M8[D]")
    clocks, counts = np.unique(local - day, return_counts=True)
    usual = day + clocks[counts.argmax()]
    other = np.flatnonzero(local > usual)
    if len(np.unique(day)) == len(day):
        utc = _utc(usual[other], zone)
        other = other[utc + _offsets(utc, zone) != usual[other]]
        local = local.copy()
        local[other] = usual[other]
    return local


def _months(values: np.ndarray, anchor: int) -> tuple[np.ndarray, np.ndarray]:
    """The month of each time as a number, and the distance of the time from the anchor of that month."""
    months = values.astype("M8[M]").astype(np.int64)
    return months, values - _anchors(months, anchor)


def _anchors(months: np.ndarray, anchor: int) -> np.ndarray:
    """The times of this one of ANCHORS in months, which are given as numbers."""
    days = (months + (anchor in (END, LAST_BUSINESS_DAY))).astype("M8[M]").astype("M8[D]")
    if anchor == FIRST_BUSINESS_DAY:
        days = np.busday_offset(days, 0, "forward")
    elif anchor == LAST_BUSINESS_DAY:
        days = np.busday_offset(days, -1, "forward")
    return days.astype("M8[us]")


def _irregular(values: np.ndarray, local: np.ndarray, what: str) -> str:
    """What is wrong with times that have no regular step: the first two that are not as far apart as most are."""
    between, unit = np.diff(values), ""
    day, months = local.astype("M8[D]"), np.diff(local.astype("M8[M]").astype(np.int64))
    business = np.is_busday(day).all() and np.median(np.diff(_business_days(day))) == 1
    if any(len(np.unique(_months(local, anchor)[1])) == 1 for anchor in ANCHORS):
        between, unit = months, " month"
    elif business:
        between, unit = np.diff(_business_days(day)), " business day"
    kinds, counts = np.unique(between, return_counts=True)
    usual = kinds[counts.argmax()]
    k = int(np.flatnonzero(between != usual)[0])
    apart, most = (f"{step}{unit}{'s' if step != 1 else ''}" if unit else _words(step) for step in (between[k], usual))
    shifted = np.unique(np.abs(between - usual)) if not unit else np.empty(0)
    if len(shifted) == 2 and shifted[1] == np.timedelta64(1, "h") < usual:
        advice = "If they are of a place that changes its clocks, convert them to its time zone: tz_convert"
    elif not np.ptp(months) and months[0]:
        advice = "Give the months themselves, as y.set_axis(y.index.to_period('M'))"
    elif not unit and np.median(np.diff(day)) > np.timedelta64(7, "D"):
        advice = "Insert the missing ones, with NaN as their values, or take means of months: y.resample('MS').mean()"
    else:
        advice = "Insert the missing ones, with NaN as their values: y.asfreq(...) or y.resample(...) of pandas"
        advice += "; asfreq('B') for days of trade" if business else ""
    return (
        f"{what} must have one regular step, but {values[k]} and {values[k + 1]} are {apart} apart, and most of them "
        f"{most}. {advice}"
    )


def _business_days(days: np.ndarray) -> np.ndarray:
    return np.busday_count(EPOCH.astype("M8[D]"), days)


def _words(difference: np.timedelta64) -> str:
    return str(difference.astype(timedelta))
