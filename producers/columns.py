"""What the columns of data hold: times, clients, features with their units, and what is left out,
with the reason.

Everything is found from names and a few thousand rows, which are kept nowhere.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.privacy.imperfect import step_of
from shoal.producers.features import NUMBERED, bounds_of, cut_of, period_of, unit_of
from shoal.producers.files.dialect import unit_behind
from shoal.producers.files.parsing import number_of
from shoal.producers.files.split import CLIENTS_MAX
from shoal.producers.files.times import TimeOptions, TimeReader, time_reader

Kind = Literal["feature", "time", "client", "label", "left out"]

_THINGS = "device|sensor|station|machine|client|room|mote|unit|user|site|node|engine"
_NAMES: Mapping[Kind, re.Pattern[str]] = {
    "time": re.compile(
        r"((received|reported|recorded|measured|mess|log|obs|utc|local)[_ -]?)?"
        r"(date|time|datum|zeit)([_ -]?(utc|local))?|"
        r"timestamp|zeitstempel|date[_ -]?time|uhrzeit|ts|epoch|heure|fecha|hora"
    ),
    "client": re.compile(
        rf"({_THINGS})([_ -]?(id|name|no|nr))?|(dev|device)[_ -]?(eui|addr)|plant|location|place|house|building|"
        r"hall|line|area|"
        r"raum|ger(ä|ae)t|anlage|standort|werk|maschine|halle|linie|bereich"
    ),
    "label": re.compile(r"label|class|target|klasse|y|changepoint|anomaly"),
}
"""names of columns, in lower case"""


def is_named(kind: Kind, name: str) -> bool:
    """Whether a column of that name, or a field at the end of that path, is usually of this kind."""
    parts = unit_of(NUMBERED.sub("", " ".join(name.replace('"', "").split())))[0].split(".")
    return any(
        _NAMES[kind].fullmatch("_".join(parts[first:]).lower().strip("# _"))
        for first in range(len(parts))
    )


_QUANTITIES = re.compile(
    r"(metric|variable|parameter|quantity|entity|signal|channel|field|measurement|property|attribute|register|"
    r"kanal|messgr(ö|oe)(ß|ss)e|messstelle)([_ -]?(id|name|no|nr))?|(tag|point|series)[_ -]?(id|name|no|nr)"
)
"""names of a column that names the quantity of a row's only value, in lower case"""
LONG_SHARE = 0.3
"""share of a column's cells that are numbers where it may hold the values of several quantities:
some are texts"""

_PARTS_OF_TIME = ("year", "month", "day", "hour", "minute", "second")
_CLOCK = re.compile(r"\d{1,2}[:.]\d{2}([:.]\d{2})?(\.\d+)?(\s*[AaPp][Mm])?")
TIMES_SHARE = 0.95
"""share of a column's cells that are times where it is a column of times"""
NUMBERS_SHARE = 0.9
"""share of a column's cells that are numbers where it is a feature: a few words for "no value" are
usual"""
MISSING_MAX = 0.5
"""share of rows without a value from which on a feature is left out"""
CODES = (-1.0, -99.0, -999.0, -9999.0, -99999.0, -200.0, 999.0, 9999.0, 99999.0, 999999.0, 6999.0)
"""numbers that are in use for "no value"; one is taken for it only where it lies far from all other
values"""
CODE_GAP = 0.25
"""distance of such a number from the nearest other value, as a share of the range of the others"""

TURNS_MIN = 4
"""fewest values of a coarse feature on a circle: weekdays are no states"""
CATEGORY_VALUES_MAX = 8
CATEGORY_CELLS_MIN = 10
CATEGORY_CHARS_MAX = 32
"""most texts of a column that is a category, fewest cells with each of them, and most characters of
one"""


