"""What the columns of data hold: times, clients, features, and what is left out, with the reason.

Everything is found from names and a few thousand rows, which are kept nowhere.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Bools, Floats
from shoal.privacy.imperfect import step_of
from shoal.producers.features import NUMBERED, bounds_of, cut_of, period_of, unit_of
from shoal.producers.files.dialect import TWO_VALUES, is_unnamed, unit_behind
from shoal.producers.files.parsing import number_of
from shoal.producers.files.split import CLIENTS_MAX
from shoal.producers.files.times import (
    DAY_S,
    SERIAL_DAYS,
    TimeOptions,
    TimeReader,
    is_date_of_digits,
    is_day_of_year,
    is_moment,
    time_reader,
    without_zone,
)
from shoal.producers.quality import BadQuality
from shoal.producers.quality_columns import QualityOf, agreed, quality_of
from shoal.protocol.no_value import is_no_value

Kind = Literal["feature", "time", "client", "person", "label", "quality", "left out"]

_THINGS = "dev|device|host|sensor|station|machine|client|room|mote|user|site|node|engine"
_NAMES: Mapping[Kind, re.Pattern[str]] = {
    "time": re.compile(
        r"((received|reported|recorded|measured|event|sample|mess|log|obs|utc|local)[_ -]?)?"
        r"(date[_ -]?time|date|time|datum|zeit)([_ -]?(utc|local|cet|stamp|ms|ns|s))?|"
        r"timestamp([_ -]?(utc|local|ms|us|ns|s|sec|seconds|millis))?|date[_ -]?time|uhrzeit|"
        r"zeitstempel|zeitpunkt|time[_ ]?string|"
        r"datum[ /_-]+(uhr)?zeit|date[ /_-]+time|tijd(stip)?|tidspunkt|"
        r"ts|epoch|heure|fecha|hora|horodatage|last[_ -]?seen|"
        r"时间|時間|日時|日期|采集时间|記録時間|일시|시간|날짜|"
        r"дата|время|дата[ /]?(и )?время|tarih|czas|"
        r"datum a čas|data[ /_-]+(e |i )?(hora|ora|godzina)|fecha[ /_-]+(y )?hora|dato|"
        r"((last|date)[_ -]?)?(updated?|changed|created|measured|received|sampled|recorded|sent)"
        r"[_ -]?(at|on|time)|yyyy[_-]?mm[_-]?dd([_ -]?(hh([_:]?mm)?)?)?"
    ),
    "client": re.compile(
        rf"({_THINGS})([_ -]?(id|name|no|nr))?|unit[_ -]?(id|name|no|nr|number)|"
        r"(dev|device)[_ -]?(eui|addr)|host[_ -]?name|id|eui|mac([_ -]?addr(ess)?)?|imei|"
        r"serial([_ -]?(no|nr|number))?|"
        r"plant|location|place|house|building|hall|line|area|"
        r"raum|ger(ä|ae)t|anlage|standort|werk|maschine|halle|linie|bereich"
    ),
    "label": re.compile(r"label|class|target|klasse|y|changepoint|anomaly"),
}
"""names of columns, in lower case"""


def is_named(kind: Kind, name: str) -> bool:
    """Whether a column of that name, or a field at the end of that path, is of this kind."""
    spaced = " ".join(name.replace('"', "").split())
    bare, _ = unit_of(NUMBERED.sub("", spaced))
    if kind == "time":
        bare = without_zone(bare)
    parts = bare.split(".")
    # The last part of a path, or the last few: device.id is named as a client by both.
    for first in range(len(parts)):
        end = "_".join(parts[first:]).lower().strip("# _")
        if _NAMES[kind].fullmatch(end):
            return True
    return False


_QUANTITIES = re.compile(
    r"(metric|variable|parameter|phenomenon|phänomen|quantity|entity|signal|channel|field|"
    r"measurement|property|var[_ ]?name|"
    r"attribute|register|kanal|messgr(ö|oe)(ß|ss)e|messstelle)([_ -]?(id|name|no|nr))?|"
    r"(tag|point|series)[_ -]?(id|name|no|nr)"
)
"""names of a column that names the quantity of a row's only value, in lower case"""
_MAY_BE_QUANTITIES = re.compile(
    r"((sensor|data|value|measurement|reading)[_ -]?)?(type|kind|name|id|key|code|topic)|sensor|"
    r"item|tag|point|n|what|measure|object|pv|observed[_ -]?property|datastream|typ|art|groesse|"
    r"grösse"
)
"""names of a column that names quantities or devices, beside one of values, in lower case"""
_VALUES = re.compile(
    r"(raw|sensor|num(eric)?|double|float|var)?[_ -]?("
    r"value|val|reading|measurement|wert|messwert|v|"
    r"state|result|data|payload|level)([_ -]?(raw|hrf|scaled|num(eric)?|float|calibrated))?"
)
"""names of a column of values of any quantity, in lower case"""
_QUANTITY = re.compile(
    r"(.*[_ .-])?(temp|hum|rh|press|baro|co2|co$|no2|o3|pm_?\d|voc|tvoc|iaq|lux|light|illum|volt|"
    r"curr|power|watt|energy|flow|level|speed|wind|rain|noise|sound|vibra|rpm|torque|ph$|dew|"
    r"feuchte|druck|strom|spannung|leistung)",
    re.IGNORECASE,
)
"""beginnings of names of quantities"""
QUANTITIES_MAX = 64
"""most quantities of a long table that are seen by the names of its columns"""
EXPLAINED_MIN = 0.5
"""share of the variance of values by which the names beside them are those of quantities"""
LONG_SHARE = 0.3
"""share of numbers in a column that may hold the values of several quantities: some are texts"""

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
# Where readings that lack a value are dropped, such a feature would take half of them with it.
MISSING_MAX = 0.5
"""share of rows without a value from which on a feature is left out"""
# -200 is that of the air quality data of UCI, -127 what the common library for DS18B20 sensors
# gives for one that does not answer, and 850 their 85 °C after power on, in tenths.
CODES = (
    *(
        -1.0,
        -99.0,
        99.0,
        -999.0,
        -9999.0,
        -99999.0,
        -200.0,
        999.0,
        9999.0,
        99999.0,
        999999.0,
        6999.0,
    ),
    *(99.9, 99.99, 999.9, 999.99, 9999.9, 9999.99, 99999.9, 99999.99),
    *(-99.9, -99.99, -999.9, -999.99, -9999.9, -9999.99, -99999.9, -99999.99),
    *(-888.0, -8888.0, -7999.0, -999999.0, 9999999.0, -6999.0),
    *(32767.0, -32768.0, 65535.0, 65534.0, 2147483647.0, -2147483648.0, 4294967295.0),
    *(-127.0, 127.5, 255.0, 850.0, 3276.7, -3276.8, 6553.5, 327.67, -327.68, 655.35),
)
"""numbers that are in use for "no value", ends of types of numbers among them, also as tenths and
hundredths; taken for it only where all other values are far away"""
HUGE = 1e15
"""size from which on a number far from all others is one for "no value": 1e20, 9.96921e36"""
# A number that occurs once may be a true extreme, so it has to lie farther away.
CODE_GAP_OF_ONE = 1.0
"""the same distance where few cells have the number"""
CODE_GAP = 0.25
"""distance of such a number from the nearest other value, as a share of the range of the others"""

