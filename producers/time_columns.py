"""Which columns of data hold the time of a reading, and how often readings come."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.producers.column_names import is_named
from shoal.producers.column_types import Cells, Sample
from shoal.producers.features import unit_of
from shoal.producers.files.dialect import is_unnamed
from shoal.producers.files.times import (
    DAY_S,
    SERIAL_DAYS,
    TimeOptions,
    TimeReader,
    is_date_of_digits,
    is_day_of_year,
    is_moment,
    time_reader,
)
from shoal.producers.measured_columns import ROWS_COUNTED

_PARTS_OF_TIME = (
    frozenset({"year", "yr", "yy", "yyyy", "jahr", "annee", "ano"}),
    frozenset({"month", "mon", "mo", "monat", "mois", "mes"}),
    frozenset({"day", "dy", "dd", "tag", "jour", "dia"}),
    frozenset(
        {"hour", "hr", "hh", "stunde", "uur", "heure", "hora", "h", "std", "hhmm", "hrmn", "hrmin"}
    ),
    frozenset({"minute", "min", "mn", "mi"}),
    frozenset({"second", "sec", "ss"}),
)
"""names of columns of a part of the time, in lower case, from the year on"""
# Settings of a machine, such as a speed of 0 to 3, lie between 0 and 24 as well.
HOURS_SEEN = 12
"""fewest different hours by which a column beside a date is seen to hold the hour"""
_CLOCK = re.compile(r"\d{1,2}[:.]\d{2}([:.]\d{2})?(\.\d+)?(\s*[AaPp](\.?[Mm]\.?)?)?(\s*(Uhr|h))?")
_HAS_CLOCK = re.compile(r"\d[ T]\s*\d{1,2}[:.h]\d{2}")
"""a date followed by a time of day"""
# Without a name that shows it only whole numbers that rise are left to see a time by, and counters
# rise as well: so the range is bounded on both sides, unlike that of columns named as times.
EPOCHS = (946_684_800.0, 2_208_988_800.0)
"""seconds since 1970 of 2000 and of 2040"""
EPOCHS_BY_NAME = (631_152_000.0, 4_102_444_800.0)
"""the same of 1990 and of 2100, of columns that are named as times"""
# Not all: a damaged line or a footer must not hide the column of times.
TIMES_SHARE = 0.95
"""share of a column's cells that are times where it is a column of times"""


def find_time_columns(cells: Mapping[str, Cells]) -> list[str]:
    """The column of times, or the columns that make up one, such as a date and a time of day."""
    parts = parts_of_time(cells)
    # Year, month and day, or year and day of the year.
    if len(parts) >= 3 or (len(parts) == 2 and is_day_of_year(parts[1])):
        return _with_time_of_day(parts, cells) if len(parts) == 3 else parts
    for name in _named_first(cells):
        if not _are_times(cells[name], is_named("time", name)):
            continue
        # A date with a time of day needs no second column.
        if any(_HAS_CLOCK.search(text) for text in cells[name].texts[:100]):
            return [name]
        for other in cells:
            if other != name and _is_clock(cells[other]):
                return [name, other]
        return [name, *_hours_beside(name, cells)]
    for name, column in cells.items():
        if _are_epochs(column.head):
            return [name]
    return _unnamed_parts(cells)


def _named_first(cells: Mapping[str, Cells]) -> list[str]:
    """The columns, those that are named as a time before others."""
    return sorted(cells, key=lambda name: not is_named("time", name))


def read_by_codes(cells: Mapping[str, Cells], options: TimeOptions) -> list[str]:
    """The column whose cells are times by the codes of strptime that a person gave; none without
    codes."""
    if options.date_format is None or "%" not in options.date_format:
        return []
    read = TimeReader(options, None)
    for name in _named_first(cells):
        texts = cells[name].texts
        times = sum(read([text]) is not None for text in texts)
        if texts and times >= TIMES_SHARE * len(texts):
            return [name]
    return []


def _with_time_of_day(day: Sequence[str], cells: Mapping[str, Cells]) -> list[str]:
    """The columns of year, month and day with that of the time of day, or in their place the one of
    both, where there are such."""
    for name, column in cells.items():
        has_both = any(_HAS_CLOCK.search(text) for text in column.texts[:100])
        if is_named("time", name) and has_both and _are_times(column, by_name=True):
            return [name]
    clocks = [name for name, column in cells.items() if _is_clock(column)]
    return [*day, *clocks[:1]]


