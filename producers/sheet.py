"""Features that a sheet lists, as a person in charge of sensors writes it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import InvalidData, SettingsError
from shoal.producers.column_types import Column
from shoal.producers.files.csv_table import CsvTable
from shoal.producers.files.parsing import number_of
from shoal.producers.files.tables import Table, open_table

LISTED = "listed"
"""why a column of a sheet is a feature: a person says so, with its bounds"""


SHEET = {
    "name": ("name", "feature"),
    "unit": ("unit",),
    "low": ("lower", "low", "min"),
    "high": ("upper", "high", "max"),
    "step": ("step", "resolution"),
    "kind": ("kind",),
    "values": ("values",),
    "period": ("period",),
}
"""entry of a sheet on a feature -> headings of its column"""


def columns_of_sheet(file: Path) -> list[Column]:
    """The features that a sheet lists, one a line.

    Its columns are name, unit, lower, upper and step; kind with its values or its period. Raises
    `SettingsError` and `InvalidData`.
    """
    table = open_table(file, Counter())
    headings = _headings(table, file)
    wanted = list(headings.values())
    number_text = table.dialect.number_text if isinstance(table, CsvTable) else str
    columns = []
    for line, row in enumerate(table.rows(wanted), start=2):
        # A broken row has no cells, and is refused for the name that it lacks.
        cells = dict(zip(wanted, row or (), strict=False))
        entries = dict.fromkeys(SHEET, "")
        for entry, heading in headings.items():
            entries[entry] = str(cells.get(heading) or "").strip()
        numbers = {}
        for entry in ("low", "high", "step", "period"):
            numbers[entry] = number_of(number_text(entries[entry]))
        columns.append(_column(entries, numbers, f"{file}, line {line}"))
    if not columns:
        raise InvalidData(f"{file}: lists no feature")
    return columns


def _headings(table: Table, file: Path) -> dict[str, str]:
    """Entry of a feature -> its column in the sheet. Raises `SettingsError`."""
    in_lower_case = {name.lower(): name for name in table.columns}
    headings = {}
    for entry, names in SHEET.items():
        for name in names:
            if name in in_lower_case:
                headings[entry] = in_lower_case[name]
                break
    for entry in ("name", "low", "high"):
        if entry not in headings:
            raise SettingsError(
                f"{file}: no column {SHEET[entry][0]!r}; a sheet has name, unit, lower and upper"
            )
    return headings


def _column(entries: Mapping[str, str], numbers: Mapping[str, Any], where: str) -> Column:
    """The feature of one line. Raises `InvalidData`."""
    name = entries["name"]
    kind = entries["kind"].lower()
    low = numbers["low"]
    high = numbers["high"]
    if kind in ("", "number"):
        if not name or not isinstance(low, float) or not isinstance(high, float) or not low < high:
            raise InvalidData(f"{where}: a feature has a name, and numbers lower < upper")
        step = numbers["step"]
        if not isinstance(step, float) or math.isnan(step):
            step = 0.0
        unit = entries["unit"]
        return Column(name, "feature", LISTED, unit=unit, low=low, high=high, step=step)
    if kind == "category" and name:
        texts = [text.strip() for text in entries["values"].split(";")]
        values = tuple(text for text in texts if text)
        if len(set(values)) == len(values) > 1:
            # Half a step around the places 0, 1, ... of the values.
            high = len(values) - 0.5
            return Column(name, "feature", LISTED, values=values, low=-0.5, high=high)
    period = numbers["period"]
    if kind == "circular" and name and isinstance(period, float) and period > 0:
        cut = low if isinstance(low, float) and math.isfinite(low) else 0.0
        unit = entries["unit"]
        return Column(name, "feature", LISTED, unit=unit, low=cut, high=cut + period, period=period)
    raise InvalidData(
        f"{where}: kind is number, category (with values, such as closed;open) or circular (with a"
        " period above 0)"
    )