TURNS_MIN = 4
"""fewest values of a coarse feature on a circle: weekdays are no states"""
CATEGORY_VALUES_MAX = 8
"""most texts of a column that is a category"""
# Texts that occur rarely are a sign of others that did not occur yet: undeclared, those would count
# as missing.
CATEGORY_CELLS_MIN = 10
"""fewest cells with each of them"""
CATEGORY_CHARS_MAX = 32
"""most characters of one"""
WORD_CHARS_MAX = 40
"""most characters of a word that stands for "no value" among numbers"""
# A word that occurs less often may be damage, which as "no value" would be no fault any more.
WORD_CELLS_MIN = 3
"""fewest cells with such a word"""
CODE_CELLS_MIN = 3
"""fewest cells with a number that stands for "no value" """
# The range of fewer values is small by chance, and a further true value far beyond it.
CODE_VALUES_MIN = 10
"""fewest other values by which that is seen"""
# A random walk goes up 20 times in a row with a chance of one in a million.
ROWS_COUNTED = 20
"""fewest rows by which a column that counts the rows is seen"""


# A random walk falls eight times in a row with a chance of 1 in 256.
CHANGES_MIN = 8
"""fewest changes by which a slow drain is seen"""
# A client of one row has the same value in all of its rows, whatever the column holds.
ROWS_OF_CLIENT_MIN = 5
"""fewest rows of a client by which a column is the same within it"""
RISING_SHARE = 0.99
"""share of the steps of a counter that do not go down"""
TURNS_MAX = 8
"""most devices that take turns in a file"""
_OF_PLACES = re.compile(
    r"(gps[_ ]?)?(lat|latitude|lon|lng|long|longitude|elevation|altitude|location|location[_ ]?id)"
)
_OF_COUNTERS = re.compile(
    r"(.*[_ -])?(counter|zaehler|zähler|zählerstand)|today|yesterday|"
    r"(.*[_ ])?(energy|yield|production|consumption|kwh)[_ ](today|daily|total)|"
    r"(today|daily|total)[_ ](energy|yield|production|consumption|kwh)"
)
_OF_CERTAINTY = re.compile(r"(.*[_ ])?(confidence|certainty|plausibility)([_ ].*)?")
_OF_RADIO = re.compile(r"(rf[_ ]?|radio[_ ]?|channel[_ ]?)?freq(uency)?")
_OF_IDENTIFIERS = re.compile(r"(.*[_ .-])?(id|ID|Id)|.*[a-z]I[dD]")
"""... as they are written: an Id is one, and humid is none"""
_OF_DEVICES = re.compile(
    r"((device|sensor|node)[_ ])?"
    r"((batt?(ery)?|batterie|akku|accu|bater[ií]a|batteria)(spannung|stand|"
    r"[_ ]?(voltage|level|percent(age)?|pct|mv|v|low|state))?|"
    r"vbatt?|rssi|snr|lqi|link[_ ]?quality|signal[_ ]?(strength|quality)|wifi[_ ]?signal|uptime|"
    r"dr|sf|data[_ ]?rate|spreading[_ ]?factor|tx[_ ]?power|f[_ ]?port|"
    r"(min[_ ]?)?free[_ ]?(heap|mem(ory)?|ram)|heap|[hvp]dop|(num[_ ]?)?sat(ellite)?s?|"
    r"(frame|f)[_ ]?cnt|crc(8|16|32)?|checksum|chksum|hash|"
    r"seq(uence)?([_ ]?(no|nr|num|number))?|(msg|message|packet|frame)[_ ]?(id|no|nr|count(er)?))"
    r"([_ ]?(dbm|db|%))?([_ ](min|max|avg|smp|std|mean))?"
)


