"""Regular times, later times, and their phases in the calendar."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

SECOND, DAY = np.timedelta64(1, "s"), 86400.0
HARMONICS = 3
# Length in seconds of each cycle of the calendar.
CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.2425 * DAY}
SEEN = 2  # a cycle is an input if a series covers it at least this number of times
LEAST_STEPS = 2.9  # a cycle counts if it has at least (nearly) three steps
EPOCH = np.datetime64(0, "us")
FIRST, LAST = np.datetime64("1000", "us"), np.datetime64("9999-12-31T23:59:59", "us")
EPOCH_WEEKDAY = 4  # 1970-01-01 was a Thursday: day 4 of a week that begins on a Sunday
MONTHS, BUSINESS_DAYS, FIXED = "months", "business days", "fixed"


@dataclass(frozen=True)
class Times:
    """The times of regular steps.

    Attributes:
        values: datetime64[us], one for each step; in UTC if there is a time zone, as `.values` of pandas.
        local: the same times in local time, which the calendar uses. zone: the time zone, or None.
        unit: of a step: MONTHS, BUSINESS_DAYS (Monday to Friday) or FIXED, a time that is always the same.
        months: of a step, if that is its unit. step: the time between two steps, its mean if it is not fixed.
        on_clocks: whether the steps are regular in local time; else they are regular in UTC.
    """

    values: np.ndarray
    local: np.ndarray
    zone: tzinfo | None
    unit: str
    months: int
    step: np.timedelta64
    on_clocks: bool = True

    @classmethod
    def read(cls, times: Any, steps: int) -> Times:
        """Times from an array of them, or a column or index of pandas or polars.

        Raises:
            TypeError: no dates, or none between the years 1000 and 9999. ValueError: not one for each step, or
                irregular ones.
        """
        values, zone = _dates(times)
        if values.shape != (steps,):
            raise ValueError(f"times has the shape {values.shape}, and there are {steps} time steps")
        if np.isnat(values).any():
            raise ValueError(f"times has no date at step {int(np.flatnonzero(np.isnat(values))[0])}")
        local = values if zone is None else values + _offsets(values, zone)
        if steps < 2:
            return cls(values, local, zone, FIXED, 0, np.timedelta64(1, "D").astype("m8[us]"))
        differences = np.diff(values)
        backwards = np.flatnonzero(differences <= 0 * SECOND)
        if len(backwards):
            k = int(backwards[0])
            raise ValueError(f"times must increase, but {values[k]} is followed by {values[k + 1]}: sort them first")
        step = np.timedelta64(round(float(differences.astype(np.int64).mean())), "us")
        for end in (False, True):  # of months
            months, offsets = _months(local, end)
            between = np.unique(np.diff(months))
            if len(between) == len(np.unique(offsets)) == 1 and between[0] > 0:
                return cls(values, local, zone, MONTHS, int(between[0]), step)
        days = not np.diff(local)[0] % np.timedelta64(1, "D")
        for on_clocks in (days, not days):  # days begin at midnight, but hours are regular in UTC
            between = np.diff(local if on_clocks else values)
            if (between == between[0]).all():
                return cls(values, local, zone, FIXED, 0, between[0], on_clocks)
        day, clock = local.astype("M8[D]"), local - local.astype("M8[D]")
        if np.is_busday(day).all() and (clock == clock[0]).all() and (np.diff(_business_days(day)) == 1).all():
            return cls(values, local, zone, BUSINESS_DAYS, 0, step)
        raise ValueError(_irregular(values, local))

    def first(self, steps: int) -> Times:
        """The first ones of these times."""
        return Times(
            self.values[:steps], self.local[:steps], self.zone, self.unit, self.months, self.step, self.on_clocks
        )

    def extended(self, steps: int) -> Times:
        """These times and those of `steps` more time steps."""
        ahead, last = np.arange(1, steps + 1), (self.local if self.on_clocks else self.values)[-1]
        if self.unit == MONTHS:
            end = len(np.unique(_months(self.local, False)[1])) > 1
            months, offsets = _months(self.local, end)
            more = (months[-1] + ahead * self.months).astype("M8[M]").astype("M8[us]") + offsets[-1]
        elif self.unit == BUSINESS_DAYS:
            day = last.astype("M8[D]")
            more = np.busday_offset(day, ahead).astype("M8[us]") + (last - day)
        else:
            more = last + ahead * self.step
        values = local = more
        if self.zone is not None and self.on_clocks:
            values = local - _offsets(local - _offsets(local, self.zone), self.zone)
        elif self.zone is not None:
            local = values + _offsets(values, self.zone)
        both = np.concatenate([self.values, values]), np.concatenate([self.local, local])
        return Times(*both, self.zone, self.unit, self.months, self.step, self.on_clocks)

    def step_in_words(self) -> str:
        if self.unit == FIXED:
            return _words(self.step)
        return f"{self.months} months" if self.unit == MONTHS else "business days"

    def season(self) -> int:
        """Time steps of the shortest cycle of the calendar that has three of them or more; 1: there is none."""
        steps = (length / (self.step / SECOND) for length in CYCLES.values())
        return next((round(number) for number in steps if number >= LEAST_STEPS), 1)

    def cycles(self) -> dict[str, float]:
        """Time steps of each cycle of the calendar that is an input: has three of them, and was seen `SEEN` times."""
        step = self.step / SECOND
        span = (len(self.values) - 1) * step
        return {
            name: length / step
            for name, length in CYCLES.items()
            if span >= SEEN * length and length >= LEAST_STEPS * step
        }

    def numbers(self) -> np.ndarray:
        """Numbers of the steps, counted from 1970."""
        if self.unit == MONTHS:
            return _months(self.local, False)[0] / self.months
        if self.unit == BUSINESS_DAYS:
            return _business_days(self.local.astype("M8[D]")).astype(np.float64)
        return ((self.local if self.on_clocks else self.values) - EPOCH) / self.step

    def phases(self) -> dict[str, np.ndarray]:
        """The phase of each step in the cycles of the calendar, from 0 to 1 in each."""
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


def _dates(times: Any) -> tuple[np.ndarray, tzinfo | None]:
    """Times as datetime64[us], in UTC if they have a time zone, and this zone."""
    dates = getattr(times, "array", times)  # of a column or index of pandas
    if hasattr(dates, "to_timestamp"):  # periods
        dates = dates.to_timestamp()
    zone = getattr(dates, "tz", None)
    if (name := getattr(getattr(dates, "dtype", None), "time_zone", None)) is not None:  # a column of polars
        zone = ZoneInfo(name)
    if (kind := np.asarray(dates).dtype).kind in "iufbcm":
        raise TypeError(f"times must be dates, got numbers ({kind}); leave it out if the steps have none")
    try:
        found = np.asarray(dates, "M8[us]")
    except (TypeError, ValueError) as error:
        raise TypeError(f"times must be dates: {error}") from None
    if ((found < FIRST) | (found > LAST)).any():  # NumPy reads the text 20200131 as a year
        raise TypeError(f"times must be dates of the years 1000 to 9999, got {found.min()} to {found.max()}")
    return found, zone


def _offsets(utc: np.ndarray, zone: tzinfo) -> np.ndarray:
    """The offsets of local time from UTC."""
    start = datetime(1970, 1, 1, tzinfo=timezone.utc)
    seconds = ((utc - EPOCH) / SECOND).tolist()
    ahead = [(start + timedelta(seconds=number)).astimezone(zone).utcoffset() for number in seconds]
    return np.array(ahead, "m8[us]")


def _months(values: np.ndarray, end: bool) -> tuple[np.ndarray, np.ndarray]:
    """The month of each time as a number, and its distance from the beginning of that month, or of the next one."""
    months = values.astype("M8[M]") + np.timedelta64(int(end), "M")
    return months.astype(np.int64), values - months.astype("M8[us]")


def _irregular(values: np.ndarray, local: np.ndarray) -> str:
    """What is wrong with times that have no regular step: the first two that are not as far apart as most are."""
    between, unit = np.diff(values), ""
    day = local.astype("M8[D]")
    of_months = [
        np.diff(months) for end in (False, True) for months, at in [_months(local, end)] if len(np.unique(at)) == 1
    ]
    if of_months:
        between, unit = of_months[0], " month"
    elif np.is_busday(day).all() and np.median(np.diff(_business_days(day))) == 1:
        between, unit = np.diff(_business_days(day)), " business day"
    kinds, counts = np.unique(between, return_counts=True)
    usual = kinds[counts.argmax()]
    k = int(np.flatnonzero(between != usual)[0])
    apart, most = (f"{step}{unit}{'s' if step != 1 else ''}" if unit else _words(step) for step in (between[k], usual))
    return (
        f"times must have one regular step, but {values[k]} and {values[k + 1]} are {apart} apart, and most of them "
        f"{most}. Insert the missing ones, with NaN as their values: y.asfreq(...) or y.resample(...) of pandas; "
        "asfreq('B') for days of trade"
    )


def _business_days(days: np.ndarray) -> np.ndarray:
    return np.busday_count(EPOCH.astype("M8[D]"), days)


def _words(difference: np.timedelta64) -> str:
    return str(difference.astype(timedelta))
