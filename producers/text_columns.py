"""Columns in which no cell is a number, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from shoal.producers.column_types import Cells
from shoal.producers.files.dialect import TWO_VALUES, unit_behind
from shoal.producers.files.times import is_moment
from shoal.protocol.no_value import is_no_value

NO_CELL = "no cell has a value"
_LIKE_A_TIME = re.compile(r"(?=.*(?<!\d)(19|20)\d\d(?!\d))(?=.*\d{1,2}[:.h]\d{2})")
"""a text with a year and a time of day"""
_SEVERAL_VALUES = re.compile(
    r"[+-]?\d+([.,]\d+)?(\s*[/;|±]\s*[+-]?\d+([.,]\d+)?)+|"
    # Of weather services: direction, its quality, a type, speed, its quality.
    r"[+-]?\d+([,;|][+-]?\d*[A-Z]?\d*){2,}"
)
"""a cell such as 120/80, 21.5±0.3 or 130,1,N,0045,1"""


def no_number(cells: Cells) -> str:
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