@dataclass(frozen=True)
class Column:
    """What one column holds."""

    name: str
    kind: Kind
    reason: str
    """why it is taken for that, for people"""
    examples: tuple[str, ...] = ()
    """three of its cells as they are; for a terminal only"""
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    outside: float = 0.0
    """share of its values that lie outside of `low` and `high`"""
    step: float = 0.0
    """smallest difference of its values, where they are coarse; 0 where they are not"""
    numbers: Floats = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """(n,) its values that were looked at; they are kept nowhere"""
    values: tuple[str, ...] = ()
    """all that it holds, where it is a category; () for numbers"""
    period: float = 0.0
    """period after which it begins again, where it is circular; it is cut at `low`"""


@dataclass(frozen=True)
class Understood:
    """The data as a whole."""

    columns: tuple[Column, ...]
    rows: int
    """rows that were looked at"""
    clients: tuple[str, ...] = ()
    """texts of the column of clients, in the order in which they come"""
    interval_s: float | None = None
    """usual seconds between two readings of a client; None without times"""
    na_values: tuple[str, ...] = ()
    """cells that stand for "no value": words, and numbers"""
    na_values_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """column -> numbers that stand for "no value" in it, and for a value in another one"""
    missing: float = 0.0
    """share of rows without a value of some feature"""
    order: str | None = None
    """order of day, month and year in its dates; None where nothing has to be known of it"""
    are_days: bool = False
    """whether its times are days alone, each that of several readings of a client"""
    quality: Mapping[str, str] = field(default_factory=dict)
    """feature -> the column that says how good its values are"""
    bad_quality: tuple[str, ...] = ()
    """what means bad there"""

    def of(self, kind: Kind) -> tuple[Column, ...]:
        """The columns of that kind, in the order of the data."""
        return tuple(column for column in self.columns if column.kind == kind)


class _Cells:
    """The cells of one column."""

    def __init__(self, cells: Sequence[Any], number: Callable[[Any], Any], head: int) -> None:
        self.all_texts = tuple(map(_text_of, cells))
        self.empty = np.array([not text for text in self.all_texts], dtype=np.bool_)
        self.texts = tuple(filter(None, self.all_texts))
        self.words: Counter[str] = Counter()
        """cells that are no numbers -> how many"""
        numbers = []
        for cell in cells:
            value = number(cell)
            is_number = isinstance(value, float) and math.isfinite(value)
            numbers.append(value if is_number else math.nan)
            # As they are in the file: a number that is refused is read as another text.
            if isinstance(value, str):
                self.words[str(cell).strip()] += 1
        self.numbers = np.array(numbers, dtype=np.float64)
        """(n,) NaN where a cell is no number"""
        self.head = self.numbers[:head]

    @property
    def number_share(self) -> float:
        """Share of the cells with something in them that are numbers."""
        return float(np.isfinite(self.numbers).sum()) / max(1, len(self.texts))


def _text_of(cell: Any) -> str:
    if cell is None:
        return ""
    # JSON and the values of categories write true, Python writes True.
    if isinstance(cell, bool):
        return str(cell).lower()
    return str(cell).strip()


class Sample(NamedTuple):
    """Some rows of the data."""

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """cells as they are in the data"""
    head: int
    """number of the rows, from the first on, that follow each other without a gap"""
    number: Callable[[Any], Any] = number_of
    """a cell -> its number as a float, or anything else"""
    where: str = "the data"
    """names the data in errors"""
    noun: Literal["row", "message"] = "row"
    """what one of them is"""


def understand(
    sample: Sample,
    times: TimeOptions,
    time: Sequence[str] = (),
    client: str | None = None,
    na: Sequence[str] = (),
    person: str = "",
    bad: Sequence[str] = (),
) -> Understood:
    """What the columns of the data hold.

    `time`, `client`, `na`, `bad`: columns of the time, the column of clients, cells without a value
    and cells that mean bad quality, where a person named them. `person`: the column that names the
    person whom a reading concerns, which is nothing else; empty for none. Raises `SettingsError`
    where a time may be two things, and where each row has the value of one quantity only.
    """
    cells: dict[str, _Cells] = {}
    for place, name in enumerate(sample.names):
        if name == person:
            continue
        of_column = [row[place] for row in sample.rows]
        cells[name] = _Cells(of_column, sample.number, sample.head)
    time_columns = list(time) or _time_columns(cells)
    client_column = client or _client_column(cells, time_columns)
    measured = {
        name: column
        for name, column in cells.items()
        if name not in time_columns and name != client_column
    }
    qualities = _qualities(cells, measured, bad)
    for name, quality in qualities.used.items():
        for feature in quality.features or measured:
            measured[feature].numbers[qualities.bad_rows[name]] = math.nan
    codes = _codes_among(na, measured) or _codes(measured)
    for name, column in measured.items():
        column.numbers[np.isin(column.numbers, codes[name])] = math.nan
    shared, own = _shared_codes(codes, measured)
    # Only now: a code would be taken for a value that differs.
    by_name = client_column if client is None else None
    _check_wide(measured, (by_name, cells[by_name]) if by_name else None, sample)
    columns = _described(cells, qualities, time_columns, client_column)
    if person:
        columns.append(Column(person, "person", "whom the reading concerns; kept at the client"))
    features = [column.name for column in columns if column.kind == "feature"]
    quality_columns = qualities.by_feature(features)
    clients: tuple[str, ...] = ()
    if client_column:
        clients = tuple(dict.fromkeys(cells[client_column].texts))
    categories = {text for column in columns for text in column.values}
    words = () if na else _na_words(measured.values(), categories)
    interval, order, are_days = _interval(sample, time_columns, client_column, times)
    return Understood(
        tuple(columns),
        len(sample.rows),
        clients,
        interval,
        na_values=(*words, *map(_code_text, shared)),
        na_values_of={name: tuple(map(_code_text, codes)) for name, codes in own.items()},
        missing=_missing_share(columns, cells),
        order=order,
        are_days=are_days,
        quality=quality_columns,
        bad_quality=qualities.written if quality_columns else (),
    )


