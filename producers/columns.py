"""What the columns of data hold: times, clients, features, and what is left out, with the reason.

Everything is found from names and a few thousand rows, which are kept nowhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.privacy.imperfect import step_of
from shoal.producers.column_names import NAMES, is_named
from shoal.producers.column_types import Cells, Column, Kind, Sample, Understood
from shoal.producers.features import bounds_of, cut_of, period_of, unit_of
from shoal.producers.files.dialect import unit_behind
from shoal.producers.files.split import CLIENTS_MAX
from shoal.producers.files.times import TimeOptions
from shoal.producers.long_tables import check_wide
from shoal.producers.measured_columns import copy_of, counts_rows, no_measurement, rows_of_clients
from shoal.producers.missing_values import (
    MISSING_MAX,
    code_text,
    codes_among,
    codes_of,
    missing_share,
    na_words_in,
    shared_codes,
)
from shoal.producers.quality_used import Qualities, used_qualities
from shoal.producers.text_columns import NO_CELL, no_number
from shoal.producers.time_columns import (
    find_time_columns,
    parts_of_time,
    read_by_codes,
    unread_time,
    usual_interval,
)

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
    cells: dict[str, Cells] = {}
    for place, name in enumerate(sample.names):
        if name == person:
            continue
        of_column = [row[place] for row in sample.rows]
        cells[name] = Cells(of_column, sample.number, sample.head)
    time_columns = list(time) or read_by_codes(cells, times) or find_time_columns(cells)
    client_column = client or _client_column(cells, time_columns)
    measured = {
        name: column
        for name, column in cells.items()
        if name not in time_columns and name != client_column
    }
    qualities = used_qualities(cells, measured, bad)
    for name, quality in qualities.used.items():
        for feature in quality.features or measured:
            measured[feature].numbers[qualities.bad_rows[name]] = math.nan
    codes = codes_among(na, measured) or codes_of(measured)
    for name, column in measured.items():
        column.numbers[np.isin(column.numbers, codes[name])] = math.nan
    shared, own = shared_codes(codes, measured)
    # Only now: a code would be taken for a value that differs.
    by_name = client_column if client is None else None
    check_wide(measured, (by_name, cells[by_name]) if by_name else None, sample)
    columns = _described(cells, qualities, time_columns, client_column)
    if person:
        columns.append(Column(person, "person", "whom the reading concerns; kept at the client"))
    features = [column.name for column in columns if column.kind == "feature"]
    quality_columns = qualities.by_feature(features)
    clients: tuple[str, ...] = ()
    if client_column:
        clients = tuple(dict.fromkeys(cells[client_column].texts))
    categories = {text for column in columns for text in column.values}
    words = () if na else na_words_in(measured.values(), categories)
    interval, order, are_days = usual_interval(sample, time_columns, client_column, times)
    return Understood(
        tuple(columns),
        len(sample.rows),
        clients,
        interval,
        na_values=(*words, *map(code_text, shared)),
        na_values_of={name: tuple(map(code_text, codes)) for name, codes in own.items()},
        missing=missing_share(columns, cells),
        order=order,
        are_days=are_days,
        quality=quality_columns,
        bad_quality=qualities.written if quality_columns else (),
    )


def _described(
    cells: Mapping[str, Cells], qualities: Qualities, times: Sequence[str], client: str | None
) -> list[Column]:
    """What each column holds; `times` and `client`: the columns of the time and of clients."""
    columns = []
    groups = rows_of_clients(cells, client)
    date = [name for name in parts_of_time(cells)[:3] if name not in times]
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
            reason = no_measurement(name, column, groups)
            if reason:
                described = Column(name, "left out", reason, described.examples)
        columns.append(described)
    return _once(columns, cells)


def _once(columns: Sequence[Column], cells: Mapping[str, Cells]) -> list[Column]:
    """The columns, without those of the same numbers as one before, and temperatures in °F that are
    there in °C: they would count twice."""
    kept = []
    features = [column.name for column in columns if column.kind == "feature"]
    for column in columns:
        reason = ""
        if column.name in features:
            reason = copy_of(column.name, features, cells)
        if reason:
            column_left_out = Column(column.name, "left out", reason, column.examples)
            kept.append(column_left_out)
        else:
            kept.append(column)
    return kept


def _client_column(cells: Mapping[str, Cells], times: Sequence[str]) -> str | None:
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


def _column(name: str, cells: Cells, times: Sequence[str], client: str | None) -> Column:
    examples = cells.texts[:3]
    if name in times:
        reason = "the time" if len(times) == 1 else "a part of the time"
        return Column(name, "time", reason, examples)
    if name == client:
        return Column(name, "client", f"names {len(set(cells.texts))} clients", examples)
    # Before categories, as classes are few texts that come back often, too.
    if NAMES["label"].fullmatch(name.lower().strip()):
        return Column(name, "label", "a class, by its name; left out", examples)
    numbers = cells.numbers[np.isfinite(cells.numbers)]
    values = _categories(cells, numbers)
    if values:
        return _category(name, cells, values)
    reason = _left_out(cells, numbers)
    if is_named("time", name) and cells.texts and reason != NO_CELL:
        reason = unread_time(cells, numbers, times) or reason
    if reason:
        return Column(name, "left out", reason, examples)
    return _feature_of_numbers(name, examples, numbers)


def _category(name: str, cells: Cells, values: tuple[str, ...]) -> Column:
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


def _categories(cells: Cells, numbers: Floats) -> tuple[str, ...]:
    """The values of a column of texts that are few and come back often; () for any other column."""
    counts = Counter(cells.texts)
    if len(numbers) or not 2 <= len(counts) <= CATEGORY_VALUES_MAX:
        return ()
    if len(cells.texts) < (1 - MISSING_MAX) * len(cells.numbers):
        return ()
    if min(counts.values()) < CATEGORY_CELLS_MIN or max(map(len, counts)) > CATEGORY_CHARS_MAX:
        return ()
    return tuple(sorted(counts))


def _left_out(cells: Cells, numbers: Floats) -> str:
    """Why a column is no feature; "" for one that is. `numbers` are its finite ones."""
    if not len(numbers):
        return no_number(cells)
    if len(numbers) < (1 - MISSING_MAX) * len(cells.numbers):
        return f"{1 - len(numbers) / max(1, len(cells.numbers)):.0%} of its cells have no number"
    if np.ptp(numbers) == 0:
        return "the same value everywhere"
    return "counts the rows" if counts_rows(cells) else ""
