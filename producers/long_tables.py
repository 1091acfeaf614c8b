"""Data in which each row has the value of one quantity, which another column names: they are
refused, with the way to make a table with a column for each quantity.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.producers.column_names import end_of, is_named
from shoal.producers.column_types import Cells, Sample

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


def check_wide(
    cells: Mapping[str, Cells], client: tuple[str, Cells] | None, sample: Sample
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
        are_values = all(_VALUES.fullmatch(end_of(name)) for name in values)
        if not values or len(rows_of) < 2 or (len(values) > 1 and not are_values):
            continue
        if not _QUANTITIES.fullmatch(end_of(quantities)):
            is_value = _VALUES.fullmatch(end_of(values[0])) is not None
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


def _names_of_quantities(named: Mapping[str, Cells], client: tuple[str, Cells] | None) -> list[str]:
    """The columns that may name quantities, the most likely ones first."""
    sure = [name for name in named if _QUANTITIES.fullmatch(end_of(name))]
    others = []
    for name, column in named.items():
        is_so_called = _MAY_BE_QUANTITIES.fullmatch(end_of(name)) is not None
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


def _varies(numbers: Floats, groups: Iterable[Sequence[int]]) -> bool:
    """Whether numbers differ within a group of rows, unlike the number of a series."""
    for rows in groups:
        finite = numbers[rows][np.isfinite(numbers[rows])]
        if len(finite) and np.ptp(finite) > 0:
            return True
    return False