def _described(
    cells: Mapping[str, _Cells], qualities: _Qualities, times: Sequence[str], client: str | None
) -> list[Column]:
    """What each column holds; `times` and `client`: the columns of the time and of clients."""
    columns = []
    groups = _rows_of_clients(cells, client)
    date = [name for name in _parts_of_time(cells)[:3] if name not in times]
    if not times or len(date) < 3:
        date = []
    for name, column in cells.items():
        if name in qualities.found:
            kind: Kind = "quality" if name in qualities.used else "left out"
            columns.append(Column(name, kind, qualities.reason(name), column.texts[:3]))
            continue
        if name in date:
            reason = f"a part of a date; the time is read from {times[0]}"
            columns.append(Column(name, "left out", reason, column.texts[:3]))
            continue
        described = _column(name, column, times, client)
        if described.kind == "feature":
            reason = _no_measurement(name, column, groups)
            if reason:
                described = Column(name, "left out", reason, described.examples)
        columns.append(described)
    return _once(columns, cells)


def _once(columns: Sequence[Column], cells: Mapping[str, _Cells]) -> list[Column]:
    """The columns, without those of the same numbers as one before, and temperatures in °F that are
    there in °C: they would count twice."""
    kept = []
    features = [column.name for column in columns if column.kind == "feature"]
    for column in columns:
        reason = ""
        if column.name in features:
            reason = _copy_of(column.name, features, cells)
        if reason:
            column_left_out = Column(column.name, "left out", reason, column.examples)
            kept.append(column_left_out)
        else:
            kept.append(column)
    return kept


def _copy_of(name: str, features: Sequence[str], cells: Mapping[str, _Cells]) -> str:
    """Which of the other features a column repeats, as a reason; "" for none."""
    numbers = cells[name].numbers
    for other in features[: features.index(name)]:
        of_other = cells[other].numbers
        if np.isfinite(numbers).any() and np.array_equal(numbers, of_other, equal_nan=True):
            return f"the same as {other} in every row"
    for other in features:
        if _is_fahrenheit_of(numbers, cells[other].numbers):
            return f"{other} once more, in °F"
    return ""


FAHRENHEIT_ERROR = 1.0
"""most by which rounding of both changes a temperature, in °F"""
FAHRENHEIT_RANGE_MIN = 5.0
"""least range, in °F, by which that is seen: of a narrow one two sensors would agree so far"""


def _is_fahrenheit_of(numbers: Floats, celsius: Floats) -> bool:
    """Whether these are temperatures in °F, and the others the same in °C."""
    both = np.isfinite(numbers) & np.isfinite(celsius)
    if not both.any() or np.ptp(numbers[both]) < FAHRENHEIT_RANGE_MIN:
        return False
    differences = 1.8 * celsius[both] + 32 - numbers[both]
    return bool((np.abs(differences) <= FAHRENHEIT_ERROR).all())


class _Qualities(NamedTuple):
    """The columns that say how good the values of others are."""

    found: Mapping[str, QualityOf]
    used: Mapping[str, QualityOf]
    """those of `found` whose bad cells are known, and that one list fits"""
    bad_rows: Mapping[str, Bools]
    """column that is used -> (n,) rows in which it means bad"""

    @property
    def written(self) -> tuple[str, ...]:
        """What means bad in those that are used."""
        cells: dict[str, None] = {}
        for quality in self.used.values():
            cells |= dict.fromkeys(quality.bad)
        return tuple(cells)

    def reason(self, name: str) -> str:
        """What is made of a column that was found, for people."""
        quality = self.found[name]
        about = ", ".join(quality.features) or "all values of its row"
        values = f"the values of {about}" if quality.features else about
        # Of the words that mean bad, those that occur.
        occur = [text for text in quality.bad if _occurs(text, quality.codes)]
        bad = ", ".join(occur or quality.bad)
        if name in self.used:
            share = self.bad_rows[name].mean()
            where = f"it is {bad}" if occur else "it means bad"
            return f"of {about}; where {where} ({share:.2%} of the rows), a value is missing"
        if not quality.bad:
            return (
                f"how good {values} are, in codes of no known list"
                f" ({', '.join(quality.codes)}): name those that mean bad with --bad-quality"
            )
        return (
            f"how good {values} are; what means bad in it, {bad}, means good in"
            " another column of quality"
        )

    def by_feature(self, features: Iterable[str]) -> dict[str, str]:
        """feature -> the column of its quality: one of its own before one of its row."""
        columns = {}
        for feature in features:
            for name, quality in self.used.items():
                if feature in quality.features:
                    columns[feature] = name
                    break
                if not quality.features:
                    columns.setdefault(feature, name)
        return columns


def _occurs(bad: str, codes: Sequence[str]) -> bool:
    rule = BadQuality((bad,))
    return any(map(rule.is_bad, codes))