WORD_CHARS_MAX = 12
WORD_CELLS_MIN = 3
"""most characters of a word that stands for "no value" among numbers, and fewest cells with it"""


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
    """What the data hold as a whole."""

    columns: tuple[Column, ...]
    rows: int
    """rows that were looked at"""
    clients: tuple[str, ...] = ()
    """texts of the column of clients, in the order in which they come"""
    interval_s: float | None = None
    """usual seconds between two readings of a client; None without times"""
    na_values: tuple[str, ...] = ()
    """cells that stand for "no value": words, and numbers"""
    missing: float = 0.0
    """share of rows without a value of some feature"""
    order: str | None = None
    """order of day, month and year in its dates; None where nothing has to be known of it"""

    def of(self, kind: Kind) -> tuple[Column, ...]:
        """The columns of that kind, in the order of the data."""
        return tuple(column for column in self.columns if column.kind == kind)


class _Cells:
    """The cells of one column."""

    def __init__(self, cells: Sequence[Any], number: Callable[[Any], Any], head: int) -> None:
        self.all_texts = tuple(map(_text_of, cells))
        self.empty = np.array([not text for text in self.all_texts], dtype=np.bool_)
        self.texts = tuple(filter(None, self.all_texts))
        read = [number(cell) for cell in cells]
        # As they are in the file: a number that is refused is read as another text.
        self.words = Counter(
            str(cell).strip() for cell, n in zip(cells, read, strict=True) if isinstance(n, str)
        )
        """cells that are no numbers -> how many"""
        self.numbers = np.array(
            [n if isinstance(n, float) and math.isfinite(n) else math.nan for n in read]
        )
        """(n,) NaN where a cell is no number"""
        self.head = self.numbers[:head]

    @property
    def number_share(self) -> float:
        """Share of the cells with something in them that are numbers."""
        return float(np.isfinite(self.numbers).sum()) / max(1, len(self.texts))


def _text_of(cell: Any) -> str:
    # JSON and the values of categories write true, Python writes True.
    return (
        "" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell).strip()
    )


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


def understand(
    sample: Sample,
    times: TimeOptions,
    time: Sequence[str] = (),
    client: str | None = None,
    na: Sequence[str] = (),
) -> Understood:
    """What the columns of the data hold.

    `time`, `client`, `na`: columns of the time, the column of clients and cells without a value,
    where a person named them.
    Raises `SettingsError` where a time may be two things, and where each row has the value of one
    quantity only.
    """
    names = sample.names
    rows = sample.rows
    cells = {
        name: _Cells([row[place] for row in rows], sample.number, sample.head)
        for place, name in enumerate(names)
    }
    times_found = list(time) or _time_columns(cells)
    client_found = client or _client_column(cells, times_found)
    others = {*times_found, client_found}
    said = tuple(n for text in na if isinstance(n := number_of(text), float))
    codes = said or _codes(cells[name].numbers for name in cells if name not in others)
    for name, column in cells.items():
        if name not in others:
            column.numbers[np.isin(column.numbers, codes)] = math.nan
    _check_wide(
        {name: column for name, column in cells.items() if name not in others}, sample.where
    )
    columns = [
        _column(name, column, times_found, client_found) for name, column in cells.items() if name
    ]
    features = [column.name for column in columns if column.kind == "feature"]
    of_texts = {column.name for column in columns if column.values}
    lacking = [
        cells[name].empty if name in of_texts else np.isnan(cells[name].numbers)
        for name in features
    ]
    missing = float(np.any(lacking, axis=0).mean()) if lacking and rows else 0.0
    clients = tuple(dict.fromkeys(cells[client_found].texts)) if client_found else ()
    words = () if na else _na_words(cells[name] for name in cells if name not in others)
    written = (*words, *(f"{code:g}" for code in codes))
    interval, order = _interval(sample, times_found, client_found, times)
    return Understood(tuple(columns), len(rows), clients, interval, written, missing, order)


def _time_columns(cells: Mapping[str, _Cells]) -> list[str]:
    """The column of times, or the columns that make up one, such as a date and a time of day."""
    lower = {name.lower(): name for name in cells}
    parts = [lower[part] for part in _PARTS_OF_TIME if part in lower]
    # Year, month and day.
    if len(parts) >= 3:
        return parts
    named = [name for name in cells if is_named("time", name)]
    for name in (*named, *(name for name in cells if name not in named)):
        if not _are_times(cells[name], name in named):
            continue
        if any(re.search(r"\d[ T]\s*\d{1,2}[:.h]\d{2}", text) for text in cells[name].texts[:100]):
            return [name]
        clock = next((other for other in cells if other != name and _is_clock(cells[other])), None)
        return [name] if clock is None else [name, clock]
    return []


