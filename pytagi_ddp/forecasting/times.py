"""Regular times, the times that follow them, and what the calendar says about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SECOND, DAY = np.timedelta64(1, "s"), 86400.0
HARMONICS = 3
# Length in seconds of each cycle of the calendar, and how often a series must have run through it.
CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.2425 * DAY}
SEEN = 2
EPOCH_WEEKDAY = 4  # 1970-01-01 was a Thursday: day 4 of a week that begins on a Sunday


@dataclass(frozen=True)
class Times:
    """The times of regular steps.

    Attributes:
        values: datetime64, one for each step. months: the step in months; 0: `step` is a fixed time.
        step: the fixed time between two steps, or the mean one where it is in months.
    """

    values: np.ndarray
    months: int
    step: np.timedelta64

    @classmethod
    def read(cls, times: Any, steps: int) -> Times:
        """Times from an array of them, or an index of pandas.

        Raises:
            TypeError: no dates. ValueError: not one for each step, or irregular ones.
        """
        if hasattr(times, "to_timestamp"):  # a PeriodIndex
            times = times.to_timestamp()
        if getattr(times, "tz", None) is not None:
            times = times.tz_localize(None)  # the calendar counts, not the zone
        try:
            values = np.asarray(times, "datetime64[s]")
        except (TypeError, ValueError) as error:
            raise TypeError(f"times must be dates: {error}") from None
        if values.shape != (steps,):
            raise ValueError(f"times has the shape {values.shape}, and there are {steps} time steps")
        if np.isnat(values).any():
            raise ValueError(f"times has no date at step {int(np.flatnonzero(np.isnat(values))[0])}")
        if steps < 2:
            return cls(values, 0, np.timedelta64(1, "D").astype("timedelta64[s]"))
        differences = np.diff(values)
        for end in (False, True):  # of months
            months, _ = _months(values, end)
            if len(set(np.diff(months).tolist())) == 1 and months[1] > months[0] and _same_day(values, end):
                return cls(values, int(months[1] - months[0]), differences.mean())
        wrong = np.flatnonzero(differences != differences[0])
        if differences[0] <= 0 * SECOND or len(wrong):
            k = int(wrong[0]) if len(wrong) else 0
            raise ValueError(
                f"times must have one regular step, but that from {values[k]} to {values[k + 1]} is not the first one, "
                f"{differences[0]}. Make them regular, with NaN in gaps: pandas' y.asfreq(...) or resample(...)"
            )
        return cls(values, 0, differences[0])

    def extended(self, steps: int) -> Times:
        """These times and those of `steps` more time steps."""
        ahead = np.arange(1, steps + 1)
        if not self.months:
            more = self.values[-1] + ahead * self.step
        else:
            end = not _same_day(self.values, False)
            months, offsets = _months(self.values, end)
            more = (months[-1] + ahead * self.months).astype("datetime64[M]").astype("datetime64[s]") + offsets[-1]
        return Times(np.concatenate([self.values, more]), self.months, self.step)

    def season(self) -> int:
        """Time steps of the shortest cycle of the calendar that has three of them or more; 1: there is none."""
        steps = (length / (self.step / SECOND) for length in CYCLES.values())
        return next((round(number) for number in steps if number >= 2.9), 1)

    def cycles(self) -> list[str]:
        """The cycles of the calendar that these times have run through `SEEN` times, and that have three steps."""
        step = self.step / SECOND
        span = (len(self.values) - 1) * step
        return [name for name, length in CYCLES.items() if span >= SEEN * length and length >= 2.9 * step]

    def features(self, cycles: list[str]) -> np.ndarray:
        """(steps, k): sines and cosines of the phase in each of the cycles."""
        seconds = (self.values - np.datetime64(0, "s")) / SECOND
        year = self.values.astype("datetime64[Y]").astype("datetime64[s]")
        phases = {
            "day": seconds / DAY,
            "week": (seconds / DAY + EPOCH_WEEKDAY) / 7,
            "year": (self.values - year) / SECOND / CYCLES["year"],
        }
        step = self.step / SECOND
        columns = [wave for name in cycles for wave in waves(phases[name], CYCLES[name] / step)]
        return np.stack(columns, 1) if columns else np.empty((len(self.values), 0))


def waves(phase: np.ndarray, steps: float) -> list[np.ndarray]:
    """Sines and cosines of a phase (1: a whole cycle) and of its harmonics, as far as `steps` a cycle show them."""
    numbers = [k for k in range(1, HARMONICS + 1) if steps >= 2 * k + 0.9]
    return [wave(2 * np.pi * k * phase) for k in numbers for wave in (np.sin, np.cos)]


def _months(values: np.ndarray, end: bool) -> tuple[np.ndarray, np.ndarray]:
    """The month of each time as a number, and what the time is behind its begin, or behind that of the next one."""
    months = values.astype("datetime64[M]") + int(end)
    return months.astype(np.int64), values - months.astype("datetime64[s]")


def _same_day(values: np.ndarray, end: bool) -> bool:
    return len(set(_months(values, end)[1].tolist())) == 1