def _qualities(
    cells: Mapping[str, _Cells], measured: Mapping[str, _Cells], bad: Sequence[str]
) -> _Qualities:
    """The columns of quality; `bad`: what a person named as bad in them."""
    found: dict[str, QualityOf] = {}
    for name, column in measured.items():
        quality = quality_of(name, column.all_texts, list(cells), bad)
        if quality is None:
            continue
        features = tuple(feature for feature in quality.features if feature in measured)
        # The state of a client is about all of its row, where it is known to be one of quality.
        if features or not quality.features or quality.bad:
            found[name] = quality._replace(features=features)
    used = {}
    bad_rows = {}
    for name in agreed(found, {name: list(set(cells[name].texts)) for name in found}):
        used[name] = found[name]
        rules = BadQuality(found[name].bad)
        bad_rows[name] = np.array([rules.is_bad(text) for text in cells[name].all_texts])
    return _Qualities(found, used, bad_rows)


def _codes_among(na: Sequence[str], columns: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """The numbers among the cells that a person named as those without a value, for each column;
    none where there are none."""
    numbers = [number_of(text) for text in na]
    codes = tuple(number for number in numbers if isinstance(number, float))
    return dict.fromkeys(columns, codes) if codes else {}


def _code_text(code: float) -> str:
    """A number as a setting has it: -999, and every digit of 9.969209968386869e+36."""
    short = f"{code:g}"
    return short if float(short) == code else repr(code)


def _missing_share(columns: Sequence[Column], cells: Mapping[str, _Cells]) -> float:
    """Share of rows without a value of some feature."""
    lacking = []
    for column in columns:
        if column.kind == "feature":
            own = cells[column.name]
            lacking.append(own.empty if column.values else np.isnan(own.numbers))
    if not lacking or not len(lacking[0]):
        return 0.0
    return float(np.any(lacking, axis=0).mean())


def _time_columns(cells: Mapping[str, _Cells]) -> list[str]:
    """The column of times, or the columns that make up one, such as a date and a time of day."""
    parts = _parts_of_time(cells)
    # Year, month and day, or year and day of the year.
    if len(parts) >= 3 or (len(parts) == 2 and is_day_of_year(parts[1])):
        return _with_time_of_day(parts, cells) if len(parts) == 3 else parts
    # Those that are named as a time before others.
    for name in sorted(cells, key=lambda name: not is_named("time", name)):
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


def _with_time_of_day(day: Sequence[str], cells: Mapping[str, _Cells]) -> list[str]:
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


def _unnamed_parts(cells: Mapping[str, _Cells]) -> list[str]:
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


def _parts_of_time(cells: Mapping[str, _Cells]) -> list[str]:
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


def _hours_beside(date: str, cells: Mapping[str, _Cells]) -> list[str]:
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


def _are_times(cells: _Cells, by_name: bool) -> bool:
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


def _is_clock(cells: _Cells) -> bool:
    # Two parts with a point are a number: 18.30.
    if not cells.texts or cells.number_share >= 1 - TIMES_SHARE:
        return False
    clocks = sum(bool(_CLOCK.fullmatch(text)) for text in cells.texts)
    return clocks >= TIMES_SHARE * len(cells.texts)


def _client_column(cells: Mapping[str, _Cells], times: Sequence[str]) -> str | None:
    """The column that names clients.

    Its name says so, and it has few values, which are whole numbers or texts.
    """
    for name, column in cells.items():
        if name in times or not is_named("client", name):
            continue
        numbers = column.numbers[np.isfinite(column.numbers)]
        # Names such as area and line are those of measured quantities as well, which have decimals.
        are_whole = bool((numbers == np.round(numbers)).all())
        values = len(set(column.texts))
        # An id that hardly ever occurs twice names rows, not clients.
        come_back = len(column.texts) >= 5 * values
        # A reading with an empty cell would belong to no client.
        is_whole = len(column.texts) == len(column.all_texts)
        if are_whole and come_back and is_whole and 2 <= values <= CLIENTS_MAX:
            return name
    return None


def _check_wide(
    cells: Mapping[str, _Cells], client: tuple[str, _Cells] | None, sample: Sample
) -> None:
    """Raises `SettingsError` for a long table, or for messages of one quantity each.

    That is one column of values, of the quantities that another column names. `cells` has neither
    times nor clients; `client`: the column of clients that was found by its name.
    """
    numeric = []
    for name, column in cells.items():
        # A second column of times is no value.
        if column.number_share >= LONG_SHARE and not is_named("time", name):
            numeric.append(name)
    named = {name: column for name, column in cells.items() if name not in numeric}
    all_cells = dict(cells)
    if client is not None:
        named[client[0]] = all_cells[client[0]] = client[1]
    for quantities in _names_of_quantities(named, client):
        rows_of: dict[str, list[int]] = defaultdict(list)
        for row, quantity in enumerate(all_cells[quantities].all_texts):
            rows_of[quantity].append(row)
        values = [name for name in numeric if _varies(cells[name].numbers, rows_of.values())]
        values.sort(key=len)
        # A raw value and the one that people read are one value.
        are_values = all(_VALUES.fullmatch(_end_of(name)) for name in values)
        if not values or len(rows_of) < 2 or (len(values) > 1 and not are_values):
            continue
        if not _QUANTITIES.fullmatch(_end_of(quantities)):
            is_value = _VALUES.fullmatch(_end_of(values[0])) is not None
            are_called_so = _are_called_as_quantities(rows_of)
            is_apart = _explained(cells[values[0]].numbers, rows_of.values()) > EXPLAINED_MIN
            # Clients by their name may be rooms, of which one is colder.
            is_client = client is not None and quantities == client[0]
            if not is_value or not (are_called_so or (is_apart and not is_client)):
                continue
        takes, page = _WIDE[sample.noun]
        raise SettingsError(
            f"{sample.where}: a {sample.noun} has one value, in {values[0]}, of what {quantities}"
            f" names. shoal takes {takes} for each quantity: see {page}; if it names devices that"
            f" all measure the same, give --client-column {quantities}"
        )


_WIDE = {
    "row": ("rows with a column", '"Long tables" in docs/how-to/own-data.md'),
    "message": ("messages with a field", '"Messages of one quantity" in docs/reference/doors.md'),
}
"""what is looked at -> how shoal takes it, and the page with the way to make it so"""


def _names_of_quantities(
    named: Mapping[str, _Cells], client: tuple[str, _Cells] | None
) -> list[str]:
    """The columns that may name quantities, the most likely ones first."""
    sure = [name for name in named if _QUANTITIES.fullmatch(_end_of(name))]
    others = []
    for name, column in named.items():
        is_so_called = _MAY_BE_QUANTITIES.fullmatch(_end_of(name)) is not None
        is_client = client is not None and name == client[0]
        if name not in sure and (is_so_called or is_client):
            texts = set(column.texts)
            if 2 <= len(texts) <= QUANTITIES_MAX:
                others.append((not _are_called_as_quantities(texts), name))
    return [*sure, *(name for _, name in sorted(others))]


def _are_called_as_quantities(texts: Collection[str]) -> bool:
    return sum(_QUANTITY.match(text) is not None for text in texts) >= len(texts) / 2


def _explained(numbers: Floats, groups: Iterable[Sequence[int]]) -> float:
    """Share of the variance of numbers that lies between the groups of rows."""
    finite = numbers[np.isfinite(numbers)]
    between = 0.0
    for rows in groups:
        own = numbers[rows][np.isfinite(numbers[rows])]
        if len(own):
            between += len(own) * (float(own.mean()) - float(finite.mean())) ** 2
    # The variance of numbers that are all alike is 0; so is then the share, and not 0 / 0.
    return between / max(len(finite) * float(finite.var()), 1e-300)


def _end_of(path: str) -> str:
    """The last part of a name of a column or of a path, in lower case."""
    return path.replace('"', "").rpartition(".")[2].lower().strip("# _")


def _varies(numbers: Floats, groups: Iterable[Sequence[int]]) -> bool:
    """Whether numbers differ within a group of rows, unlike the number of a series."""
    for rows in groups:
        finite = numbers[rows][np.isfinite(numbers[rows])]
        if len(finite) and np.ptp(finite) > 0:
            return True
    return False


def _codes(columns: Mapping[str, _Cells]) -> dict[str, tuple[float, ...]]:
    """The numbers that stand for "no value" in each column: known codes, far from all values."""
    return {name: _codes_in(column.numbers) for name, column in columns.items()}


def _codes_in(numbers: Floats) -> tuple[float, ...]:
    values = numbers[np.isfinite(numbers)]
    is_huge = np.abs(values) >= HUGE
    # A column may hold several codes: none of them may count for the range of the values.
    rest = values[~np.isin(values, CODES) & ~is_huge]
    if len(rest) < CODE_VALUES_MIN:
        return ()
    found = set()
    # Of values that are all alike the range is 0, and every code would be far from them.
    spread = float(np.ptp(rest)) or abs(float(rest[0])) or 1.0
    for code in (*CODES, *np.unique(values[is_huge]).tolist()):
        distance = max(float(rest.min()) - code, code - float(rest.max()))
        cells = int((values == code).sum())
        is_far = cells >= CODE_CELLS_MIN and distance > CODE_GAP * spread
        # -1 may be a value that is only rare.
        is_beyond = cells > 0 and code != -1.0 and distance > CODE_GAP_OF_ONE * spread
        if is_far or is_beyond:
            found.add(code)
    return tuple(sorted(found))


def _shared_codes(
    codes: Mapping[str, Sequence[float]], columns: Mapping[str, _Cells]
) -> tuple[tuple[float, ...], dict[str, list[float]]]:
    """The codes that no other column may have as a value, and column -> those that one may.

    999 is no value of a temperature, and a pressure all the same.
    """
    own: dict[str, list[float]] = defaultdict(list)
    shared = set()
    for code in sorted(set().union(*codes.values())):
        with_code = [name for name in codes if code in codes[name]]
        others = [columns[name].numbers for name in columns if name not in with_code]
        if not any(map(partial(_is_within, code), others)):
            shared.add(code)
            continue
        for name in with_code:
            own[name].append(code)
    return tuple(sorted(shared)), dict(own)


def _is_within(code: float, numbers: Floats) -> bool:
    """Whether a number is between the smallest and the largest of these."""
    finite = numbers[np.isfinite(numbers)]
    return len(finite) > 0 and bool(finite.min() <= code <= finite.max())


def _na_words(columns: Iterable[_Cells], categories: Collection[str]) -> tuple[str, ...]:
    """The words that stand for "no value" among numbers, such as "n/a": short, no number.

    `categories`: the values of categories, each of which is one.
    """
    words: Counter[str] = Counter()
    for column in columns:
        # The words of a column of texts stand for what they say.
        if len(column.numbers) and np.isfinite(column.numbers).mean() >= 1 - MISSING_MAX:
            words.update(column.words)
    na_words = []
    for word, cells in words.items():
        if cells < WORD_CELLS_MIN or len(word) > WORD_CHARS_MAX or word in categories:
            continue
        # A spreadsheet writes errors as #DIV/0!, and <5 is below what an instrument can measure. A
        # digit first may be a number in a form that was not understood.
        is_word = word[0].isalpha() or not any(map(str.isdigit, word))
        if is_word or word.startswith(("#", "<", ">")):
            na_words.append(word)
    return tuple(sorted(na_words))


def _column(name: str, cells: _Cells, times: Sequence[str], client: str | None) -> Column:
    examples = cells.texts[:3]
    if name in times:
        reason = "the time" if len(times) == 1 else "a part of the time"
        return Column(name, "time", reason, examples)
    if name == client:
        return Column(name, "client", f"names {len(set(cells.texts))} clients", examples)
    # Before categories, as classes are few texts that come back often, too.
    if _NAMES["label"].fullmatch(name.lower().strip()):
        return Column(name, "label", "a class, by its name; left out", examples)
    numbers = cells.numbers[np.isfinite(cells.numbers)]
    values = _categories(cells, numbers)
    if values:
        return _category(name, cells, values)
    reason = _left_out(cells, numbers)
    if is_named("time", name) and cells.texts and reason != NO_CELL:
        reason = _unread_time(cells, numbers, times) or reason
    if reason:
        return Column(name, "left out", reason, examples)
    return _feature_of_numbers(name, examples, numbers)


def _category(name: str, cells: _Cells, values: tuple[str, ...]) -> Column:
    """A column of few texts: a feature, unless it names devices and so would make clusters of
    them."""
    examples = cells.texts[:3]
    empty = float(cells.empty.mean())
    if empty and is_named("client", name):
        reason = f"named as what names clients, and {empty:.0%} of its cells are empty"
        return Column(name, "left out", reason, examples)
    # Half a step around the places 0, 1, ... of the values.
    high = len(values) - 0.5
    return Column(name, "feature", "few texts", examples, values=values, low=-0.5, high=high)


def _feature_of_numbers(name: str, examples: tuple[str, ...], numbers: Floats) -> Column:
    bare_name, unit = unit_of(name)
    behind = {unit_behind(text) for text in examples}
    if not unit and len(behind) == 1:
        unit = behind.pop()
    period = period_of(bare_name, unit, numbers)
    if period:
        low = cut_of(numbers, period)
        step = step_of(numbers, fewest=TURNS_MIN)
        return Column(
            name, "feature", "numbers", examples, unit, low, low + period, step=step, period=period
        )
    low, high = bounds_of(numbers, unit)
    outside = float(((numbers < low) | (numbers > high)).mean())
    return Column(
        name, "feature", "numbers", examples, unit, low, high, outside, step_of(numbers), numbers
    )


def _categories(cells: _Cells, numbers: Floats) -> tuple[str, ...]:
    """The values of a column of texts that are few and come back often; () for any other column."""
    counts = Counter(cells.texts)
    if len(numbers) or not 2 <= len(counts) <= CATEGORY_VALUES_MAX:
        return ()
    if len(cells.texts) < (1 - MISSING_MAX) * len(cells.numbers):
        return ()
    if min(counts.values()) < CATEGORY_CELLS_MIN or max(map(len, counts)) > CATEGORY_CHARS_MAX:
        return ()
    return tuple(sorted(counts))


NO_CELL = "no cell has a value"


def _unread_time(cells: _Cells, numbers: Floats, times: Sequence[str]) -> str:
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


def _left_out(cells: _Cells, numbers: Floats) -> str:
    """Why a column is no feature; "" for one that is. `numbers` are its finite ones."""
    if not len(numbers):
        return _no_number(cells)
    if len(numbers) < (1 - MISSING_MAX) * len(cells.numbers):
        return f"{1 - len(numbers) / max(1, len(cells.numbers)):.0%} of its cells have no number"
    if np.ptp(numbers) == 0:
        return "the same value everywhere"
    return "counts the rows" if _counts_rows(cells) else ""


_LIKE_A_TIME = re.compile(r"(?=.*(?<!\d)(19|20)\d\d(?!\d))(?=.*\d{1,2}[:.h]\d{2})")
"""a text with a year and a time of day"""
_SEVERAL_VALUES = re.compile(r"[+-]?\d+([.,]\d+)?(\s*[/;|±]\s*[+-]?\d+([.,]\d+)?)+")
"""a cell such as 120/80 or 21.5±0.3"""


def _no_number(cells: _Cells) -> str:
    """Why none of the cells of a column is a number."""
    for reason, is_so in _KINDS_OF_TEXTS:
        if cells.texts and all(map(is_so, cells.texts)):
            return reason
    return "text" if cells.texts else NO_CELL


def _is_json(text: str) -> bool:
    return text.startswith(("{", "["))


def _has_several_values(text: str) -> bool:
    return _SEVERAL_VALUES.fullmatch(text) is not None and not is_moment(text)


_KINDS_OF_TEXTS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    (
        "JSON: put its fields into columns, or let shoal init look at the topic that it came from",
        _is_json,
    ),
    (NO_CELL, is_no_value),
    ("two values in a cell: put the first part into a column of its own", TWO_VALUES.fullmatch),
    ("several values in a cell: put each into a column of its own", _has_several_values),
    ("a time that is not that of the readings", is_moment),
    ("reads like a time, in no form that is known: give --date-format", _LIKE_A_TIME.match),
    (
        "numbers with a unit behind, which makes them texts: send the numbers alone",
        unit_behind,
    ),
)
"""why texts are no numbers -> whether one of them is of that kind"""


