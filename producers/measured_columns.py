"""Columns of changing numbers that are no measured quantity: counters, identifiers, places,
states of a device, and what is there twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.producers.column_types import Cells
from shoal.producers.features import unit_of
from shoal.producers.files.times import is_date_of_digits

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
    r"(today|daily|total)[_ ](energy|yield|production|consumption|kwh)|"
    r"(a_?)?energy_(total|sum)|total_(a_?)?energy"
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


def copy_of(name: str, features: Sequence[str], cells: Mapping[str, Cells]) -> str:
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


def rows_of_clients(cells: Mapping[str, Cells], client: str | None) -> list[list[int]]:
    """The rows of each client with several; none where one client has all."""
    if client is None:
        return []
    rows: dict[str, list[int]] = defaultdict(list)
    for row, text in enumerate(cells[client].all_texts):
        rows[text].append(row)
    return [own for own in rows.values() if len(own) >= ROWS_OF_CLIENT_MIN]


def no_measurement(name: str, cells: Cells, groups: Sequence[Sequence[int]]) -> str:
    """Why a column of changing values is no measured quantity; "" for one that may be."""
    end = unit_of(name.replace('"', "").strip("# "))[0]
    # As a feature it would make clusters of clients, whatever they measure.
    if len(groups) > 1 and all(len({cells.all_texts[row] for row in own}) == 1 for own in groups):
        return "the same within each client"
    parts = [part.strip() for part in re.split(r"[.:/]", end)]
    last = parts[-1].lower()
    # A path may say it in two parts: battery.percent.
    two = "_".join(parts[-2:]).lower()
    is_of_device = _OF_DEVICES.fullmatch(last) or _OF_DEVICES.fullmatch(two)
    digits = {text.removesuffix(".0") for text in cells.texts}
    reasons = {
        "a place, by its name": _OF_PLACES.fullmatch(last),
        "a counter, by its name": _OF_COUNTERS.fullmatch(last) or _OF_COUNTERS.fullmatch(two),
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


def _are_whole(cells: Cells) -> bool:
    numbers = cells.numbers[np.isfinite(cells.numbers)]
    return bool((numbers == np.round(numbers)).all())


def _is_radio(cells: Cells) -> bool:
    """Whether numbers are frequencies of a radio channel, in Hz or in MHz."""
    numbers = cells.numbers[np.isfinite(cells.numbers)]
    megahertz = numbers / 1e6 if numbers.min() > 1e6 else numbers
    return bool(((megahertz > 160) & (megahertz < 6000)).all()) and len(np.unique(numbers)) < 100


def _counts_up(cells: Cells, groups: Sequence[Sequence[int]]) -> str:
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


def counts_rows(cells: Cells) -> bool:
    """Whether a column counts the rows of its table: nearly all of its steps are the same.

    Not all of them are, as it may begin again for each client.
    """
    steps = np.diff(cells.head)
    if len(steps) < ROWS_COUNTED:
        return False
    usual = np.median(steps)
    return bool(usual > 0 and (steps == usual).mean() > 0.9)
