"""Checks of single fields, the same for every message.

Each `is_...` is true or false for a value of any type and never raises; `require` raises
`MessageRejected`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeGuard

import numpy as np

from shoal.config.base import NAME_PATTERN
from shoal.errors import MessageRejected
from shoal.kernels.constants import COUNT_MAX

MOMENT_MAX = 253_402_300_799
"""seconds from 1970 to the end of the year 9999, the last one of calendars; a clock in milliseconds
lies beyond it"""
# A name stands in tables, labels of metrics and titles of alerts.
CLUSTER_NAME_CHARACTERS_MAX = 60
TEXT_CHARACTERS_MAX = 300
_NAME = re.compile(NAME_PATTERN)
_PLAIN = frozenset({type(None), bool, int, float, str})
_NUMBER = (int, float)
_FIRST_MOMENT = float(-MOMENT_MAX)
_LAST_MOMENT = float(MOMENT_MAX)


def require(holds: bool, reason: str, detail: str) -> None:
    """Raise `MessageRejected(reason, detail)` unless `holds`."""
    if not holds:
        raise MessageRejected(reason, detail)


def is_name(value: object) -> bool:
    """Whether this is a name as contracts allow it."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def is_text(value: object) -> bool:
    """Whether this is one short line of printable text."""
    return isinstance(value, str) and value.isprintable() and len(value) <= TEXT_CHARACTERS_MAX


def is_cluster_name(value: object) -> bool:
    """Whether people may name a cluster so: one short line of printable text; "" is no name."""
    return (
        isinstance(value, str) and value.isprintable() and len(value) <= CLUSTER_NAME_CHARACTERS_MAX
    )


def is_count(value: object, smallest: int = 0) -> bool:
    """Whether this is a whole number from `smallest` to `COUNT_MAX`."""
    return type(value) is int and smallest <= value <= COUNT_MAX


def is_number(value: object) -> bool:
    """Whether this is a finite number; a truth value is none."""
    # NaN and the infinities less themselves are NaN. Not math.isfinite: it raises for whole
    # numbers that no float can hold.
    return _is_numeric(value) and value - value == 0


def _is_numeric(value: object) -> TypeGuard[float]:
    # By the exact type first: of nearly all times and shares it is this one, and every client
    # checks those of every cluster in each snapshot.
    return type(value) is float or (isinstance(value, _NUMBER) and not isinstance(value, bool))


def is_moment(value: object) -> bool:
    """Whether this can be a time in seconds since 1970."""
    return _is_numeric(value) and _FIRST_MOMENT <= value <= _LAST_MOMENT


def is_plain_table(value: object) -> bool:
    """Whether this maps names to numbers, texts, None, or lists of these.

    Such values are safe to compare.
    """
    if not isinstance(value, dict):
        return False
    for inner in value.values():
        entries = inner if isinstance(inner, list) else (inner,)
        if not all(map(_is_plain, entries)):
            return False
    return True


def is_arrays(value: object) -> bool:
    """Whether this maps names to arrays."""
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(array, np.ndarray) for name, array in value.items()
    )


def is_pair(value: object) -> bool:
    """Whether this is a list of two counts."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_count, value))


def _is_plain(value: object) -> bool:
    return type(value) in _PLAIN or isinstance(value, (bool, int, float, str))
