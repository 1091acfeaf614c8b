"""A server with a real log and a real checkpoint in a folder, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from shoal.config.contract import Contract
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.config.settings import LogSettings
from shoal.protocol.codec import pack
from shoal.protocol.lease import is_for_servers
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.server_node.history.store import HISTORY_FILE, HistoryStore
from shoal.server_node.node import ServerNode
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports import open_log
from shoal.transports.base import Headers, Log, Record, beginning, latest
from shoal.transports.sqlite.log import SqliteLog
from tests.small_plant import Clock, an_update, plant

NO_TIMERS = {"pool_s": 86_400.0, "snapshot_s": 86_400.0}
"""settings under which nothing happens by the clock"""


class ServerFixture:
    """A folder with a log and a checkpoint; servers are started and stopped in it."""

    broker: str | None = None
    """address of Kafka for the log; None: an embedded log in the folder"""

    def __init__(self, folder: Path, contract: Contract | None = None, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.contract = contract or plant()
        self.settings = ServerSettings(
            **{"pool_clients": 1, "snapshot_updates": 1, **NO_TIMERS, **settings}
        )
        self.log_settings = LogSettings()
        self.clock = Clock()

    @contextmanager
    def log(self) -> Iterator[Log]:
        with closing(self._open()) as log:
            ensure_topics(log, self.contract, self.log_settings)
            yield log

    def _open(self) -> Log:
        if self.broker is not None:
            return open_log(self.log_settings.model_copy(update={"address": self.broker}))
        return SqliteLog(self.folder / "federation.db", durable=False)

    @contextmanager
    def server(
        self,
        rebuild: bool = False,
        contract: Contract | None = None,
        metrics: ServerMetrics | None = None,
    ) -> Iterator[ServerNode]:
        """A resumed server; its checkpoint is closed at the end."""
        agreed = contract or self.contract
        with ExitStack() as stack:
            log = stack.enter_context(closing(self._open()))
            ensure_topics(log, agreed, self.log_settings)
            checkpoint = stack.enter_context(
                Checkpoint(self.folder / "checkpoint.db", f"server of {agreed.federation}")
            )
            history = stack.enter_context(
                closing(HistoryStore(resolve(agreed), self.folder / HISTORY_FILE))
            )
            node = ServerNode(
                resolve(agreed),
                self.settings,
                log,
                checkpoint,
                rebuild,
                metrics,
                self.clock,
                self.log_settings.update_bytes_max,
                history=history,
            )
            node.resume()
            yield node

    def send(self, *updates: Update) -> None:
        """Publish updates in this order."""
        self.publish(*((update.model, update.encode(), Update.headers()) for update in updates))

    def publish(self, *records: tuple[str, bytes | None, Headers]) -> None:
        """Publish any records (key, value, headers) to the updates topic."""
        with self.log() as log:
            for key, value, headers in records:
                log.publish(self.contract.updates_topic, value, key.encode(), headers)
            log.flush()

    def run(self, rebuild: bool = False) -> dict[str, bytes]:
        """Step a server until nothing is left; the models it ends with."""
        with self.server(rebuild) as server:
            while server.step():
                pass
            return models_of(server)

    def records_in(self, topic: str) -> list[Record]:
        with self.log() as log:
            at = beginning(log, topic)
            found: list[Record] = []
            while True:
                records, at = log.read(topic, at)
                if not records:
                    return found
                found += records

    def snapshots(self) -> list[Snapshot]:
        records = self.records_in(self.contract.snapshots_topic)
        return [
            Snapshot.decode(record.value, record.headers)
            for record in records
            if not is_for_servers(record)
        ]

    def rejected(self) -> dict[bytes, Record]:
        with self.log() as log:
            return latest(log, self.contract.rejected_topic)

    def delete_checkpoint(self) -> None:
        (self.folder / "checkpoint.db").unlink()


def models_of(server: ServerNode) -> dict[str, bytes]:
    """name -> what the algorithm of a streaming model has learnt, to the bit."""
    return {name: pack(model.state()["half"]) for name, model in server.models().items()}


def states_of(server: ServerNode) -> dict[str, bytes]:
    """name -> the whole saved state of a model, to the bit."""
    return {name: pack(model.state()) for name, model in server.models().items()}


def updates_of(site: ServerFixture, *named: tuple[str, int]) -> list[Update]:
    """An update for each client and sequence number."""
    return [an_update(site.contract, client, sequence) for client, sequence in named]


def pool_site(folder: Path, **settings: Any) -> ServerFixture:
    """A site whose streaming models pool the updates of three clients, for a minute at most."""
    return ServerFixture(folder, **{"pool_clients": 3, "pool_s": 60.0, **settings})
