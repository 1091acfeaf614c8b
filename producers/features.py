"""Proposals for features by the names of columns and their values: name, unit, bounds, step, period
of a circle."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats

DIRECTION = re.compile(
    r"(.*[_ ])?(wind|gust)?[_ ]?(dir|direction|bearing|heading|azimuth|course)([_ ].*)?|wd"
)
"""names of features whose values are directions, in lower case; so are degrees that go more than
half around"""
PERIODS: Mapping[re.Pattern[str], float] = {
    re.compile(r"(.*[_ ])?hour([_ ]of[_ ]day)?|hod"): 24.0,
    re.compile(r"(.*[_ ])?(weekday|day[_ ]of[_ ]week)|dow|day"): 7.0,
    re.compile(r"(.*[_ ])?month"): 12.0,
}
"""names of features that begin again, in lower case -> their period"""
DEGREES = ("°", "deg", "degree", "degrees")
CUTS = 32
"""places at which a circle may be cut"""
NUMBERED = re.compile(r" #\d+$")
"""end of the name of a column that occurs several times"""


class Unit(NamedTuple):
    """The physical range of a unit; None: no limit on that side."""

    low: float | None
    high: float | None


_FROM_ZERO = (
    "ppm ppb lux lx w kw wh kwh mw va pa kpa bar mbar m/s km/h rpm 1/min mm cm m l l/min l/h m3/h"
    " m³/h µg/m3 µg/m³ ug/m3 mg/m3 mg/m³ g/m3 g/m³ hz khz db db(a) s ms min h kg g n mm/h mm/s"
    " w/m2 w/m² hpa k"
)
UNITS: Mapping[str, Unit] = {
    "%": Unit(0.0, 100.0),
    "°": Unit(0.0, 360.0),
    "deg": Unit(0.0, 360.0),
    "ph": Unit(0.0, 14.0),
    "°c": Unit(-273.15, None),
    "°f": Unit(-459.67, None),
    **dict.fromkeys(_FROM_ZERO.split(), Unit(0, None)),
}
"""units whose range physics limits; compared in lower case"""
# A number in brackets, as in "Battery Monitor [256]", is that of a device.
_IN_BRACKETS = re.compile(r"^(?P<name>.*?)\s*[\(\[](?!\d+[\)\]])(?P<unit>[^)\]]{1,32})[\)\]]\s*$")
_WEIGHTED = re.compile(r"^(?P<name>.+?)[\s(\[]*(?P<unit>dB\s?\([ABC]\))[)\]]?$", re.IGNORECASE)
WRITTEN_OUT: Mapping[str, str] = {
    "degc": "°C",
    "deg c": "°C",
    "celsius": "°C",
    "c": "°C",
    "deg_c": "°C",
    # One sign in place of two, and the ordinal and the ring in place of the degree.
    "℃": "°C",
    "ºc": "°C",
    "˚c": "°C",
    "degf": "°F",
    "℉": "°F",
    "ºf": "°F",
    "˚f": "°F",
    "º": "°",
    "˚": "°",
    "%rh": "%",
    "% rh": "%",
    "%rf": "%",
    "% rf": "%",
    "meters/second": "m/s",
    "volts": "V",
    "volt": "V",
    "amps": "A",
    "watts": "W",
    "f": "°F",
    "percent": "%",
    "pct": "%",
    "ugm3": "µg/m³",
}
"""units as loggers write them, in lower case"""
_SUFFIX = re.compile(
    r"^(?P<name>.+?)[_ ](?P<unit>degc|degf|celsius|percent|pct|ugm3|ppm|ppb|lux|lx|kwh|kw|hpa|kpa|"
    r"mbar|bar|rpm|hz|mm|db|%|°c|°f|m3/h|m³/h|l/min|l/h|mm/s|m/s)$",
    re.IGNORECASE,
)


_GLUED = re.compile(
    r"^(?P<name>.*[^\s(\[/\d])\s*(?P<unit>[°º˚][CF]|[℃℉]|%(?:\s?(?:RH|rH|rF))?)$", re.IGNORECASE
)
"""a sign of a unit right behind the name: Temperature°C, Humidity%RH"""
# As HOBO loggers write them: Temp, °C (LGR S/N: 1, SEN S/N: 2).
_OF_LOGGER = re.compile(r"\s*\([^)]*\b(S/N|SN|serial)\b[^)]*\)\s*$", re.IGNORECASE)
"""serial numbers of the logger and the sensor, behind the name of a quantity"""
_AFTER_COMMA = re.compile(r"^(?P<name>[^,]+),\s*(?P<unit>[^\s,]{1,12})$")
FEATURE_NAME_CHARS = 64
"""most characters of a feature's name in the contract"""
TAIL_CHARS = 24
"""characters at the end of a longer name that stay"""


