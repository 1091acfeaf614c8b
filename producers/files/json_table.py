"""JSON lines as tables: an object a line, whose fields are columns."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from shoal.errors import SettingsError
from shoal.producers.files.dialect import (
    FOUND,
    DialectOptions,
    encoding_of,
    known_encoding,
)
from shoal.producers.files.rows import Rows, features_apart
from shoal.producers.files.text_lines import beginning_of, count_lines, lines_of

OBJECTS_DEPTH_MAX = 8
"""most objects within each other whose fields are columns"""


HEAD_OBJECTS = 100
"""objects whose keys are the columns, since JSON lines have no header"""


class JsonTable:
    """JSON lines: one object per line.

    A field of an object within an object is a column: `a.b` is b in a.
    """

    def __init__(self, path: Path, faults: Counter[str], options: DialectOptions = FOUND) -> None:
        """See `open_table`. Of `options` only the encoding counts, as JSON writes numbers one way.

        Raises `SettingsError` for one array of all objects.
        """
        self.path = path
        self._faults = faults
        head = beginning_of(path)
        self._encoding = encoding_of(head)
        if options.encoding:
            self._encoding = known_encoding(options.encoding)
        if head.decode(self._encoding, "replace").lstrip().startswith("["):
            array = shlex.quote(path.name)
            lines = shlex.quote(f"{path.name.partition('.')[0]}.jsonl")
            raise SettingsError(
                f"{path}: one JSON array; shoal reads an object a line: jq -c '.[]' {array} >"
                f" {lines}"
            )
        sound = (fields for fields in self._objects() if fields is not None)
        names: dict[str, None] = {}
        for fields in islice(sound, HEAD_OBJECTS):
            names |= dict.fromkeys(fields)
        self.columns = tuple(names)

    def rows(self, wanted: Sequence[str]) -> Iterator[list[Any] | None]:
        """See `Table.rows`. A key that an object lacks is an empty cell."""
        for fields in self._objects():
            if fields is None:
                self._faults["unreadable"] += 1
                yield None
            else:
                yield [fields.get(name) for name in wanted]

    def blocks_apart(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Rows]:
        """See `Table.blocks_apart`."""
        return features_apart(self.rows([*features, *others]), len(features))

    def row_lines(self) -> Iterator[int]:
        """See `Table.row_lines`."""
        for number, line in enumerate(lines_of(self.path, self._encoding), 1):
            if line.strip():
                yield number

    def count(self) -> int:
        """See `Table.count`."""
        return count_lines(self.path)

    def _objects(self) -> Iterator[dict[str, Any] | None]:
        for line in lines_of(self.path, self._encoding):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                # Nested a thousand times, JSON of a few bytes ends the recursion of the parser.
                value = None
            yield flattened(value) if isinstance(value, dict) else None


def flattened(fields: Mapping[str, Any], depth: int = OBJECTS_DEPTH_MAX) -> dict[str, Any]:
    """The fields of an object, those of objects within it by their paths.

    Where a key is such a path itself, its own cell counts.
    """
    if not depth or not any(isinstance(cell, dict) for cell in fields.values()):
        return dict(fields)
    cells = {name: cell for name, cell in fields.items() if not isinstance(cell, dict)}
    for name, inner in fields.items():
        if isinstance(inner, dict):
            for path, cell in flattened(inner, depth - 1).items():
                cells.setdefault(f"{name}.{path}", cell)
    return cells