def _are_times(cells: _Cells, by_name: bool) -> bool:
    """Whether these cells are times. Numbers are only where the name of their column says so
    (`by_name`)."""
    if not cells.texts:
        return False
    if cells.number_share > 1 - TIMES_SHARE:
        numbers = cells.numbers[np.isfinite(cells.numbers)]
        # Epochs of this century, in s, ms, µs or ns, or dates of digits alone.
        return by_name and bool(
            ((numbers >= 1e9) | ((numbers >= 19000101) & (numbers <= 21001231))).all()
        )
    readers = [TimeReader(TimeOptions(), order) for order in ("day-first", "month-first")]
    read = sum(any(reader([text]) is not None for reader in readers) for text in cells.texts)
    return read >= TIMES_SHARE * len(cells.texts)


def _is_clock(cells: _Cells) -> bool:
    # Two parts with a point are a number: 18.30.
    found = sum(bool(_CLOCK.fullmatch(text)) for text in cells.texts)
    return (
        cells.number_share < 1 - TIMES_SHARE
        and bool(cells.texts)
        and found >= TIMES_SHARE * len(cells.texts)
    )


def _client_column(cells: Mapping[str, _Cells], times: Sequence[str]) -> str | None:
    """The column that names clients: its name says so, and it has few values, which are whole
    numbers or texts."""
    for name, column in cells.items():
        if name in times or not is_named("client", name):
            continue
        numbers = column.numbers[np.isfinite(column.numbers)]
        values = len(set(column.texts))
        if (
            1 <= values <= CLIENTS_MAX
            and len(column.texts) >= 5 * values
            and (numbers == np.round(numbers)).all()
        ):
            return name
    return None


def _check_wide(cells: Mapping[str, _Cells], where: str) -> None:
    """Raises `SettingsError` for a long table: one column of values, of the quantities that another
    column names.

    `cells` has neither times nor clients.
    """
    numeric = [name for name, column in cells.items() if column.number_share >= LONG_SHARE]
    names = [
        name
        for name in cells
        if name not in numeric and _QUANTITIES.fullmatch(name.lower().strip("# _"))
    ]
    of_name = defaultdict(list)
    for place, name in enumerate(cells[names[0]].all_texts if names else ()):
        of_name[name].append(place)

    def varies(column: str) -> bool:
        """Whether it is more than the number of a series, the same in all rows of a name."""
        found = (cells[column].numbers[places] for places in of_name.values())
        return any(np.ptp(numbers) > 0 for one in found if len(numbers := one[np.isfinite(one)]))

    values = [column for column in numeric if varies(column)]
    if len(values) == 1 and len(of_name) > 1:
        raise SettingsError(
            f"{where}: a row has one value, in {values[0]}, of what {names[0]} names. shoal takes rows with a column "
            'for each quantity: see "Long tables" in docs/how-to/own-data.md; if it names devices that all measure the '
            f"same, give --client-column {names[0]}"
        )


def _codes(columns: Iterable[Floats]) -> tuple[float, ...]:
    """The numbers that stand for "no value" in some column: known codes, far from all other values
    there."""
    found: set[float] = set()
    for numbers in columns:
        values = numbers[np.isfinite(numbers)]
        for code in CODES:
            rest = values[~np.isin(values, CODES)]
            if len(rest) < 10 or (values == code).sum() < 3:
                continue
            spread = float(np.ptp(rest)) or abs(float(rest[0])) or 1.0
            distance = max(float(rest.min()) - code, code - float(rest.max()))
            if distance > CODE_GAP * spread:
                found.add(code)
    return tuple(sorted(found))