def unit_of(name: str) -> tuple[str, str]:
    """The name of a column without its unit, and the unit: "Temp (°C)" -> "Temp", "°C".

    The unit is "" for none.
    """
    plain = _OF_LOGGER.sub("", NUMBERED.sub("", " ".join(name.split())))
    behind = _AFTER_COMMA.match(plain)
    if behind is not None and (behind["unit"].lower() in {*UNITS, *WRITTEN_OUT}):
        unit = behind["unit"]
        return behind["name"].strip(), WRITTEN_OUT.get(unit.lower(), unit)
    patterns = (_WEIGHTED, _IN_BRACKETS, _SUFFIX, _GLUED)
    parts = next(filter(None, (pattern.match(plain) for pattern in patterns)), None)
    if parts is None or not parts["name"]:
        return name, ""
    bare_name = parts["name"].strip()
    number = NUMBERED.search(name)
    if number:
        bare_name += number[0]
    unit = parts["unit"].strip()
    return bare_name, WRITTEN_OUT.get(unit.lower(), unit)


LONG_NAME_CHARS = 24
"""characters from which on what all names begin with is left out"""
COMMON_CHARS_MIN = 8
"""fewest characters that all have to begin with"""
_SEPARATOR = re.compile(r"[./\\|;:>]+|\s+[-\u2013\u2014>]+\s+")
"""what stands between the parts of a path, as historians and buildings name their points"""
_VALUE = re.compile(r"p\.?v|(present|current|actual|process)?[_ ]?value|val", re.IGNORECASE)
"""last part of a path that only says that there is a value"""
_LABEL = re.compile(r"\bLBL:\s*(?P<label>[^,)]+)")
"""what people have called a sensor, among the serial numbers of a logger"""


def without_common(names: Sequence[str]) -> list[str]:
    """Long names without the parts of a path that all begin with, nor a last part such as PV or
    value that all end with.

    "Building A - Hall 3 - Supply Air" and "Building A - Hall 3 - Return Air" are Supply Air and
    Return Air.
    """
    if len(names) < 2 or max(map(len, names)) < LONG_NAME_CHARS:
        return list(names)
    # From the beginning on, all names have the same parts up to here.
    first = names[0]
    start = 0
    for separator in _SEPARATOR.finditer(first):
        common = first[: separator.end()]
        if not all(name.startswith(common) and len(name) > len(common) for name in names):
            break
        start = separator.end()
    ends = [_end_of_value(name) for name in names]
    shorter = [
        name[start if start >= COMMON_CHARS_MIN else 0 : end if all(ends) else len(name)]
        for name, end in zip(names, ends, strict=True)
    ]
    # Numbers alone name nothing, and two features of one name cannot be.
    has_letters = all(any(map(str.isalpha, name)) for name in shorter)
    return shorter if has_letters and len(set(shorter)) == len(names) else list(names)


def _end_of_value(name: str) -> int:
    """The position at which the last part of a path begins, with the sign before it, if it only
    says that there is a value; 0 for no such part."""
    separators = list(_SEPARATOR.finditer(name))
    if separators and _VALUE.fullmatch(name[separators[-1].end() :]):
        return separators[-1].start()
    return 0


def feature_names(columns: Iterable[str]) -> dict[str, str]:
    """column -> the name of its feature, no two alike.

    The name is that of the column, unless that is too long or not printable, or all are long and
    begin alike.
    """
    columns = list(columns)
    printables = []
    for column in columns:
        printable = "".join(sign if sign.isprintable() else " " for sign in column)
        name = " ".join(printable.split())
        # Serial numbers change with the device, and the quantity does not.
        if _OF_LOGGER.search(name):
            label = _LABEL.search(name)
            name = unit_of(name)[0]
            if label is not None:
                name = f"{name} {label['label'].strip()}"
        printables.append(name)
    names: dict[str, str] = {}
    for column, short in zip(columns, without_common(printables), strict=True):
        name = short
        if len(name) > FEATURE_NAME_CHARS:
            name = unit_of(name)[0]
        place = 0
        while len(name) > FEATURE_NAME_CHARS or name in names.values():
            place += name in names.values()
            # Both ends, since long names often begin alike.
            end = name[-TAIL_CHARS:].lstrip()
            if place:
                end += f" ({place})"
            name = f"{name[: FEATURE_NAME_CHARS - len(end) - 3].rstrip()} … {end}"
        names[column] = name
    return names


