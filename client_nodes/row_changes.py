"""Which rows of a file of checkpoints were written since they were last taken, by any call.

Triggers of the connection note the key of each row that is inserted, updated or deleted. So where a
client's state is copied elsewhere, as to a topic, the copy can miss no row that the client stores.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from shoal.runtime.checkpoint import ROW_KEYS

Row = tuple[Any, ...]


class RowChanges:
    """The keys of rows that were written, kept over several connections to one file."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, int], None] = {}
        """table and key of each, in the order in which they were written first. One whose
        transaction was rolled back may be among them: it is read as it is"""
        self._read: Callable[[str, int], Row | None] = lambda table, number: None

    def watch(self, connection: sqlite3.Connection) -> None:
        """Note what this connection writes from now on. Raises as `sqlite3` does."""

        def note(table: str, number: int) -> None:
            self._written[table, number] = None

        connection.create_function("note_row", 2, note)
        for table, key in ROW_KEYS.items():
            for event, version in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
                # Temporary: of this connection, and no part of the file.
                connection.execute(
                    f"CREATE TEMP TRIGGER note_{table}_{event} AFTER {event} ON {table}"
                    f" BEGIN SELECT note_row('{table}', {version}.{key}); END"
                )

        def read(table: str, number: int) -> Row | None:
            row: Row | None = connection.execute(
                f"SELECT * FROM {table} WHERE {ROW_KEYS[table]} = ?", (number,)
            ).fetchone()
            return row

        self._read = read

    def take(self) -> list[tuple[str, int, Row | None]]:
        """Table, key and row of all that were written, None for one that is gone; they count as
        taken. Outside of transactions. Raises as `sqlite3` does."""
        rows = [(table, number, self._read(table, number)) for table, number in self._written]
        self._written.clear()
        return rows
