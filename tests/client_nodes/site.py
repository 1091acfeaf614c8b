"""A client's site with real logs and a real checkpoint, and a federation's log to publish to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.client_nodes.node import ClientNode, ClientResources
from shoal.client_nodes.snapshots import read_published
from shoal.config.contract import Contract
from shoal.config.resolved import resolve
from shoal.config.sections import ClientSettings
from shoal.protocol.codec import unpack
from shoal.protocol.conflicts import AUTHOR_HEADER, INCARNATION_HEADER
from shoal.protocol.messages import Update
from shoal.protocol.readings import NUMBER, Reading, number_contents
from shoal.protocol.topics import (
    LABELS,
    READINGS,
    REJECTED,
    ensure_local_topics,
    ensure_topics,
    readings_settings,
)
from shoal.runtime.checkpoint import Checkpoint
from shoal.telemetry.metrics import ClientMetrics
from shoal.transports.base import Headers, Log, Record, latest
from shoal.transports.sqlite.log import SqliteLog
from tests.small_plant import Clock, plant

KEY = bytes(range(32))


def readings(n: int, seed: int = 0) -> NDArray[np.float64]:
    """(n, 2) readings of the plant in their units: two kinds of weather."""
    rng = np.random.default_rng(seed)
    kinds = np.array([[5.0, 80.0], [30.0, 25.0]])
    return kinds[rng.integers(0, 2, n)] + rng.normal(0, 2, (n, 2))


class Site:
    """One folder: the readings log of a client, its checkpoint, and the federation's log."""

    def __init__(
        self, folder: Path, contract: Contract | None = None, client: str = "attic", **settings: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.contract = contract or plant()
        self.client = client
        self.settings = ClientSettings(
            **{"publish_readings": 50, "publish_s": 86_400.0, **settings}
        )
        self.clock = Clock()
        # The noise depends on the log's identity: the log is created here, so that copies of a site
        # have the same.
        with self.readings():
            pass

    @contextmanager
    def readings(self) -> Iterator[Log]:
        with closing(SqliteLog(self.folder / "readings.db", durable=False)) as log:
            log.ensure(READINGS, readings_settings(self.settings))
            yield log

    @contextmanager
    def federation(self) -> Iterator[Log]:
        with closing(SqliteLog(self.folder / "federation.db", durable=False)) as log:
            ensure_topics(log, self.contract, labels=self.settings.publish_labels)
            yield log

    @contextmanager
    def node(
        self,
        contract: Contract | None = None,
        key: bytes | None = KEY,
        metrics: ClientMetrics | None = None,
    ) -> Iterator[ClientNode]:
        agreed = contract or self.contract
        with ExitStack() as stack:
            local = stack.enter_context(
                closing(SqliteLog(self.folder / "readings.db", durable=False))
            )
            log = stack.enter_context(
                closing(SqliteLog(self.folder / "federation.db", durable=False))
            )
            ensure_topics(log, agreed, labels=self.settings.publish_labels)
            ensure_local_topics(local, self.settings)
            checkpoint = stack.enter_context(
                Checkpoint(self.folder / "checkpoint.db", f"client {self.client}")
            )
            published = read_published(log, agreed)
            resolved = published.agreed(resolve(agreed))
            resources = ClientResources(local, checkpoint, key, published=published)
            node = ClientNode(
                resolved,
                self.client,
                self.settings,
                resources,
                log,
                metrics or ClientMetrics(),
                self.clock,
            )
            node.resume()
            yield node

    def add_readings(
        self, values: NDArray[np.float64] | Sequence[Any], started_at: float | None = 1e9
    ) -> None:
        """Append readings, a second apart; `started_at` None: without a time."""
        times = [None if started_at is None else started_at + n for n in range(len(values))]
        records = []
        # As a producer does it: with number and time beside the reading.
        numbered = number_contents(range(len(values)), times)
        for time, value, number in zip(times, values, numbered, strict=True):
            headers = (*Reading.headers(), (NUMBER, number))
            records.append((Reading(time, value).encode(), headers))
        self.add_records(*records)

    def add_records(self, *records: tuple[bytes | None, Headers]) -> None:
        """Append these records to the readings log."""
        with self.readings() as log:
            for value, headers in records:
                log.publish(READINGS, value, None, headers)
            log.flush()

    def run(self) -> dict[str, int]:
        """Run a client until it is idle; returns its totals."""
        with self.node() as node:
            while node.step():
                pass
            return node.totals

    def published(self) -> list[Record]:
        """Every update record that was published."""
        with self.federation() as log:
            found: list[Record] = []
            at = {0: 0}
            while True:
                records, at = log.read(self.contract.updates_topic, at)
                if not records:
                    return found
                found += records

    def publications(self) -> list[tuple[bytes | None, bytes | None, Headers]]:
        """Key, value and headers of every update record, without those headers that say which
        process published it."""
        of_process = {AUTHOR_HEADER, INCARNATION_HEADER}
        return [
            (
                record.key,
                record.value,
                tuple(entry for entry in record.headers if entry[0] not in of_process),
            )
            for record in self.published()
        ]

    def updates(self) -> list[Update]:
        return [Update.decode(record.value, record.headers) for record in self.published()]

    def rejected(self) -> dict[bytes, Record]:
        with self.readings() as log:
            return latest(log, REJECTED)

    def labels(self) -> dict[bytes, dict[str, Any]]:
        with self.readings() as log:
            return {key: unpack(record.value or b"") for key, record in latest(log, LABELS).items()}

    def published_labels(self) -> dict[bytes, dict[str, Any]]:
        with self.federation() as log:
            found = latest(log, self.contract.labels_topic)
        return {key: json.loads(record.value or b"") for key, record in found.items()}
