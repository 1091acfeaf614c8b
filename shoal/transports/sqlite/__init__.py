"""The embedded transport: how an address with the scheme `sqlite`, or a path that ends in .db,
opens a log."""

from __future__ import annotations

from pathlib import Path

from shoal.config.base import Settings, resolve_path
from shoal.transports.base import Log, Transport


class SqliteTransport(Transport):
    """Logs in one SQLite file each, at addresses `sqlite:PATH`."""

    name = "sqlite"

    def open(self, location: str, settings: Settings) -> Log:
        """See `Transport.open`."""
        # A process on Kafka needs no SQLite.
        from shoal.transports.sqlite.log import SqliteLog  # noqa: PLC0415 - not on Kafka

        return SqliteLog(location)

    def open_to_read(self, location: str, settings: Settings) -> Log:
        """See `Transport.open_to_read`."""
        from shoal.transports.sqlite.reader import (  # noqa: PLC0415 - for commands that only read
            SqliteLogReader,
        )

        return SqliteLogReader(location)

    def resolve(self, location: str, file: Path) -> str:
        """See `Transport.resolve`."""
        return str(resolve_path(Path(location), file))


SQLITE = SqliteTransport()
