"""Files in InfluxDB's line protocol as tables: a point a row, whose tags and fields are columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from shoal.errors import SettingsError
from shoal.producers.files.line_protocol import Point, cells_of, is_comment, point_of
from shoal.producers.files.rows import Rows, features_apart
from shoal.producers.files.text_lines import count_lines, lines_of

HEAD_POINTS = 2000
"""points whose tags and fields are the columns, since the file has no header"""
TIME = "time"
"""the column of the time, in nanoseconds since 1970"""


class LineTable:
    """Line protocol: lines after each other with the same tags and one time are one row."""

    def __init__(self, path: Path, faults: Counter[str]) -> None:
        """See `open_table`.

        Raises `SettingsError` where each row would have one of several fields, as an export of
        InfluxDB has, series by series.
        """
        self.path = path
        self._faults = faults
        names: dict[str, None] = {TIME: None}
        measurements = set()
        fields: dict[tuple[str, str], None] = {}
        is_apart = True
        before: tuple[Any, ...] = ()
        for point in islice(self._sound_points(), HEAD_POINTS):
            measurements.add(point.measurement)
            names |= dict.fromkeys(point.tags)
            series = (point.time_ns, point.tags)
            is_apart = is_apart and len(point.fields) == 1 and series != before
            before = series
            fields |= dict.fromkeys((point.measurement, name) for name in point.fields)
        if is_apart and len(fields) > 1:
            raise SettingsError(
                f"{path}: each line has one of {len(fields)} fields. shoal takes the fields of one"
                " time as one reading, from lines after each other: sort -s -k3,3 -k1,1"
                f" {path.name}"
            )
        # The name of the only measurement tells no columns apart.
        for measurement, name in fields:
            names[name if len(measurements) == 1 else f"{measurement}.{name}"] = None
        self.columns = tuple(names)

    def rows(self, wanted: Sequence[str]) -> Iterator[list[Any] | None]:
        """See `Table.rows`. A field that a point lacks is an empty cell."""
        for _, cells in self._rows():
            if cells is None:
                self._faults["not_line_protocol"] += 1
                yield None
            else:
                yield [cells.get(name) for name in wanted]

    def blocks_apart(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Rows]:
        """See `Table.blocks_apart`."""
        return features_apart(self.rows([*features, *others]), len(features))

    def row_lines(self) -> Iterator[int]:
        """See `Table.row_lines`."""
        return (number for number, _ in self._rows())

    def count(self) -> int:
        """See `Table.count`."""
        return count_lines(self.path)

    def _sound_points(self) -> Iterator[Point]:
        for line in lines_of(self.path):
            point = None if is_comment(line) else point_of(line)
            if point is not None:
                yield point

    def _rows(self) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """The last line of each row and its cells; None for a line that is no point."""
        number = 0
        cells: dict[str, Any] = {}
        of_cells: tuple[Any, ...] | None = None
        for line_number, line in enumerate(lines_of(self.path), 1):
            if is_comment(line):
                continue
            point = point_of(line)
            # A point without a time is a row of its own.
            of_point = None
            if point is not None and point.time_ns is not None:
                of_point = (point.time_ns, *sorted(point.tags.items()))
            if cells and (of_point is None or of_point != of_cells):
                yield number, cells
                cells = {}
            if point is None:
                yield line_number, None
                continue
            number = line_number
            of_cells = of_point
            cells = {**cells, **cells_of(point), TIME: point.time_ns}
        if cells:
            yield number, cells
