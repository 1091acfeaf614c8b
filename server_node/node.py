"""The server's step: read, check, absorb, remember, speak."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from server_node.ingest import Ingest
from server_node.models.rounds import RoundsModel
from server_node.models.streaming import StreamingModel
from server_node.monitoring import CLIENTS_SHOWN_MAX, ServerMonitoring
from server_node.reassembly import Reassembly
from server_node.recovery import begun, gone_on, remembered
from server_node.status import ClientStatus, ServerStatus
from shoal.algorithms.registry import is_in_rounds
from shoal.config.contract import Contract
from shoal.config.privacy_terms import privacy_terms_of
from shoal.config.settings import ServerSettings
from shoal.privacy import expected_statement
from shoal.protocol.messages import Snapshot
from shoal.protocol.signatures import ClientKeys
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint, OutboxRecord
from shoal.runtime.outbox import Outbox
from shoal.runtime.reader import read_next
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports.base import Log, Positions


class ServerNode:
    """Feeds what arrives into every model of a federation and publishes snapshots. `step` is what runs and tests drive.

    The order of the log alone decides what is learnt; `clock` (seconds since 1970) decides only when a pool that
    waits too long begins and when snapshots are published, and what it decided is in the checkpoint.
    """

    def __init__(
        self,
        contract: Contract,
        settings: ServerSettings,
        log: Log,
        checkpoint: Checkpoint,
        rebuild: bool = False,
        metrics: ServerMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`log` has the topics; the node may step once `resume` was called."""
        self._contract = contract
        self._settings = settings
        self._log = log
        self._checkpoint = checkpoint
        self._clock = clock
        self._border = Validator(contract)
        self._statement = expected_statement(privacy_terms_of(contract))
        self._outbox = Outbox(checkpoint, log)
        self.metrics = metrics or ServerMetrics()
        self._models = self._make_models()
        self._counting = ServerMonitoring(self.metrics)
        keys = None if settings.client_keys is None else ClientKeys(settings.client_keys)
        self._joining = Reassembly(self._counting.dropped)
        self._hearing = Ingest(contract, self._border, self._models, self._joining, self._counting, clock, keys)
        self._rebuild = rebuild
        self._positions: Positions = {}
        self._caught_up_at: Positions = {}
        self._started_at = clock()

    def resume(self) -> None:
        """Restore the checkpoint and publish its outbox again. Raises `InvalidState`, and as the log does."""
        state = self._checkpoint.load()
        if state is None:
            self._positions = begun(self._contract, self._border, self._log, self._models, self._rebuild)
        else:
            self._positions = gone_on(self._contract, self._log, state, self._models, self._joining)
        self._caught_up_at = dict(self._ends())
        newest = {name: model.snapshot for name, model in self._models.items()}
        self._counting.begun(newest, self._clients(self._started_at))
        self._outbox.publish_pending()

    def step(self, timeout_s: float = 0.0) -> bool:
        """Read what has arrived, absorb it, remember, speak. True when anything was done.

        Raises `LogUnavailable` (try again later), `LogError` and `OffsetOutOfRange`; after an error only a new node
        from the checkpoint may go on.
        """
        topic = self._contract.updates_topic
        limit, gaps = self._settings.batch_updates_max, self._settings.accept_gap
        ends = self._ends()
        records, after = read_next(self._log, topic, self._positions, limit, timeout_s, gaps, self._allow_jumps)
        began = time.perf_counter()
        words = [word for record in records for word in self._hearing.hear(record)]
        if records:
            self.metrics.learn.observe(time.perf_counter() - began)
        now = self._clock()
        # Fewer records than asked for do not mean that these were all: a broker sends what it has at hand.
        caught_up = all(after.get(partition, 0) >= end for partition, end in ends.items())
        self._positions = after
        begun = self._on_timer(StreamingModel, now)
        words += self._snapshots(now)
        # After the others, as it may start from what they have just found; and an answer that stands in the log was
        # given in time: no round closes before it has been read.
        if caught_up and self._on_timer(RoundsModel, now):
            begun = True
            words += self._snapshots(now)
        # What the clock decided cannot be learnt again from the log.
        if words or begun or self._outbox.should_store(len(records), limit, now):
            self._remember(words, now)
            self._outbox.publish_pending()
            self._log.show_progress(f"{self._contract.federation}.server", topic, self._positions)
        return bool(records or words or begun)

    @property
    def up_to_date(self) -> bool:
        """Whether every update in the log is absorbed and the newest snapshots show it."""
        read = all(self._positions.get(partition, 0) >= end for partition, end in self._ends().items())
        return read and not any(model.changed for model in self._models.values())

    @property
    def idle(self) -> bool:
        """Whether no model is in the midst of its rounds."""
        return all(model.idle for model in self._models.values() if isinstance(model, RoundsModel))

    def models(self) -> dict[str, StreamingModel | RoundsModel]:
        """name -> model, for the tests and the one-box."""
        return self._models

    def _make_models(self) -> dict[str, StreamingModel | RoundsModel]:
        contract, settings = self._contract, self._settings
        finders = {
            m.name: StreamingModel(contract, m, settings) for m in contract.models if not is_in_rounds(m.algorithm)
        }
        found = tuple(finders.values())
        return {
            model.name: finders.get(model.name)
            or RoundsModel(contract, model, settings, self._border, self.metrics, found)
            for model in contract.models
        }

    def _on_timer(self, kind: type, now: float) -> bool:
        return sum(model.on_timer(now) for model in self._models.values() if isinstance(model, kind)) > 0

    def _allow_jumps(self) -> None:
        for model in self._models.values():
            model.clients.allow_jumps()

    def _snapshots(self, now: float) -> list[OutboxRecord]:
        positions = [[partition, offset] for partition, offset in sorted(self._positions.items())]
        words = []
        for name, model in self._models.items():
            if not model.snapshot_due(now):
                continue
            snapshot = model.take_snapshot(positions, self._statement, now)
            words.append(OutboxRecord(self._contract.snapshots_topic, model.said, name.encode(), Snapshot.headers()))
            self._counting.published(snapshot, model.turnover)
        return words

    def _remember(self, words: Sequence[OutboxRecord], now: float) -> None:
        state = remembered(self._contract, self._log, self._positions, self._models, self._joining)
        self._outbox.store(state, words, now)
        self.metrics.checkpoint_at.set(now)

    def _ends(self) -> Positions:
        return {partition: end for partition, (_, end) in self._log.bounds(self._contract.updates_topic).items()}

    def status(self) -> ServerStatus:
        """What people may see now."""
        now = self._clock()
        topic, at = self._contract.updates_topic, self._positions
        bounds = self._log.bounds(topic)
        lag = sum(end - at.get(partition, 0) for partition, (_, end) in bounds.items())
        self.metrics.lag.labels(topic=topic).set(lag)
        margin = min(at.get(partition, first) - first for partition, (first, _) in bounds.items())
        self.metrics.margin.labels(topic=topic).set(margin)
        return ServerStatus(
            contract=self._contract,
            started_at=self._started_at,
            now=now,
            ready=all(self._positions.get(partition, 0) >= end for partition, end in self._caught_up_at.items()),
            models={name: model.status() for name, model in self._models.items()},
            clients=self._clients(now),
            rejected=self._counting.rejected,
            lag_records=lag,
            privacy=self._statement,
        )

    def _clients(self, now: float) -> list[ClientStatus]:
        """Each client once, as the model knows it that knows most of its readings."""
        seen: dict[str, ClientStatus] = {}
        for model in self._models.values():
            for client, updates, readings, last_seen in model.clients.totals():
                known = seen.get(client) or ClientStatus(client, last_seen, 0, -1, 0.0)
                if readings > known.readings:
                    rate = model.clients.readings_per_s(client, now)
                    known = ClientStatus(client, known.last_seen, updates, readings, rate)
                seen[client] = known._replace(last_seen=max(known.last_seen, last_seen))
        newest = sorted(seen.values(), key=lambda client: -client.last_seen)[:CLIENTS_SHOWN_MAX]
        return sorted(newest, key=lambda client: client.client)
