"""One client's readings log as this producer sees it, and how far the source has come in it.

Every record carries in its headers which run of which source it is from and the number of its row. So the log
itself says what is in it: after a kill, what stands there is not published again, and what does not is.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from producers.source import SourceRow
from shoal.errors import OffsetOutOfRange, SettingsError
from shoal.protocol.readings import Reading
from shoal.protocol.topics import READINGS_SETTINGS
from shoal.transports.base import Log, Record, TopicSettings

PARTITION = 0
SCAN_RECORDS = 2000


def client_folder(folder: Path, client: str) -> Path:
    """The client's own folder below `folder`, made if there is none. Raises `SettingsError`."""
    home = folder / client
    try:
        # Raw readings: nobody else's business on this machine.
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as rejected:
        raise SettingsError(f"{home}: cannot be made: {rejected.strerror}") from None
    return home


class Mark(NamedTuple):
    """How far a source had come in a log."""

    identity: str
    """of the topic: a log that was made again has another one"""
    end: int
    """offset of the record after the last one looked at"""
    last_row: int
    """the last row of the source that stands there; -1 for none"""


class ReadingsPublisher:
    """An open readings log, kept as `kept` says; `source` is what the records of this run carry."""

    def __init__(
        self, log: Log, topic: str, source: str, known: Mark | None, kept: TopicSettings = READINGS_SETTINGS
    ) -> None:
        self._log, self._topic, self._source = log, topic, source.encode()
        log.ensure(topic, kept)
        self._identity = log.identity(topic).hex()
        _, end = log.bounds(topic)[PARTITION]
        self.intact = known is None or (known.identity == self._identity and known.end <= end)
        """whether everything that was in the log when `known` was noted is still there"""
        self._end = known.end if known and self.intact else 0
        self.last_row = known.last_row if known and self.intact else -1
        self._catch_up()

    def publish(self, row: int, sourced: SourceRow) -> None:
        """Append a row, if it is not there already; stored for certain only after `flush`."""
        reading = Reading(sourced.time, sourced.values)
        marks = (("source", self._source), ("row", str(row).encode()))
        self._log.publish(self._topic, reading.encode(), headers=Reading.headers() + marks, partition=PARTITION)
        self.last_row = row

    def flush(self) -> None:
        """Return when everything published is stored."""
        self._log.flush()

    def mark(self) -> Mark:
        """How far the source has come; only after a flush."""
        return Mark(self._identity, self._log.bounds(self._topic)[PARTITION][1], self.last_row)

    def close(self) -> None:
        """Let go of the log."""
        self._log.close()

    def _catch_up(self) -> None:
        """Look through the records since the mark for rows of this source."""
        first, end = self._log.bounds(self._topic)[PARTITION]
        at = max(self._end, first)
        while at < end:
            try:
                records, after = self._log.read(self._topic, {PARTITION: at}, SCAN_RECORDS)
            except OffsetOutOfRange as gone:
                at = gone.first
                continue
            at = after[PARTITION]
            self.last_row = max([self.last_row, *map(self._row_of, records)])

    def _row_of(self, record: Record) -> int:
        """The row's number if the record is one of ours, else -1."""
        headers = dict(record.headers)
        row = headers.get("row", b"")
        return int(row) if headers.get("source") == self._source and row.isdigit() else -1