RANGES_OF_PARTS = ((1950, 2100), (1, 12), (1, 31), (0, 24), (0, 59), (0, 59))
"""the least and the most of each part of a time, from the year on"""


def _unnamed_parts(cells: Mapping[str, Cells]) -> list[str]:
    """The columns of year, month, day and what follows in a file without names, as weather services
    write them: whole numbers in these ranges that together never go back."""
    names = list(cells)
    if not all(map(is_unnamed, names)):
        return []
    for first in range(len(names) - 2):
        columns: list[str] = []
        together = np.zeros(len(cells[names[first]].head))
        for name, (least, most) in zip(names[first:], RANGES_OF_PARTS, strict=False):
            numbers = cells[name].head
            is_part = (numbers >= least) & (numbers <= most) & (numbers == np.round(numbers))
            # Where no two rows have the same day, what follows is no hour.
            is_needed = len(columns) < 3 or bool((np.diff(together) == 0).any())
            if not len(numbers) or not is_part.all() or not is_needed:
                break
            columns.append(name)
            together = 100 * together + numbers
        steps = np.diff(together)
        goes_on = bool((steps >= 0).all()) and len(steps) >= ROWS_COUNTED
        if len(columns) >= 3 and goes_on and together[-1] > together[0]:
            return columns
    return []


def _are_epochs(numbers: Floats) -> bool:
    """Whether numbers of any name are seconds since 1970, or a thousandth of them and less: times
    of this century that go on."""
    if len(numbers) < ROWS_COUNTED or not bool((numbers == np.round(numbers)).all()):
        return False
    steps = np.diff(numbers)
    goes_on = bool((steps >= 0).mean() > TIMES_SHARE) and numbers[-1] > numbers[0]
    for units in (1.0, 1e3, 1e6, 1e9):
        seconds = numbers / units
        if goes_on and EPOCHS[0] <= seconds.min() and seconds.max() < EPOCHS[1]:
            return True
    return False


def parts_of_time(cells: Mapping[str, Cells]) -> list[str]:
    """The columns named as parts of the time, from the year on, without one that is left out."""
    columns: list[str] = []
    days_of_year = [name for name in cells if is_day_of_year(name)]
    for place, names in enumerate(_PARTS_OF_TIME):
        if days_of_year and place in (1, 2):
            # In place of the month and of the day.
            columns += days_of_year[:1] if place == 1 else []
            continue
        own = [name for name in cells if name.strip("# ").lower() in names and name not in columns]
        # In lower case the month MM and the minute mm of weather buoys (NDBC) would be one name.
        if "MM" in cells and place == 1:
            own = ["MM"]
        if "mm" in cells and place == 4:
            own = ["mm"]
        if not own:
            break
        columns.append(own[0])
    return columns


def _hours_beside(date: str, cells: Mapping[str, Cells]) -> list[str]:
    """The columns of the hour, and of the minute, beside a date without a time of day."""
    days = cells[date].all_texts
    for name, column in cells.items():
        numbers = column.numbers
        if name == date or not len(numbers) or np.isnan(numbers).any():
            continue
        is_hours = _are_hours(numbers, is_hour_named(name), days)
        is_clock = (is_named("time", name) or is_hour_named(name)) and bool(
            # Hours times 100 and minutes, as 1345; 2400 is the end of a day.
            ((numbers >= 0) & (numbers <= 2400) & (numbers % 100 < 60) & (numbers % 1 == 0)).all()
        )
        if not is_hours and not is_clock:
            continue
        for other, minutes in cells.items():
            is_named_minute = is_hours and other.strip("# ").lower() in _PARTS_OF_TIME[4]
            if is_named_minute and bool(((minutes.numbers >= 0) & (minutes.numbers < 60)).all()):
                return [name, other]
        return [name]
    return []


def is_hour_named(name: str) -> bool:
    """Whether a column is called the hour."""
    return unit_of(name)[0].strip("# ").lower() in _PARTS_OF_TIME[3]


def _are_hours(numbers: Floats, is_named_so: bool, days: Sequence[str]) -> bool:
    """Whether numbers beside days are hours from 0 to 23 or 1 to 24: by name, or because they go
    round once a day."""
    if not bool(((numbers >= 0) & (numbers <= 24) & (numbers == np.round(numbers))).all()):
        return False
    if is_named_so:
        return True
    same_day = np.array([day == after for day, after in pairwise(days)])
    steps = np.diff(numbers)
    if not same_day.any() or len(np.unique(numbers)) < HOURS_SEEN:
        return False
    if same_day.all():
        # Numbers that rise through one day may count anything: no step back shows the day's end.
        return False
    # Not all days: after a gap one may begin later than the day before has ended.
    return bool((steps[same_day] >= 0).mean() > TIMES_SHARE and (steps[~same_day] < 0).mean() > 0.5)