def _na_words(columns: Iterable[_Cells]) -> tuple[str, ...]:
    """The words that stand for "no value" among numbers, such as "n/a" and "-": short, without
    digits, and repeated."""
    words: Counter[str] = Counter()
    for column in columns:
        if column.number_share >= NUMBERS_SHARE:
            words.update(column.words)
    return tuple(
        sorted(
            word
            for word, cells in words.items()
            if cells >= WORD_CELLS_MIN
            and len(word) <= WORD_CHARS_MAX
            # A spreadsheet writes errors as #DIV/0!
            and (word.startswith("#") or not any(map(str.isdigit, word)))
        )
    )


def _column(name: str, cells: _Cells, times: Sequence[str], client: str | None) -> Column:
    examples = cells.texts[:3]
    if name in times:
        return Column(
            name, "time", "the time" if len(times) == 1 else "a part of the time", examples
        )
    if name == client:
        return Column(name, "client", f"names {len(set(cells.texts))} clients", examples)
    if _NAMES["label"].fullmatch(name.lower().strip()):
        return Column(name, "label", "a class, by its name; left out", examples)
    numbers = cells.numbers[np.isfinite(cells.numbers)]
    if values := _categories(cells, numbers):
        return Column(
            name, "feature", "few texts", examples, values=values, low=-0.5, high=len(values) - 0.5
        )
    if reason := _left_out(cells, numbers):
        return Column(name, "left out", reason, examples)
    return _feature_of_numbers(name, examples, numbers)


def _feature_of_numbers(name: str, examples: tuple[str, ...], numbers: Floats) -> Column:
    behind = {unit_behind(text) for text in examples}
    unit = unit_of(name)[1] or (behind.pop() if len(behind) == 1 else "")
    if period := period_of(unit_of(name)[0], unit, numbers):
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
    found = Counter(cells.texts)
    usual = 2 <= len(found) <= CATEGORY_VALUES_MAX and min(found.values()) >= CATEGORY_CELLS_MIN
    if not usual or len(numbers) or len(cells.texts) < (1 - MISSING_MAX) * len(cells.numbers):
        return ()
    return tuple(sorted(found)) if max(map(len, found)) <= CATEGORY_CHARS_MAX else ()


NO_VALUE = frozenset({"nan", "na", "n/a", "null", "none", "-", "--"})
"""cells without a value, in lower case"""
NO_CELL = "no cell has a value"


def _left_out(cells: _Cells, numbers: Floats) -> str:
    """Why a column is no feature; "" for one that is. `numbers` are its finite ones."""
    if not len(numbers):
        if cells.texts and all(text.startswith(("{", "[")) for text in cells.texts):
            return "JSON: put its fields into columns, or let shoal init look at the topic that it came from"
        return "text" if any(text.lower() not in NO_VALUE for text in cells.texts) else NO_CELL
    if len(numbers) < (1 - MISSING_MAX) * len(cells.numbers):
        return f"{1 - len(numbers) / max(1, len(cells.numbers)):.0%} of its cells have no number"
    if np.ptp(numbers) == 0:
        return "the same value everywhere"
    # It may begin again for each client.
    steps = np.diff(cells.head)
    if len(steps) >= 20 and np.median(steps) > 0 and (steps == np.median(steps)).mean() > 0.9:
        return "counts the rows"
    return ""


def _interval(
    sample: Sample, times: Sequence[str], client: str | None, options: TimeOptions
) -> tuple[float | None, str | None]:
    """The usual seconds between two readings of a client, None without times; and the order of
    dates."""
    if not times:
        return None, None
    places = [sample.names.index(name) for name in times]
    cells = [[row[place] for place in places] for row in sample.rows]
    read = time_reader(lambda: cells, options, sample.where)
    who = [str(row[sample.names.index(client)]) if client else "" for row in sample.rows]
    last: dict[str, float] = {}
    gaps: list[float] = []
    for name, found in zip(who[: sample.head], map(read, cells[: sample.head]), strict=True):
        if found is None:
            continue
        # Equal and earlier times are repeats and late rows, and tell nothing of the usual interval.
        if name in last and found > last[name]:
            gaps.append(found - last[name])
        last[name] = found
    return (float(np.median(gaps)) if gaps else None), read.order
