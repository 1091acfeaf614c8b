"""The server's step: read, check, absorb, remember, speak."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from server_node.model import ServerModel
from server_node.rounds import RoundsModel
from server_node.view import ClientSeen, Picture
from shoal.algorithms.registry import ROUNDS
from shoal.border import Border, terms_of
from shoal.checkpoint import Checkpoint, Word
from shoal.contract import Contract
from shoal.downlink import read_on
from shoal.errors import LogRefused, MessageRefused, StateRefused
from shoal.events import log_event
from shoal.messages import Rejected, Snapshot, Update, Wake
from shoal.metrics import ServerMetrics
from shoal.privacy import expected_statement
from shoal.settings import ServerSettings
from shoal.topics import ensure_topics
from shoal.transports.contract import Log, Positions, Record, beginning, latest
from shoal.uplink import Uplink

STATE_VERSION = 1
CLIENTS_SHOWN_MAX = 1000


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
        """Raises `StateRefused` when the checkpoint is not of this contract, or is missing though snapshots exist."""
        self._contract = contract
        self._settings = settings
        self._log = log
        self._checkpoint = checkpoint
        self._clock = clock
        self._border = Border(contract)
        self._statement = expected_statement(terms_of(contract))
        ensure_topics(log, contract)
        self._uplink = Uplink(checkpoint, log)
        self.metrics = metrics or ServerMetrics()
        self._models = self._make_models()
        self._positions = self._restore(rebuild)
        self._caught_up_at = dict(self._ends())
        self._rejected: Counter[str] = Counter()
        self._unshown: defaultdict[str, list[float]] = defaultdict(list)
        self._labelled: set[str] = set()
        self._started_at = clock()
        for model in self._models.values():
            if model.snapshot is not None:
                self._show_sizes(model.snapshot)
        self._uplink.speak()

    def step(self, timeout_s: float = 0.0) -> bool:
        """Read what has arrived, absorb it, remember, speak. True when anything was done.

        Raises `LogUnavailable` (try again later), `LogRefused` and `OffsetGone`; after an error only a new node
        from the checkpoint may go on.
        """
        topic = self._contract.updates_topic
        limit, gaps = self._settings.batch_updates_max, self._settings.accept_gap
        records, after = read_on(self._log, topic, self._positions, limit, timeout_s, gaps, self._allow_jumps)
        began = time.perf_counter()
        words = [word for record in records for word in self._hear(record)]
        if records:
            self.metrics.learn.observe(time.perf_counter() - began)
        now = self._clock()
        begun = self._look_at_clock(now, caught_up=len(records) < limit)
        self._positions = after
        words += self._snapshots(now)
        if records or words or begun:
            self._remember(words, now)
            self._uplink.speak()
            self._log.show_progress(f"{self._contract.federation}.server", topic, self._positions)
        return bool(records or words or begun)

    @property
    def up_to_date(self) -> bool:
        """Whether every update in the log is absorbed and the newest snapshots show it."""
        read = all(self._positions.get(partition, 0) >= end for partition, end in self._ends().items())
        return read and not any(model.changed for model in self._models.values())

    @property
    def at_rest(self) -> bool:
        """Whether no model is in the midst of its rounds."""
        return all(model.at_rest for model in self._models.values() if isinstance(model, RoundsModel))

    def models(self) -> dict[str, ServerModel | RoundsModel]:
        """name -> model, for the tests and the one-box."""
        return self._models

    def _make_models(self) -> dict[str, ServerModel | RoundsModel]:
        contract, settings = self._contract, self._settings
        finders = {m.name: ServerModel(contract, m, settings) for m in contract.models if m.algorithm not in ROUNDS}
        found = tuple(finders.values())
        return {
            model.name: finders.get(model.name)
            or RoundsModel(contract, model, settings, self._border, self.metrics, found)
            for model in contract.models
        }

    def _look_at_clock(self, now: float, caught_up: bool) -> bool:
        # An answer that stands in the log was given in time: no round closes before it has been read.
        models = [model for model in self._models.values() if caught_up or isinstance(model, ServerModel)]
        return sum(model.look_at_clock(now) for model in models) > 0

    def _allow_jumps(self) -> None:
        for model in self._models.values():
            model.roster.allow_jumps()

    def _hear(self, record: Record) -> Sequence[Word]:
        """Absorb one record; what is refused becomes a word for the rejected topic."""
        try:
            if ("type", Wake.TYPE.encode()) in record.headers:
                self._wake(Wake.decode(record.value, record.headers))
                return []
            update = Update.decode(record.value, record.headers)
            self._border.admit_update(update)
            new = self._models[update.model].hear(update, self._clock())
        except MessageRefused as refused:
            return [self._set_aside(record, refused)]
        self.metrics.updates.labels(result="absorbed" if new else "repeated").inc()
        if new:
            if update.round is None:
                # Answers to calls are about the same rows again and again.
                self.metrics.readings.labels(result="learned").inc(update.readings)
            self._unshown[update.model].append(update.made_at)
            self._note_client(update.client)
        return []

    def _wake(self, wake: Wake) -> None:
        self._border.admit_wake(wake)
        model = self._models[wake.model]
        assert isinstance(model, RoundsModel), "the border lets nobody wake what has no rounds"
        model.wake()

    def _note_client(self, client: str) -> None:
        """A label for each client, but not without end: anybody who may publish can make up names."""
        if client in self._labelled or len(self._labelled) < CLIENTS_SHOWN_MAX:
            self._labelled.add(client)
            self.metrics.last_seen.labels(client=client).set(self._clock())

    def _set_aside(self, record: Record, refused: MessageRefused) -> Word:
        self._rejected[refused.reason] += 1
        self.metrics.updates.labels(result="rejected").inc()
        self.metrics.rejected.labels(reason=refused.reason).inc()
        place = f"{record.topic}/{record.partition}/{record.offset}"
        log_event("update_rejected", logging.WARNING, reason=refused.reason, detail=refused.detail, origin=place)
        rejected = Rejected(
            record.value, record.key, refused.reason, refused.detail, *record[:3], original_headers=record.headers
        )
        # No value would mean that nothing was set aside under this key: it is kept as an empty one.
        return Word(self._contract.rejected_topic, rejected.value or b"", rejected.record_key, rejected.headers)

    def _snapshots(self, now: float) -> list[Word]:
        positions = [[partition, offset] for partition, offset in sorted(self._positions.items())]
        words = []
        for name, model in self._models.items():
            if not model.snapshot_due(now):
                continue
            snapshot = model.take_snapshot(positions, self._statement, now)
            words.append(Word(self._contract.snapshots_topic, model.said, name.encode(), Snapshot.headers()))
            self._count_snapshot(snapshot)
        return words

    def _show_sizes(self, snapshot: Snapshot) -> None:
        labels = {"model": snapshot.model}
        self.metrics.clusters.labels(**labels).set(snapshot.clusters)
        self.metrics.nodes.labels(**labels).set(snapshot.nodes)
        self.metrics.edges.labels(**labels).set(len(snapshot.arrays.get("edge", ())))
        self.metrics.version.labels(**labels).set(snapshot.version)

    def _count_snapshot(self, snapshot: Snapshot) -> None:
        self._show_sizes(snapshot)
        for made_at in self._unshown.pop(snapshot.model, ()):
            self.metrics.latency.observe(max(0.0, snapshot.made_at - made_at))
        log_event(
            "snapshot_published",
            model=snapshot.model,
            version=snapshot.version,
            clusters=snapshot.clusters,
            nodes=snapshot.nodes,
            updates=snapshot.updates,
        )

    def _remember(self, words: Sequence[Word], now: float) -> None:
        state = {
            "version": STATE_VERSION,
            "contract": self._contract.digest,
            "log": self._log.identity(self._contract.updates_topic),
            "positions": [[partition, offset] for partition, offset in sorted(self._positions.items())],
            "models": {name: model.state() for name, model in self._models.items()},
        }
        self._uplink.remember(state, words)
        self.metrics.checkpoint_at.set(now)

    def _restore(self, rebuild: bool) -> Positions:
        state = self._checkpoint.load()
        if state is None:
            return self._begin(rebuild)
        if state.get("version") != STATE_VERSION:
            raise StateRefused("the server's checkpoint is of another version of shoal; run that one")
        if state["contract"] != self._contract.digest:
            raise StateRefused(
                "the server's checkpoint was made under another contract; put the old federation file back, "
                "or begin the new federation under a new name or in a new folder"
            )
        if state["log"] != self._log.identity(self._contract.updates_topic):
            raise StateRefused(
                "the log was made anew since the checkpoint was saved; restore the log, or begin again in a new folder"
            )
        for name, model in self._models.items():
            model.restore(state["models"][name])
        log_event("checkpoint_restored", models=len(self._models))
        return dict(state["positions"])

    def _begin(self, rebuild: bool) -> Positions:
        """The start of the log; refused when snapshots tell of a memory that is gone, unless it is to be rebuilt."""
        published = latest(self._log, self._contract.snapshots_topic)
        at = beginning(self._log, self._contract.updates_topic)
        if published and not rebuild:
            raise StateRefused(
                f"snapshots of {self._contract.federation} were published but the server's checkpoint is gone; "
                "restore it, or let --rebuild learn everything again from the log"
            )
        from_the_log = [name for name, model in self._models.items() if isinstance(model, ServerModel)]
        if any(name.encode() in published for name in from_the_log) and any(at.values()):
            raise LogRefused("the log no longer begins at its first update, so the model cannot be rebuilt from it")
        for name, model in self._models.items():
            if record := published.get(name.encode()):
                model.rebuild(self._believed(name, record))
        return at

    def _believed(self, name: str, record: Record) -> Snapshot:
        """The newest snapshot of a model, which alone says how the model began. Raises `StateRefused`."""
        try:
            snapshot = Snapshot.decode(record.value, record.headers)
            self._border.admit_snapshot(snapshot)
            if snapshot.model != name:
                raise MessageRefused("model", f"it is of {snapshot.model}")
        except MessageRefused as refused:
            raise StateRefused(
                f"the newest snapshot of model {name} cannot be used to begin again as the server began ({refused}); "
                "restore the server's checkpoint, or begin under a new federation name"
            ) from None
        return snapshot

    def _ends(self) -> Positions:
        return {partition: end for partition, (_, end) in self._log.bounds(self._contract.updates_topic).items()}

    def picture(self) -> Picture:
        """What people may see now."""
        now = self._clock()
        lag = sum(end - self._positions.get(partition, 0) for partition, end in self._ends().items())
        self.metrics.lag.labels(topic=self._contract.updates_topic).set(lag)
        return Picture(
            contract=self._contract,
            started_at=self._started_at,
            now=now,
            ready=all(self._positions.get(partition, 0) >= end for partition, end in self._caught_up_at.items()),
            models={name: model.picture() for name, model in self._models.items()},
            clients=self._clients(now),
            rejected=dict(self._rejected),
            lag_records=lag,
            privacy=self._statement,
        )

    def _clients(self, now: float) -> list[ClientSeen]:
        """Each client once, as the model knows it that knows most of its readings."""
        seen: dict[str, ClientSeen] = {}
        for model in self._models.values():
            for client, updates, readings, last_seen in model.roster.clients():
                known = seen.get(client) or ClientSeen(client, last_seen, 0, -1, 0.0)
                if readings > known.readings:
                    rate = model.roster.readings_per_s(client, now)
                    known = ClientSeen(client, known.last_seen, updates, readings, rate)
                seen[client] = known._replace(last_seen=max(known.last_seen, last_seen))
        newest = sorted(seen.values(), key=lambda client: -client.last_seen)[:CLIENTS_SHOWN_MAX]
        return sorted(newest, key=lambda client: client.client)