def _are_times(cells: Cells, by_name: bool) -> bool:
    """Whether these cells are times; numbers only where their column is named so (`by_name`)."""
    if not cells.texts:
        return False
    if cells.number_share > 1 - TIMES_SHARE:
        numbers = cells.numbers[np.isfinite(cells.numbers)]
        # Nothing else consists of days that there are, and of several.
        digits = [text.removesuffix(".0") for text in cells.texts]
        if all(map(is_date_of_digits, digits)) and (by_name or len(set(digits)) > 1):
            return True
        # Epochs of this century, in s, ms, µs or ns, or days as spreadsheets count them.
        is_epoch = np.zeros(len(numbers), dtype=np.bool_)
        for units in (1.0, 1e3, 1e6, 1e9):
            seconds = numbers / units
            is_epoch |= (seconds >= EPOCHS_BY_NAME[0]) & (seconds < EPOCHS_BY_NAME[1])
        is_serial = (numbers >= SERIAL_DAYS[0]) & (numbers < SERIAL_DAYS[1])
        return by_name and bool(is_epoch.all() or is_serial.all())
    day_first = TimeReader(TimeOptions(), "day-first")
    month_first = TimeReader(TimeOptions(), "month-first")
    read = 0
    for text in cells.texts:
        read += day_first([text]) is not None or month_first([text]) is not None
    return read >= TIMES_SHARE * len(cells.texts)


def _is_clock(cells: Cells) -> bool:
    # Two parts with a point are a number: 18.30.
    if not cells.texts or cells.number_share >= 1 - TIMES_SHARE:
        return False
    clocks = sum(bool(_CLOCK.fullmatch(text)) for text in cells.texts)
    return clocks >= TIMES_SHARE * len(cells.texts)


def unread_time(cells: Cells, numbers: Floats, times: Sequence[str]) -> str:
    """Why a column that is named as a time is none; `times`: the columns that are."""
    if times and all(map(is_moment, cells.texts)):
        return f"another time; that of the readings is read from {times[0]}"
    if len(numbers):
        return (
            "named as a time, and its numbers are neither epochs nor dates that are known: give"
            " --date-format if it is one"
        )
    if _is_clock(cells):
        return "a time of day, and no column holds the date"
    return "named as a time, and in no form that is known: give --date-format"


def usual_interval(
    sample: Sample, times: Sequence[str], client: str | None, options: TimeOptions
) -> tuple[float | None, str | None, bool]:
    """The usual seconds between two readings of a client, the order of dates, and whether they are
    days alone that several readings have.

    The first two are None without times. Raises `SettingsError` where none of the cells is a time.
    """
    if not times:
        return None, None, False
    places = [sample.names.index(name) for name in times]
    cells = []
    for row in sample.rows:
        cells.append([row[place] for place in places])
    read = time_reader(lambda: cells, options, sample.where, times)
    client_place = sample.names.index(client) if client else None
    last: dict[str, float] = {}
    gaps: list[float] = []
    alike = 0
    is_read = False
    for row, of_time in zip(sample.rows[: sample.head], cells, strict=False):
        time = read(of_time)
        if time is None:
            continue
        is_read = True
        name = "" if client_place is None else str(row[client_place])
        # Equal and earlier times are repeats and late rows, and show nothing of the usual interval.
        if name in last and time > last[name]:
            gaps.append(time - last[name])
        alike += time == last.get(name)
        last[name] = time
    if not is_read:
        form = options.date_format or "any form that is known"
        raise SettingsError(
            f"{sample.where}: no cell of {', '.join(times)} is a time in {form}; --date-format"
            " gives another one, with a space between the codes of several columns"
        )
    # Not the mean, which one night without readings would move.
    interval = float(np.median(gaps)) if gaps else None
    # Of dates without a time of day only the mean shows how often readings come.
    if interval is not None and interval >= DAY_S and alike > len(gaps):
        interval *= len(gaps) / (len(gaps) + alike)
        return interval, read.order, True
    return interval, read.order, False
