"""Times in files: ISO 8601, epochs, and dates as people write them, in a zone that is named.

Whether 03/04/2024 is in March or in April is found from other rows of the file, or refused with the
option to set.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import islice
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shoal.errors import SettingsError
from shoal.producers.files.parsing import seconds_of
from shoal.producers.files.rows import NumberRows, Row, Rows

ORDERS = ("day-first", "month-first", "year-first")
"""values of --date-format besides strptime's codes"""
# Without CST, which is in use in China and in North America, and IST, in India, Israel and Ireland.
_ABBREVIATIONS = {
    **{"CET": "+01:00", "MEZ": "+01:00", "CEST": "+02:00", "MESZ": "+02:00", "WET": "+00:00"},
    **{"WEST": "+01:00", "EET": "+02:00", "EEST": "+03:00", "BST": "+01:00", "MSK": "+03:00"},
    **{"EST": "-05:00", "EDT": "-04:00", "CDT": "-05:00", "MDT": "-06:00", "PDT": "-07:00"},
    **{"MST": "-07:00", "PST": "-08:00", "JST": "+09:00", "KST": "+09:00", "SGT": "+08:00"},
    **{"AEST": "+10:00", "AEDT": "+11:00", "NZST": "+12:00", "NZDT": "+13:00", "AWST": "+08:00"},
}
"""zones of one meaning, by the letters that stand at the end of times and of names of columns"""
_ZONE = rf"[Zz]|(?:UTC|GMT)?[+-]\d{{1,2}}(?::?\d{{2}})?|UTC|GMT|{'|'.join(_ABBREVIATIONS)}"
"""the zone at the end of a time"""
_CLOCK = (
    r"(?:[T ,]+(?P<hour>\d{1,2})[:.h](?P<minute>\d{2})"
    r"(?:[:.](?P<second>\d{2})(?:[.,](?P<part>\d{1,9}))?)?"
    # Weather stations write 1:45p. A letter after it is of a zone: 10:00 AEST is no 10:00 a.m.
    r"(?:\s*(?P<half>[AaPp])(?:\.?[Mm]\.?)?(?![A-Za-z]))?(?:\s*(?:Uhr|h)\b)?"
    rf"\s*(?P<zone>{_ZONE})?)?"
)
_WEEKDAY = r"(?:[^\W\d_]{2,10}[.,]*\s+)?"
_WRITTEN = re.compile(
    # Czech and Hungarian dates have spaces after the points: 12. 1. 2024, 2024. 01. 12.
    rf"{_WEEKDAY}(?P<a>\d{{1,4}})(?P<sign>[./-]) ?(?P<b>\d{{1,2}})(?P=sign) ?(?P<c>\d{{1,4}})\.?"
    rf"{_CLOCK}"
)
_MONTHS = (
    ("jan", "ene", "gen", "sty", "led", "oca", "янв"),
    ("feb", "fev", "lut", "uno", "sub", "фев"),
    ("mar", "mae", "mrz", "mrt", "maa", "bre", "мар"),
    ("apr", "avr", "abr", "kwi", "dub", "nis", "апр"),
    ("may", "mai", "mag", "mei", "maj", "kve", "маи", "мая"),
    ("jun", "juin", "giu", "cze", "cervn", "haz", "июн"),
    ("jul", "juil", "lug", "lip", "cerve", "tem", "июл"),
    ("aug", "aou", "ago", "sie", "srp", "авг"),
    ("sep", "set", "wrz", "zar", "eyl", "сен"),
    ("oct", "okt", "ott", "out", "paz", "rij", "eki", "окт"),
    ("nov", "lis", "kas", "ноя"),
    ("dec", "dez", "dic", "des", "gru", "pro", "ara", "дек"),
)
"""beginnings of the names of the months in English, German, French, Spanish, Italian, Dutch,
Portuguese, Danish, Norwegian, Swedish, Polish, Czech, Turkish and Russian, without accents; the
German name of March with its vowel written out"""
_NAMED = re.compile(
    rf"{_WEEKDAY}(?:(?P<day>\d{{1,2}})[ ./-]+(?P<month>[^\W\d_]{{3,10}})"
    rf"|(?P<us_month>[^\W\d_]{{3,10}})\.? (?P<us_day>\d{{1,2}}))"
    rf"[ .,/-]+(?P<year>\d{{4}}|\d{{2}}){_CLOCK}"
)
"""5-Jan-2024 or January 5, 2024"""
_OF_C = re.compile(
    r"([A-Za-z]{3} [A-Za-z]{3}) +(\d{1,2}) (\d{2}:\d{2}:\d{2}) (?:([A-Z]{3,4}) )?(\d{4})"
)
"""Fri Mar 1 13:45:00 2024, as ctime of C writes it, and date of Unix with a zone before the year"""
_OF_NAMES = re.compile(r"^(\d{4}-\d{2}-\d{2})[_ ](\d{2})[-_](\d{2})[-_](\d{2})$")
"""2024-03-01_13-45-00, as in names of files"""
_SPACED = re.compile(r"(\d{4}) (\d{1,2}) (\d{1,2})((?: \d{1,2}(?:\.0)?){0,3})")
_COMPACT = re.compile(
    r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-3])([0-5]\d([0-5]\d)?)?)?"
)
"""20240131, 2024013112 or 202401311245: a date; an epoch would be in 1970, or after 2033"""
_CODES_OF_DIGITS = {10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""number of digits -> the codes of strptime that read them"""
_DAY_DIGITS = re.compile(r"(\d{4})(\d{2})(\d{2})(?:\.0+)?")
_WHOLE = re.compile(r"(\d{1,2})(?:\.0+)?")
"""an hour, a minute or a second in a column of its own; of floats where a cell of it is empty"""
_CLOCK_DIGITS = re.compile(r"(\d{1,4})(?:\.0+)?(?:\s*(UTC|GMT))?")
"""a time of day as 1345, 930, 5 or 1345 UTC"""
HOURS_OF_DAY = 24
_MIDNIGHT = re.compile(r"(.*\d[T ])24(:?00(?::?00(?:\.0+)?)?)(.*)")
"""the end of a day, as hour 24"""
SERIAL_DAYS = (20_000.0, 80_000.0)
"""days since 1899-12-30, as spreadsheets count them, from 1954 to 2119; as epochs they would all
be of the first day of 1970"""
# Days from 1899-12-30 to 1970-01-01.
_SERIAL_OF_1970 = 25_569.0
_OF_SERIALS = datetime(1899, 12, 30)
DAY_S = 86_400.0
# The clock goes back by an hour less the time between two readings, which so may be 45 minutes; a
# reading that is a little out of order goes back by less.
FOLD_S = 900.0
"""seconds by which the clock steps back, at least, where the second pass of an hour begins"""
_OFFSET = re.compile(r"(?:UTC|GMT|Z)?\s*([+-])(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE)
_ZONE_IN_NAME = re.compile(
    r"(?:^|[\s,;_(\[])"
    # "UTC+01:00", or a name as the IANA database has them, "Europe/Berlin", and not
    # "Datum/Uhrzeit".
    r"((?:GMT|UTC)\s*(?:[+-]\d{1,2}(?::?\d{2})?)?"
    r"|(?:Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Europe|Indian|Pacific)"
    r"/[A-Z][A-Za-z_/]+"
    rf"|{'|'.join(_ABBREVIATIONS)})"
    r"[\])]*$",
)


FOLLOWS_S = 60.0
"""seconds, besides two of the longest steps within a day, in which the next day's first row comes
if the days follow each other at once"""
ROWS_SEEN = 2000
"""rows from which the form of times is found, where they tell days from months"""


class TimeOptions(NamedTuple):
    """Form of the times of files, as a person gives it; None: find it."""

    date_format: str | None = None
    """one of `ORDERS`, or strptime's codes"""
    timezone: str | None = None
    """the zone of times that name none; None: UTC"""


def zone_of(name: str | None) -> tzinfo:
    """The time zone of that name; UTC for None. Raises `SettingsError`."""
    if name is None:
        return UTC
    try:
        if _OFFSET.fullmatch(name.strip()) is not None:
            return _zone_written(name.strip())
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(
            f"--timezone {name!r}: no such zone; write one like Europe/Berlin, UTC or UTC-05:00"
            " (some systems need the package tzdata)"
        ) from None


def zone_in(columns: Iterable[str]) -> str | None:
    """The zone that the name of a column of times ends in, as in "Date Time, GMT-05:00"."""
    for column in columns:
        named = _ZONE_IN_NAME.search(column)
        if named is not None:
            zone = named[1].replace(" ", "")
            offset = _ABBREVIATIONS.get(zone)
            return zone if offset is None else f"UTC{offset}"
    return None


def without_zone(column: str) -> str:
    """The name of a column without the zone at its end."""
    named = _ZONE_IN_NAME.search(column)
    if named is None:
        return column
    return column[: named.start()].rstrip(" ,;([_")


class TimeReader:
    """Converts the cells of the time columns of one file to seconds since 1970.

    In the hour that a clock shows twice in autumn, times without a zone are those of the first
    pass, until the clock steps back in rows that are in order.
    """

    def __init__(
        self,
        options: TimeOptions,
        order: str | None,
        compact: bool = False,
        serial: bool = False,
        in_order: bool = True,
        parts: _Parts | None = None,
    ) -> None:
        """`order` is one of `ORDERS`, for dates that ISO 8601 does not read.

        `compact`: digits alone are a date. `serial`: numbers are days as spreadsheets count them.
        `in_order`: times are read in the order in which they came to be. `parts`: what several
        columns hold.
        """
        self._zone = zone_of(options.timezone)
        self.order = order
        self._compact = compact
        self._serial = serial
        self._in_order = in_order
        self._parts = parts or _Parts()
        self._shown_twice: datetime | None = None
        """the newest time, if the clock shows it twice that day"""
        self._fold = 0
        self._before: datetime | None = None
        """the time before, outside of such an hour"""
        self._has_equals = False
        """whether two rows after each other had one time, as of two devices that take turns"""
        self._codes: str | None = None
        self._widths: list[int] = []
        if options.date_format is not None and options.date_format not in ORDERS:
            self._codes = options.date_format
            self._widths = [_digits_of(code) for code in options.date_format.split(" ")]
        self._zone_name = options.timezone

    @property
    def has_codes(self) -> bool:
        """Whether it reads times by codes of strptime, and no others."""
        return self._codes is not None

    def __call__(self, cells: Sequence[Any]) -> float | None:
        """Seconds since 1970; None where the cells have no time that can be read."""
        cell = cells[0]
        if len(cells) > 1:
            cell = _joined(cells, self._parts, as_written=self._codes is not None)
        if isinstance(cell, datetime) and cell.tzinfo is None:
            return seconds_of(self._in_zone(cell))
        of_digits = self._compact or self._serial or self._codes is not None
        if of_digits and type(cell) in (int, float):
            # Columns of floats have 20240131.0, and `str` would keep its .0.
            cell = f"{cell:.9f}".rstrip("0").removesuffix(".")
        if not isinstance(cell, str):
            return seconds_of(cell)
        return seconds_of(self._moment(cell.strip()))

    def _in_zone(self, moment: datetime) -> datetime:
        """A time that names no zone, in that of this reader."""
        moment = moment.replace(tzinfo=self._zone)
        if self._zone is UTC or not self._in_order:
            return moment
        second = moment.replace(fold=1)
        if moment.utcoffset() == second.utcoffset():
            self._shown_twice = None
            self._fold = 0
            self._has_equals = self._has_equals or moment == self._before
            self._before = moment
            return moment
        # Compared as the clock shows them: Python leaves out the pass, for times of one zone.
        if self._shown_twice is not None:
            back_s = (self._shown_twice - moment).total_seconds()
            # Of hourly rows the clock stands still. Of others a row that stands twice is a repeat.
            stands_still = back_s == 0 and not self._has_equals and self._is_hourly(moment)
            if back_s >= FOLD_S or stands_still:
                self._fold = 1
        self._shown_twice = moment
        return moment.replace(fold=self._fold)

    def _is_hourly(self, moment: datetime) -> bool:
        """Whether the row before the hour that comes twice is an hour earlier, or more."""
        return self._before is not None and moment - self._before >= timedelta(hours=1)

    def _moment(self, text: str) -> datetime | str | None:
        """The time as a datetime with a zone, or the text itself where it is an epoch."""
        try:
            moment = self._read_moment(text)
        # Also for a day before the year 1 or after 9999.
        except (ValueError, OverflowError):
            return None
        if moment is None:
            return text
        if moment.tzinfo is None:
            return self._in_zone(moment)
        return moment

    def _read_moment(self, text: str) -> datetime | None:
        """The time, with a zone only where it names one; None if it is an epoch."""
        if self._codes is not None:
            return datetime.strptime(self._padded(text), self._codes)
        if self._serial:
            days = float(text.replace(",", ".")) - _SERIAL_OF_1970
            # Whole milliseconds: a double of days has about a microsecond.
            return datetime(1970, 1, 1) + timedelta(milliseconds=round(1000 * DAY_S * days))
        midnight = _MIDNIGHT.fullmatch(text)
        if midnight is not None:
            moment = self._read_moment(f"{midnight[1]}00{midnight[2]}{midnight[3]}")
            return None if moment is None else moment + timedelta(days=1)
        if self._compact and _COMPACT.fullmatch(text):
            clock = f"T{text[8:]}" if len(text) > 8 else ""
            return datetime.fromisoformat(text[:8] + clock)
        # ISO 8601 first: it has one order of day and month, whatever that of other dates is.
        return _iso(text) or _written(text, self.order)

    def _padded(self, text: str) -> str:
        """The text with the zeros that numbers lose in front: 1032024 is %d%m%Y, 900 is %H%M."""
        texts = text.split(" ")
        if len(texts) != len(self._widths):
            return text
        padded = []
        for part, width in zip(texts, self._widths, strict=True):
            padded.append(part.zfill(width) if part.isdigit() else part)
        return " ".join(padded)

    def sentence(self) -> str:
        """Reading of times in words, for people."""
        form = "ISO 8601 or epochs"
        if self.order:
            form = f"{self.order} dates"
        if self._codes:
            form = self._codes
        if self._compact:
            form = "dates of digits"
        if self._serial:
            form = "days since 1899-12-30, as spreadsheets count"
        zone = self._zone_name or "UTC where they name no zone (--timezone)"
        return f"times: {form}, {zone}"


_CODE_DIGITS = {"Y": 4, "m": 2, "d": 2, "y": 2, "H": 2, "M": 2, "S": 2, "j": 3}
"""code of strptime -> the digits that it stands for"""


def _digits_of(codes: str) -> int:
    """How many digits these codes of strptime stand for; 0 where they hold anything else."""
    if re.fullmatch(r"(%[YmdyHMSj])+", codes) is None:
        return 0
    return sum(_CODE_DIGITS[code] for code in codes[1::2])


class _Parts(NamedTuple):
    """What the columns of a time hold that their cells do not show one by one."""

    has_day_of_year: bool = False
    """whether the second column, after the year, is the day of the year"""
    is_clock: bool = False
    """whether numbers after the date are hours and minutes, as 930 or 45, and no hours alone"""


_DAY_OF_YEAR = re.compile(r"doy|j(ulian)?[_ ]?day|yday|day[_ ]?of[_ ]?(the[_ ]?)?year")


def is_day_of_year(name: str) -> bool:
    """Whether a column is called the day of the year, as many stations count it."""
    return _DAY_OF_YEAR.fullmatch(name.strip("# ").lower()) is not None


def _parts_of(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> _Parts:
    """What the columns of a time hold, by their names and the first rows."""
    has_day_of_year = len(columns) > 1 and is_day_of_year(columns[1])
    # A date, or a year and the day of it, or year, month and day.
    if len(columns) != (3 if has_day_of_year else 2) and len(columns) != 4:
        return _Parts(has_day_of_year)
    # The first hour of a day has 0 to 59 where others have up to 2359.
    for cells in islice(rows, ROWS_SEEN):
        digits = _CLOCK_DIGITS.fullmatch(str(cells[-1]).strip())
        if digits is not None and float(digits[1]) > HOURS_OF_DAY:
            return _Parts(has_day_of_year, is_clock=True)
    return _Parts(has_day_of_year)


def time_reader(
    rows: Callable[[], Iterable[Sequence[Any]]],
    options: TimeOptions,
    where: str,
    columns: Sequence[str] = (),
) -> TimeReader:
    """The reader that fits the times of a file.

    `rows()`: the cells of its time columns, from the first row on. `where` names the file in
    errors; `columns` are the names of the time columns, which may end in a zone. Raises
    `SettingsError` where days and months cannot be told apart.
    """
    if options.timezone is None:
        options = options._replace(timezone=zone_in(columns))
    zone_of(options.timezone)
    parts = _parts_of(rows(), columns)
    if options.date_format is not None:
        order = options.date_format if options.date_format in ORDERS else None
        if order is None and "%" not in options.date_format:
            raise SettingsError(
                f"--date-format {options.date_format!r}: write day-first, month-first, year-first,"
                " or codes such as %d.%m.%Y %H:%M"
            )
        return TimeReader(options, order, parts=parts)
    dates = _Dates()
    for cells in rows():
        dates.add(_joined(cells, parts))
        # Rows beyond the first are only needed to tell days from months.
        if dates.seen >= ROWS_SEEN and not dates.unknown:
            break
    if len(dates.found) > 1:
        raise SettingsError(
            f"{where}: some dates can only be day-first and some only month-first; give"
            " --date-format day-first or --date-format month-first, and the others have no time"
        )
    if dates.unknown:
        raise SettingsError(
            f"{where}: its dates may be day-first or month-first; give --date-format day-first or"
            " --date-format month-first"
        )
    return TimeReader(
        options,
        dates.order,
        # Only where all times are so: among epochs a number of eight digits is none of them.
        compact=0 < dates.digits == dates.seen,
        serial=0 < dates.serial == dates.seen,
        parts=parts,
    )


class _Dates:
    """What the dates of a file show of their order."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        """orders that some date can only have"""
        self.seen = 0
        """times"""
        self.digits = 0
        """those of them that are of digits alone"""
        self.serial = 0
        """those of them that are days as spreadsheets count them"""
        self._ambiguous = False
        self._days = _Days()

    @property
    def order(self) -> str | None:
        """The order of all dates; None where nothing has to be known of it, or is."""
        for order in self.found:
            return order
        if not self._ambiguous:
            return None
        return self._days.order

    @property
    def unknown(self) -> bool:
        """Whether some dates may be day-first or month-first, and nothing shows which."""
        return self._ambiguous and self.order is None

    def add(self, text: str) -> None:
        """Look at the next time; an empty text is none."""
        if not text:
            return
        self.seen += 1
        if _COMPACT.fullmatch(text):
            self.digits += 1
        self.serial += is_serial_day(text)
        written = None if _iso(text) is not None else _WRITTEN.fullmatch(_western(text))
        if written is None:
            return
        order = _order_of(written)
        if order is not None:
            self.found.add(order)
        elif not self.found:
            self._ambiguous = True
            self._days.add(text)


class _Days:
    """Dates that may be day-first or month-first, told apart by which days follow each other.

    Where readings come every five minutes, the row after 23:55 is of the next day and not of a day
    a month later.
    """

    def __init__(self) -> None:
        self._before: dict[str, datetime] = {}
        self._step_s = 0.0
        """longest step between two rows of a day that shows how close rows follow each other"""
        self._followed: Counter[str] = Counter()

    @property
    def order(self) -> str | None:
        """The order under which days follow each other; None as long as none do, or under both."""
        if len(self._followed) != 1:
            return None
        return next(iter(self._followed))

    def add(self, text: str) -> None:
        """Look at the next time."""
        moments = {}
        try:
            for order in ("day-first", "month-first"):
                moment = _written(text, order)
                if moment is not None:
                    moments[order] = moment
        except ValueError:  # no such time of day
            return
        before = self._before
        self._before = moments
        both = moments.keys() & before.keys()
        # Without a sign, as files may begin with the newest row.
        steps = {order: abs((moments[order] - before[order]).total_seconds()) for order in both}
        if all(moments[order].date() == before[order].date() for order in both):
            self._step_s = max(self._step_s, *steps.values(), 0.0)
            return
        # Without a step within a day it is not known what follows at once.
        if self._step_s:
            longest_s = FOLLOWS_S + 2 * self._step_s
            for order, step_s in steps.items():
                if step_s <= longest_s:
                    self._followed[order] += 1


def _joined(cells: Sequence[Any], parts: _Parts, as_written: bool = False) -> str:
    """The text of the time columns together; empty where a cell is.

    `as_written`: with spaces between them and no other change, as codes of strptime read it.
    """
    texts = ["" if cell is None else str(cell).strip() for cell in cells]
    if not all(texts):
        return ""
    if as_written:
        return " ".join(texts)
    if parts.has_day_of_year:
        texts = [_day_of_year(*texts[:2]), *texts[2:]]
        if not texts[0]:
            return ""
    # A year in a column of its own is followed by months, not by hours.
    is_year = re.fullmatch(r"\d{1,4}(\.0+)?", texts[0]) is not None
    if is_year and len(texts) == 4 and ":" in texts[3]:
        texts = ["-".join(text.removesuffix(".0").zfill(2) for text in texts[:3]), texts[3]]
        is_year = False
    if is_year and parts.is_clock and len(texts) == 4:
        return f"{' '.join(texts[:3])} {_clock_of(texts[3:], is_clock=True).replace(':', ' ')}"
    if len(texts) > 1 and not is_year:
        return f"{_day_of(texts[0])} {_clock_of(texts[1:], parts.is_clock)}"
    return " ".join(texts)


def _day_of_year(year: str, day: str) -> str:
    """The date of a day of a year, from 1 on; empty where there is no such day."""
    try:
        first = datetime(int(float(year)), 1, 1)
        date = first + timedelta(days=int(float(day)) - 1)
    except (ValueError, OverflowError):
        return ""
    return f"{date:%Y-%m-%d}" if date.year == first.year else ""


def _day_of(text: str) -> str:
    """20240131, or 45322 as spreadsheets count days, as 2024-01-31; any other text as it is."""
    digits = _DAY_DIGITS.fullmatch(text)
    if digits is None and is_serial_day(text) and float(text).is_integer():
        return f"{_OF_SERIALS + timedelta(days=float(text)):%Y-%m-%d}"
    return text if digits is None else "-".join(digits.groups())


def _clock_of(texts: Sequence[str], is_clock: bool) -> str:
    """The time of day that columns hold: an hour, minutes and seconds, 1345, or any other text.

    `is_clock`: 45 is a quarter to one in the night, and no hour.
    """
    parts = [_WHOLE.fullmatch(text) for text in texts]
    if len(parts) <= 3 and all(parts) and not is_clock:
        whole = [part[1].zfill(2) for part in parts if part is not None]
        return ":".join([*whole, "00"] if len(whole) == 1 else whole)
    together = _CLOCK_DIGITS.fullmatch(texts[0])
    if len(texts) == 1 and together is not None:
        digits = together[1].zfill(4)
        clock = f"{digits[:2]}:{digits[2:]}"
        return f"{clock} {together[2]}" if together[2] else clock
    return " ".join(texts)


def is_serial_day(text: str) -> bool:
    """Whether a text is a number that a spreadsheet shows as a date."""
    try:
        return SERIAL_DAYS[0] <= float(text.replace(",", ".")) < SERIAL_DAYS[1]
    except ValueError:
        return False


TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?([.,]\d+)?(\s*[AaPp](\.?[Mm]\.?)?)?")


def is_moment(text: str) -> bool:
    """Whether a text is a date, or a time of day, that is no number, in any order of its parts."""
    if _iso(text) is not None or TIME_OF_DAY.fullmatch(text):
        return True
    return any(_is_written(text, order) for order in ORDERS)


def _is_written(text: str, order: str) -> bool:
    """Whether a text is a date with its parts in this order."""
    try:
        return _written(text, order) is not None
    except ValueError:
        # Of the form of a date, and no day of the calendar: 01/31/2024 with the day first.
        return False


def names_zone(text: str) -> bool:
    """Whether the text of a time says in which zone it is; an epoch is in UTC."""
    try:
        float(text)
    except ValueError:
        # The time of day must come first: in 2024-01-31 the end would be an offset of -31.
        return re.search(rf":\d{{2}}.*({_ZONE})$", text.strip()) is not None
    return True


def is_date_of_digits(text: str) -> bool:
    """Whether a text is a date of digits alone, as 20240131."""
    return _COMPACT.fullmatch(text) is not None


def codes_of_digits(text: str) -> str:
    """The codes of strptime of a date of digits alone with a time of day, as 2024013112; "" for
    any other text."""
    if not is_date_of_digits(text):
        return ""
    return _CODES_OF_DIGITS.get(len(text), "")


def _order_of(written: re.Match[str]) -> str | None:
    """The order of day, month and year; None where it could be day-first or month-first."""
    first = int(written["a"])
    second = int(written["b"])
    if len(written["a"]) > 2:
        return "year-first"
    # A point between the parts is used where the day comes first.
    if first > 12 or written["sign"] == ".":
        return "day-first"
    return "month-first" if second > 12 else None


def _iso(text: str) -> datetime | None:
    try:
        float(text)  # an epoch in ms, of which the standard library makes a day in another century
    except ValueError:
        pass
    else:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _written(text: str, order: str | None) -> datetime | None:
    """A date as people write it, with or without a time of day; None if it is not one.

    Raises `ValueError` for a day or a time of day that does not exist.
    """
    text = _western(_OF_C.sub(r"\1 \2 \5 \3 \4", text)).strip()
    text = _OF_NAMES.sub(r"\1 \2:\3:\4", text)
    spaced = _SPACED.fullmatch(text)
    if spaced:
        clock = [int(float(part)) for part in spaced[4].split()]
        return _at(int(spaced[1]), int(spaced[2]), int(spaced[3]), *clock)
    named = _NAMED.fullmatch(text)
    if named is not None:
        month = _month_of(named["month"] or named["us_month"])
        if month is None:
            return None
        day = int(named["day"] or named["us_day"])
        return _with_clock(named, int(named["year"]), month, day)
    numbers = _WRITTEN.fullmatch(text)
    if numbers is None:
        return None
    # Four digits in front are a year, whatever the order of the file's other dates is.
    order = "year-first" if len(numbers["a"]) > 2 else order
    if order is None:
        return None
    # Names of the parts as the order has them: 2024-01-31, 31.01.2024, 01/31/2024.
    parts = {"year-first": "abc", "day-first": "cba", "month-first": "cab"}[order]
    year, month, day = (int(numbers[part]) for part in parts)
    return _with_clock(numbers, year, month, day)


_OF_EAST_ASIA = re.compile(
    r"(\d{4})\s*[年년]\s*(\d{1,2})\s*[月월]\s*(\d{1,2})\s*[日일]\s*"
    r"(?:(\d{1,2})\s*[时時点시]\s*(\d{1,2})\s*[分분]\s*(?:(\d{1,2})\s*[秒초])?)?"
)
"""2024年1月12日 10时30分, 2024년 1월 12일: a date with the signs of its parts"""
_HALF_BEFORE = re.compile(r"(上午|下午|午前|午後|오전|오후)\s*(\d{1,2}(?::\d{2}){1,2})")
_AFTERNOON = frozenset({"下午", "午後", "오후"})
_HALF_SPACED = re.compile(r"\b([AaPp])\.\s*([Mm])\.")
"""a. m., as spreadsheets in Spanish write it"""


def _western(text: str) -> str:
    """A date with the halves of the day and the signs of East Asia, or of Spain, as others write
    it."""
    if text.isascii() and "." not in text:
        return text

    def half_behind(match: re.Match[str]) -> str:
        return f"{match[2]} {'PM' if match[1] in _AFTERNOON else 'AM'}"

    def with_signs(match: re.Match[str]) -> str:
        clock = ":".join(part.zfill(2) for part in match.groups()[3:] if part)
        return f"{match[1]}-{match[2]}-{match[3]} {clock}"

    text = _OF_EAST_ASIA.sub(with_signs, text)
    text = _HALF_BEFORE.sub(half_behind, text)
    return _HALF_SPACED.sub(r"\1\2", text)


def _month_of(name: str) -> int | None:
    """The number of a month by its name or the beginning of it; None for no month."""
    decomposed = unicodedata.normalize("NFD", name.lower())
    plain = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    # The longest first: juin and juil have three letters in common, and two Czech months four.
    for length in (5, 4, 3):
        for number, beginnings in enumerate(_MONTHS, 1):
            if plain[:length] in beginnings:
                return number
    return None


def _with_clock(written: re.Match[str], year: int, month: int, day: int) -> datetime:
    """A date with the time of day, and the zone, that are written after it."""
    if year < 100:
        # As strptime's %y reads it.
        year += 2000 if year < 69 else 1900
    hour = int(written["hour"] or 0)
    if written["half"] is not None:
        # 12 AM is midnight, and 12 PM is noon.
        hour %= 12
        if written["half"] in "Pp":
            hour += 12
    minute = int(written["minute"] or 0)
    moment = _at(year, month, day, hour, minute, int(written["second"] or 0))
    if written["part"]:
        moment += timedelta(seconds=float(f"0.{written['part']}"))
    if written["zone"]:
        moment = moment.replace(tzinfo=_zone_written(written["zone"]))
    return moment


def _zone_written(text: str) -> tzinfo:
    """The zone at the end of a time. Raises `ValueError` for an offset of a day or more."""
    offset = _OFFSET.fullmatch(_ABBREVIATIONS.get(text, text))
    if offset is None:
        # Z, UTC and GMT.
        return UTC
    ahead = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
    return timezone(ahead if offset[1] == "+" else -ahead)


def _at(
    year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0
) -> datetime:
    """The time so written; 24:00 is the end of the day."""
    if hour == 24 and minute == 0 and second == 0:
        return datetime(year, month, day) + timedelta(days=1)
    return datetime(year, month, day, hour, minute, second)


def with_times(rows: Rows, columns: int, read: TimeReader) -> Rows:
    """The rows, with seconds in place of the cells of their first `columns` other columns."""
    if isinstance(rows, NumberRows):
        others = [[read(cells[:columns]), *cells[columns:]] for cells in rows.others]
        return NumberRows(rows.values, others)
    timed: list[Row | None] = []
    for row in rows:
        if row is None:
            timed.append(None)
        else:
            others_with_time = [read(row.others[:columns]), *row.others[columns:]]
            timed.append(Row(row.features, others_with_time))
    return timed