def bounds_of(values: Floats, unit: str) -> tuple[float, float]:
    """Proposed bounds of a feature: (n,) finite values, n >= 1, and its unit -> low < high.

    The physical range of the unit where it has two ends that hold all values; otherwise the range
    of the values, a tenth wider on each side, rounded outward, and cut where the unit ends; of
    values that are all 0 or 1 just these. A few values far from all others do not count: they are
    clipped.
    """
    known = UNITS.get(unit.lower(), Unit(None, None))
    least = float(values.min())
    most = float(values.max())
    # Single gross errors of a sensor must not put all its readings into one corner.
    near, far = np.quantile(values, [0.001, 0.999])
    spread = float(far - near)
    # 0 where nearly all values are equal: every other value would be an error then.
    if spread > 0:
        least = max(least, float(near) - 3 * spread)
        most = min(most, float(far) + 3 * spread)
    if known.low is not None and known.high is not None:
        is_inside = known.low <= least and most <= known.high
        # A share that is written as 0.31 is not in percent.
        if is_inside and most - least > 0.02 * (known.high - known.low):
            return known.low, known.high
    # A column of 0 and 1 has these bounds whatever its readings are, so they reveal none. A
    # category would reject a 2 that comes later.
    if set(np.unique(values).tolist()) == {0.0, 1.0}:
        return 0.0, 1.0
    # Wider than the values that were seen, as later ones beyond the bounds are clipped.
    span = most - least or abs(most) or 1.0
    step = _nice(span / 10)
    low = math.floor((least - span / 10) / step) * step
    high = math.ceil((most + span / 10) / step) * step
    # What is never negative may be 0 one day, unless its values are far from it.
    if least >= 0 and (known.low == 0 or low < 0):
        is_far = least > 0.2 * span
        low = max(low, 0.0) if is_far else 0.0
    if known.low is not None and least >= known.low:
        low = max(low, known.low)
    # Multiples of a decimal step end in digits of rounding, as 0.30000000000000004 does.
    return round(low, 12), round(high, 12)


def _nice(step: float) -> float:
    """The next of 1, 2 and 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    for factor in (1, 2, 5):
        # A step that is itself such a number may have come out a bit larger by rounding.
        if factor * power >= step * (1 - 1e-9):
            return factor * power
    return 10 * power


def period_of(name: str, unit: str, values: Floats) -> float:
    """Period after which a feature begins again; 0: never.

    It is known by the name without unit, the unit, and the values (n,), n >= 1.
    """
    name = name.lower().strip()
    least = float(values.min())
    most = float(values.max())
    for pattern, period in PERIODS.items():
        # Of values on less than half of the circle nothing shows that they begin again.
        if pattern.fullmatch(name) and least >= 0 and period / 2 < most <= period:
            return period
    are_degrees = unit.lower() in DEGREES
    if not unit and DIRECTION.fullmatch(name):
        are_degrees = True
    from_north = least >= 0 and 180 < most <= 360
    both_ways = -180 <= least < -90 and 90 < most <= 180
    if are_degrees and (from_north or both_ways):
        return 360.0
    return 0.0


def cut_of(values: Floats, period: float) -> float:
    """The place on a circle around which the fewest of (n,) values lie.

    It is the middle of one of `CUTS` equal parts.
    """
    counts = np.bincount((values % period / period * CUTS).astype(np.int64) % CUTS, minlength=CUTS)
    apart = np.arange(CUTS)
    # Steep, so that a narrow gap beside many readings is better than a place among few.
    near = 1.0 / (1.0 + np.minimum(apart, CUTS - apart) ** 4.0)
    crowded = [float(near @ np.roll(counts, -part)) for part in range(CUTS)]
    return (int(np.argmin(crowded)) + 0.5) * period / CUTS
