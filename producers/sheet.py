"""Features that a sheet lists, as a person in charge of sensors writes it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import InvalidData, SettingsError
from shoal.producers.columns import Column
from shoal.producers.files.parsing import number_of
from shoal.producers.files.tables import CsvTable, open_table

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
    """The features that a sheet lists, one a line: name, unit, lower, upper, step; kind with its
    values or its period.

    Raises `SettingsError` and `InvalidData`.
    """
    table = open_table(file, Counter())
    lower = {name.lower(): name for name in table.columns}
    heads = {
        what: next((lower[one] for one in names if one in lower), None)
        for what, names in SHEET.items()
    }
    if missing := [
        what for what, head in heads.items() if head is None and what in ("name", "low", "high")
    ]:
        raise SettingsError(
            f"{file}: no column {SHEET[missing[0]][0]!r}; a sheet has name, unit, lower and upper"
        )
    wanted = [head for head in heads.values() if head is not None]
    text = table.dialect.number_text if isinstance(table, CsvTable) else str
    columns = []
    for line, row in enumerate(table.rows(wanted), start=2):
        cells = dict(zip(wanted, row or (), strict=False))
        said = {what: str(cells.get(head or "", "") or "").strip() for what, head in heads.items()}
        name = said["name"]
        unit = said["unit"]
        kind = said["kind"].lower()
        low, high = (number_of(text(said[what])) for what in ("low", "high"))
        if kind not in ("", "number"):
            columns.append(
                _column_of_kind(said, number_of(text(said["period"])), low, f"{file}, line {line}")
            )
            continue
        if not name or not isinstance(low, float) or not isinstance(high, float) or not low < high:
            raise InvalidData(
                f"{file}, line {line}: a feature has a name, and numbers lower < upper"
            )
        step = number_of(text(said["step"]))
        step = step if isinstance(step, float) and not math.isnan(step) else 0.0
        columns.append(Column(name, "feature", LISTED, unit=unit, low=low, high=high, step=step))
    if not columns:
        raise InvalidData(f"{file}: lists no feature")
    return columns


def _column_of_kind(said: Mapping[str, str], period: Any, low: Any, where: str) -> Column:
    """A category or a circular feature of a sheet. Raises `InvalidData`."""
    name = said["name"]
    values = tuple(each.strip() for each in said["values"].split(";") if each.strip())
    if said["kind"].lower() == "category" and name and len(set(values)) == len(values) > 1:
        return Column(name, "feature", LISTED, values=values, low=-0.5, high=len(values) - 0.5)
    if said["kind"].lower() == "circular" and name and isinstance(period, float) and period > 0:
        cut = low if isinstance(low, float) and math.isfinite(low) else 0.0
        return Column(
            name, "feature", LISTED, unit=said["unit"], low=cut, high=cut + period, period=period
        )
    raise InvalidData(
        f"{where}: kind is number, category (with values, such as closed;open) or circular (with a period above 0)"
    )
