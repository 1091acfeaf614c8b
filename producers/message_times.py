"""Which field of the messages of a topic holds their time, and in which form."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import SettingsError
from shoal.producers.column_names import is_named
from shoal.producers.files.parsing import number_of
from shoal.producers.files.times import (
    ORDERS,
    TimeOptions,
    TimeReader,
    codes_of_digits,
    is_date_of_digits,
    names_zone,
    time_reader,
)
from shoal.producers.messages import time_reader_of

TIMES_SHARE = 0.95
"""share of the messages in which a field is a time where it is that of the messages"""
QUARTER_S = 900.0
ZONE_S_MAX = 50_400.0
"""seconds that a zone is ahead of UTC, at most: times that differ more are of another day"""
NEAR_S = 86_400.0
"""seconds from the arrival within which a field of any name is the time of its message, if it is in
nearly all: no value of a sensor is so by chance"""
SOONEST = 0.9
"""share of the messages that are longer under way, or as long, as those that show a clock"""
STANDS_S = 5.0
"""seconds between the arrivals of two messages of one topic that have one value in a field, from
which on that is not their time, as the minute that a meter last counted"""
_DAY = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}")
"""a date without a time of day"""
DATES_MIN = 10
"""different dates in a field that is the time of a message by them and not by its name"""


class Sampled(NamedTuple):
    """One message that was looked at."""

    topic: str
    fields: Mapping[str, Any]
    """path -> cell; the path is empty where the message is a plain number"""
    arrival: float
    """seconds since 1970"""


def paths_of(messages: Sequence[Sampled]) -> list[str]:
    """The fields of messages, in the order in which they first come."""
    paths: dict[str, None] = {}
    for message in messages:
        paths |= dict.fromkeys(message.fields)
    return list(paths)


def date_format_of(messages: Sequence[Sampled], timezone: str, date_format: str) -> str:
    """The form in which the time of these messages is read, as the setting of the sources has it;
    empty where nothing has to be said of it.

    `timezone`, `date_format`: what a person has said, empty for nothing. A date such as 03/04/2024
    is read in the order that fits all messages; where both do, in the one by which they came to be
    when they arrived. Raises `SettingsError` for a zone or a form that is none.
    """
    if date_format or time_path(messages, time_reader_of(timezone, "")):
        return date_format
    found = []
    for form in [*ORDERS, *_forms_of_digits(messages)]:
        read = time_reader_of(timezone, form)
        path = time_path(messages, read)
        if not path:
            continue
        distances = []
        for message in messages:
            seconds = read([message.fields.get(path)])
            distances.append(math.inf if seconds is None else abs(seconds - message.arrival))
        found.append((float(np.median(distances)), form, path))
    if not found:
        return ""
    distance, form, path = min(found)
    # Of two orders that fit, none is known by the clock where both are of other days, or both of
    # this one.
    others = [other for other, *_ in found if other < NEAR_S]
    if len(found) == 1 or (distance < NEAR_S and len(others) == 1):
        return form
    return _order_shown(path, messages)


def _order_shown(path: str, messages: Sequence[Sampled]) -> str:
    """The order of day and month that the dates in a field show by themselves, as those of files
    do; empty for none."""
    cells = [[message.fields.get(path)] for message in messages]
    try:
        return time_reader(lambda: cells, TimeOptions(), path).order or ""
    except SettingsError:
        return ""


def _forms_of_digits(messages: Sequence[Sampled]) -> list[str]:
    """The forms of the dates of digits, as 20240131134500, among the cells of messages."""
    forms: dict[str, None] = {}
    for message in messages:
        for path, cell in message.fields.items():
            if path and is_named("time", path):
                forms[codes_of_digits(_digits_in(cell))] = None
    return list(filter(None, forms))


def _digits_in(cell: Any) -> str:
    """A cell as text, of a number without its decimal point."""
    return str(cell).removesuffix(".0")


def time_path(messages: Sequence[Sampled], read: TimeReader) -> str:
    """The field with the time of a message: one that is named so, else one of dates.

    It is a time in nearly all messages. Empty for none.
    """
    paths = [path for path in paths_of(messages) if path]
    # A field that is named as a time before one that only looks like it; each in the order of the
    # messages.
    for path in sorted(paths, key=lambda path: not is_named("time", path)):
        cells = [message.fields[path] for message in messages if path in message.fields]
        # All messages of a day would be of one time.
        if all(isinstance(cell, str) and _DAY.fullmatch(cell) for cell in cells):
            continue
        if not is_named("time", path):
            # A number of another name may be anything, and a date that hardly changes is that of a
            # version.
            texts = [cell for cell in cells if isinstance(cell, str)]
            cells = [text for text in texts if not isinstance(number_of(text), float)]
            if len(set(cells)) < min(DATES_MIN, len(messages) / 2):
                continue
        if sum(_is_time(cell, read) for cell in cells) >= TIMES_SHARE * len(messages):
            return path
    for path in paths:
        near = 0
        for message in messages:
            number = number_of(message.fields.get(path))
            seconds = read([number]) if isinstance(number, float) else None
            near += seconds is not None and abs(seconds - message.arrival) < NEAR_S
        if near >= TIMES_SHARE * len(messages) and not _stands_still(path, messages):
            return path
    return ""


def _is_time(cell: Any, read: TimeReader) -> bool:
    # As an epoch 20240131134500 would be a time as well, of another century.
    if not read.has_codes and is_date_of_digits(_digits_in(cell)):
        return False
    seconds = read([cell])
    # A small number is a duration or a counter.
    return seconds is not None and seconds > 1e9


def _stands_still(path: str, messages: Sequence[Sampled]) -> bool:
    """Whether most messages have a value that others of their topic have at another time."""
    arrivals: dict[tuple[str, Any], list[float]] = defaultdict(list)
    for message in messages:
        arrivals[message.topic, message.fields.get(path)].append(message.arrival)
    still = sum(len(group) for group in arrivals.values() if max(group) - min(group) > STANDS_S)
    return still > len(messages) / 2


def sentences_on_zone(messages: Sequence[Sampled], at: str, read: TimeReader) -> list[str]:
    """What the clock shows of times that name no zone: that they are of another zone, and which
    option says so."""
    ahead = []
    for message in messages:
        cell = message.fields.get(at) if at else None
        seconds = read([cell])
        if seconds is not None and _is_local(cell, read):
            ahead.append(seconds - message.arrival)
    if not ahead:
        return []
    # All zones are whole quarters of an hour. Messages may be minutes under way, or hours where a
    # device has kept them: those that came soonest show its clock.
    quarters = round(float(np.quantile(ahead, SOONEST)) / QUARTER_S)
    if not quarters or abs(quarters) * QUARTER_S > ZONE_S_MAX:
        return []
    hours = abs(quarters) / 4
    side = "ahead of" if quarters > 0 else "behind"
    return [
        f"its times are {hours:g} h {side} the clock and name no zone: give --timezone ZONE, as"
        " Europe/Berlin"
    ]


def _is_local(cell: Any, read: TimeReader) -> bool:
    """Whether the time in a cell names no zone, and is no epoch."""
    if read.has_codes and is_date_of_digits(_digits_in(cell)):
        return True
    return isinstance(cell, str) and not names_zone(cell)
