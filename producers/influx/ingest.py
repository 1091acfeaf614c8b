"""Ingest of points: those of one client and one time are a reading, stored in its log once.

The number of a reading in its source is its time in microseconds, and a log takes rising numbers
alone: a write that a sender repeats, because the answer was lost, is found in the log and not
stored a second time. So is a point that comes after a newer one of its client.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from shoal.config.base import client_name_of
from shoal.files import read_password
from shoal.producers.files.line_protocol import Point, cells_of, is_comment, point_of
from shoal.producers.files.split import CLIENTS_MAX
from shoal.producers.influx.endpoint import Endpoint, Write
from shoal.producers.influx.settings import InfluxSettings, influx_settings
from shoal.producers.kafka.bookmark import KafkaBookmark
from shoal.producers.kafka.ingest import KafkaCounts
from shoal.producers.kafka.record_reader import RecordReader
from shoal.producers.messages import RejectedMessages
from shoal.producers.publisher import ReadingsPublisher
from shoal.producers.source import SourceReading, SourceReadings, identity_of
from shoal.producers.source_type import MessageStream, ProducerTask, ProducerTotals
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.checkpoint import open_replaceable
from shoal.runtime.client_folders import client_folder
from shoal.runtime.logs import open_readings
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Record

WAIT_S = 0.25
"""seconds that a step waits for a write"""


class InfluxIngest:
    """Stores the points of writes as readings, write by write.

    open_log: opens the readings log of a client, which the data call as the second argument says.
    clock: seconds since 1970. steady: a clock that never goes back.
    """

    def __init__(
        self,
        task: ProducerTask,
        endpoint: Endpoint,
        bookmark: KafkaBookmark,
        counts: KafkaCounts,
        open_log: Callable[[str, str], Log],
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find what the logs hold. Raises as the logs do."""
        self.endpoint = endpoint
        self._settings: InfluxSettings = influx_settings(task.config)
        self._bookmark = bookmark
        self._counts = counts
        self._only: str | None = task.options["name"]
        self._topic_settings = readings_settings(task.config.client)
        self._source = identity_of("influx 1", self._only or "")
        self._open_log = open_log
        self._clock = clock
        self._steady = steady
        self._reader = RecordReader(task.config, self._settings, counts.faults)
        if bookmark.held:
            self._reader.gaps.restore(bookmark.held)
        self._rejected = RejectedMessages(counts.faults)
        self._publishers: dict[str, ReadingsPublisher] = {}
        try:
            for client, _ in list(bookmark.marks):
                self._publisher(client, client)
        except BaseException:
            self.close()
            raise

    def step(self, timeout_s: float = 0.0) -> bool:
        """Store the readings of the next write; False when there was none.

        Raises `LogUnavailable` and `LogError`; a write that was not stored is sent again.
        """
        self._rejected.report(self._steady())
        write = self.endpoint.take(max(timeout_s, WAIT_S))
        if write is None:
            return False
        by_client: defaultdict[str, list[tuple[int, SourceReading]]] = defaultdict(list)
        for point in self._points(write):
            reading = self._reading(point)
            if reading is not None:
                assert reading.time is not None
                by_client[reading.client].append((round(reading.time * 1e6), reading))
        for client, numbered in by_client.items():
            self._store(client, sorted(numbered, key=lambda entry: entry[0]))
        self._bookmark.held = self._reader.gaps.state()
        self._bookmark.save()
        # Only now: what is answered is not sent again.
        write.stored.set()
        return True

    def close(self) -> None:
        """Close the clients' logs."""
        self._rejected.report(math.inf)
        with ExitStack() as stack:
            for publisher in self._publishers.values():
                stack.callback(publisher.close)
            self._publishers.clear()

    def _points(self, write: Write) -> list[dict[str, Any]]:
        """The points of a write as objects; those of one client and one time are one."""
        now_ns = round(self._clock() * 1e9)
        joined: dict[tuple[str, int], dict[str, Any]] = {}
        for line in write.text.split("\n"):
            if is_comment(line):
                continue
            point = point_of(line, write.unit_ns)
            if point is None:
                write.faulty_lines += 1
                self._rejected.add("not_line_protocol", "influx")
                continue
            time_ns = now_ns if point.time_ns is None else point.time_ns
            cells = joined.setdefault((self._client_in(point), time_ns), {})
            cells |= cells_of(point) | {"time": time_ns}
        return list(joined.values())

    def _client_in(self, point: Point) -> str:
        return str(cells_of(point).get(self._settings.client, ""))

    def _reading(self, cells: dict[str, Any]) -> SourceReading | None:
        """The reading that joined points are; None for one that is rejected, or of another
        client."""
        payload = json.dumps(cells).encode()
        record = Record("influx", 0, 0, 0, None, payload, ())
        parsed = self._reader.parse(record, self._clock())
        if parsed.values is None:
            for reason in parsed.faults:
                self._rejected.add(reason, "influx")
            return None
        client = self._only or ""
        if self._settings.client:
            if not parsed.client:
                self._rejected.add("nameless", "influx")
                return None
            client = client_name_of(parsed.client)
            if self._only is not None and client != self._only:
                return None
            # A writer can name clients without end, and each has a folder and a log.
            if client not in self._publishers and len(self._publishers) >= CLIENTS_MAX:
                self._rejected.add("crowded", "influx")
                return None
        self._publisher(client, parsed.client or client)
        reading = self._reader.reading(client, parsed)
        if reading is None:
            self._rejected.add("missing", "influx")
        return reading

    def _store(self, client: str, numbered: Sequence[tuple[int, SourceReading]]) -> None:
        publisher = self._publishers[client]
        newer = [entry for entry in numbered if entry[0] > publisher.last_number]
        for _ in range(len(numbered) - len(newer)):
            self._rejected.add("not_newer", "influx")
        if newer:
            numbers = [number for number, _ in newer]
            publisher.publish(numbers, SourceReadings.of([reading for _, reading in newer]))
            publisher.flush()
        self._counts.published[client] += len(newer)
        self._bookmark.marks[client, 0] = publisher.mark()

    def _publisher(self, client: str, text: str) -> ReadingsPublisher:
        if client not in self._publishers:
            log = self._open_log(client, text)
            mark = self._bookmark.marks.get((client, 0))
            publisher = ReadingsPublisher(log, READINGS, self._source, mark, self._topic_settings)
            if not publisher.intact:
                log_event("readings_log_replaced", logging.WARNING, client=client)
            self._publishers[client] = publisher
        return self._publishers[client]