def _rows_of_clients(cells: Mapping[str, _Cells], client: str | None) -> list[list[int]]:
    """The rows of each client with several; none where one client has all."""
    if client is None:
        return []
    rows: dict[str, list[int]] = defaultdict(list)
    for row, text in enumerate(cells[client].all_texts):
        rows[text].append(row)
    return [own for own in rows.values() if len(own) >= ROWS_OF_CLIENT_MIN]


def _no_measurement(name: str, cells: _Cells, groups: Sequence[Sequence[int]]) -> str:
    """Why a column of changing values is no measured quantity; "" for one that may be."""
    end = unit_of(name.replace('"', "").strip("# "))[0]
    # As a feature it would make clusters of clients, whatever they measure.
    if len(groups) > 1 and all(len({cells.all_texts[row] for row in own}) == 1 for own in groups):
        return "the same within each client"
    parts = [part.strip() for part in re.split(r"[.:/]", end)]
    last = parts[-1].lower()
    # A path may say it in two parts: battery.percent.
    is_of_device = _OF_DEVICES.fullmatch(last) or _OF_DEVICES.fullmatch(
        "_".join(parts[-2:]).lower()
    )
    digits = {text.removesuffix(".0") for text in cells.texts}
    reasons = {
        "a place, by its name": _OF_PLACES.fullmatch(last),
        "a counter, by its name": _OF_COUNTERS.fullmatch(last),
        "the state of the device or its link, by its name, not what it measures": (
            is_of_device or (_OF_RADIO.fullmatch(last) and _is_radio(cells))
        ),
        "how sure a device is of its values, by its name": _OF_CERTAINTY.fullmatch(last),
        "an identifier, by its name": _OF_IDENTIFIERS.fullmatch(parts[-1]) and _are_whole(cells),
        # Nothing else consists of days that there are, and of several.
        "dates that are not the time of the readings": (
            len(digits) > 1 and all(map(is_date_of_digits, digits))
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    return _counts_up(cells, groups)


def _are_whole(cells: _Cells) -> bool:
    numbers = cells.numbers[np.isfinite(cells.numbers)]
    return bool((numbers == np.round(numbers)).all())


def _is_radio(cells: _Cells) -> bool:
    """Whether numbers are frequencies of a radio channel, in Hz or in MHz."""
    numbers = cells.numbers[np.isfinite(cells.numbers)]
    megahertz = numbers / 1e6 if numbers.min() > 1e6 else numbers
    return bool(((megahertz > 160) & (megahertz < 6000)).all()) and len(np.unique(numbers)) < 100


def _counts_up(cells: _Cells, groups: Sequence[Sequence[int]]) -> str:
    """Whether a column counts up, for each client or for several that take turns, as a reason."""
    # Between the rows that are spread over the file others are left out, and steps mean nothing.
    head = cells.head
    series = [head[[row for row in own if row < len(head)]] for own in groups] or [head]
    # It never comes back to a value, so that clusters would be spans of time.
    if all(map(_rises, series)):
        return "a counter"
    is_whole = bool((head == np.round(head)).all())
    by_ones = all(map(_counts_by_ones, series))
    # Not two: a state that changes once is no counter.
    if is_whole and by_ones and min(len(np.unique(own)) for own in series) > 2:
        return "counts blocks of rows"
    for turns in range(2, TURNS_MAX + 1):
        if all(_rises(head[first::turns]) for first in range(turns)):
            return f"a counter of {turns} devices in turn"
    if all(map(_drains, series)):
        return "falls all the time, as the charge of a battery"
    return ""


def _counts_by_ones(numbers: Floats) -> bool:
    steps = np.diff(numbers)
    return bool(((steps == 0) | (steps == 1)).all())


def _drains(numbers: Floats) -> bool:
    """Whether numbers hardly ever change but by going down."""
    numbers = numbers[np.isfinite(numbers)]
    changes = np.diff(numbers)
    changes = changes[changes != 0]
    return len(changes) >= CHANGES_MIN and bool((changes < 0).mean() >= RISING_SHARE)


def _rises(numbers: Floats) -> bool:
    numbers = numbers[np.isfinite(numbers)]
    steps = np.diff(numbers)
    if len(steps) < ROWS_COUNTED:
        return False
    # It begins again at a restart.
    # What hardly ever changes does not fall either: half of the steps have to go up.
    return bool((steps >= 0).mean() >= RISING_SHARE and (steps > 0).mean() >= 0.5)


def _counts_rows(cells: _Cells) -> bool:
    # It may begin again for each client: nearly all steps are the same, not all of them.
    steps = np.diff(cells.head)
    if len(steps) < ROWS_COUNTED:
        return False
    usual = np.median(steps)
    return bool(usual > 0 and (steps == usual).mean() > 0.9)


def _interval(
    sample: Sample, times: Sequence[str], client: str | None, options: TimeOptions
) -> tuple[float | None, str | None, bool]:
    """The usual seconds between two readings of a client, the order of dates, and whether they are
    days alone that several readings have.

    The first two are None without times.
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
    for row, of_time in zip(sample.rows[: sample.head], cells, strict=False):
        time = read(of_time)
        if time is None:
            continue
        name = "" if client_place is None else str(row[client_place])
        # Equal and earlier times are repeats and late rows, and show nothing of the usual interval.
        if name in last and time > last[name]:
            gaps.append(time - last[name])
        alike += time == last.get(name)
        last[name] = time
    # Not the mean, which one night without readings would move.
    interval = float(np.median(gaps)) if gaps else None
    # Of dates without a time of day only the mean shows how often readings come.
    if interval is not None and interval >= DAY_S and alike > len(gaps):
        interval *= len(gaps) / (len(gaps) + alike)
        return interval, read.order, True
    return interval, read.order, False