def influx_stream(task: ProducerTask) -> MessageStream:
    """The points of writes. Raises `SettingsError`."""
    settings = influx_settings(task.config)
    counts = KafkaCounts()

    def totals(ended: bool) -> ProducerTotals:
        return ProducerTotals(
            ended,
            counts.published,
            counts.already_there,
            counts.position,
            counts.faults,
            f"influx {settings.listen}",
        )

    return MessageStream(lambda: open_influx_ingest(task, counts), lambda: counts.position, totals)


@contextmanager
def open_influx_ingest(
    task: ProducerTask, counts: KafkaCounts, clock: Callable[[], float] = time.time
) -> Iterator[InfluxIngest]:
    """The ingest with its endpoint, closed at the end.

    Raises `InvalidState`, and as the logs do.
    """
    settings = influx_settings(task.config)
    token = read_password(settings.token_file, "influx") if settings.token_file else ""

    def open_log(client: str, text: str) -> Log:
        client_folder(task.folder, client, text)
        return open_readings(task.config, client, task.folder)

    with ExitStack() as stack:
        task.folder.mkdir(parents=True, exist_ok=True)
        identity = identity_of("influx 1", task.options["name"] or "")
        file = task.folder / f"producer.{identity}.db"
        checkpoint = open_replaceable(file, "the producer of points")
        bookmark = KafkaBookmark(stack.enter_context(checkpoint))
        endpoint = stack.enter_context(closing(Endpoint(settings, token)))
        log_event("write_endpoint_opened", port=endpoint.port)
        yield stack.enter_context(
            closing(InfluxIngest(task, endpoint, bookmark, counts, open_log, clock=clock))
        )
