"""The server node: it merges the updates of all clients into the models of a federation and
publishes snapshots."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.config.resolved import Generation, ResolvedContract
from shoal.config.sections import ServerSettings
from shoal.errors import InvalidState, LogError, MessageRejected
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.lease import is_for_servers
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import publish_contract
from shoal.protocol.signatures import ServerKeys
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import (
    Checkpoint,
    Outbox,
    OutboxRecord,
    Required,
    SavedPart,
    SavedParts,
    SavedValue,
    pairs_of,
    positions_of,
    required_version,
)
from shoal.server_node.history.store import HistoryStore
from shoal.server_node.ingest.ingest import Ingest, Ingested, RecordFailed, Rejections, Unlearning
from shoal.server_node.ingest.masked import MaskedRounds
from shoal.server_node.ingest.outcome import (
    IngestOutcome,
    StepOutcome,
    contract_change_records,
    step_records,
)
from shoal.server_node.ingest.quarantine import QuarantineRegister
from shoal.server_node.ingest.quotas import Quotas
from shoal.server_node.ingest.reassembly import Reassembly
from shoal.server_node.ingest.requests import ServerParts, TakenRequests, request_signer
from shoal.server_node.models.base import (
    HistoryChange,
    ModelEvent,
    PublishedSnapshot,
    ServedModel,
)
from shoal.server_node.models.clients import client_statuses
from shoal.server_node.models.factory import PLAIN, make_models
from shoal.server_node.models.publisher import ModelPublisher
from shoal.server_node.monitoring import ServerMonitoring
from shoal.server_node.regions.hierarchy import Hierarchy, UpstreamState
from shoal.server_node.report.status import ClientStatus, ServerStatus
from shoal.telemetry.events import log_event
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports.base import (
    Log,
    Positions,
    Record,
    beginning,
    first_positions,
    latest,
    read_next,
)

STATE_VERSION = 31
CLOCKS_APART_S: Final = 0.002
"""seconds that a wait is longer than the clock says, so that it does not end just before"""
HISTORY_START_S: Final = 0.25
HISTORY_STEP_S: Final = 0.05
"""seconds of a start, and of each step, in which the history is made again from the log: mostly
nothing is left after the start"""
HELD_MAX: Final = 2**20
"""numbers of updates that wait for the history (8 MiB, in each checkpoint): beyond, it is read to
its end at once"""
GATHER_S: Final = 0.02
"""seconds for which a server that has waited for an update takes what follows into the same step:
clients that get their readings together publish one after the other, and those that come after a
snapshot wait for the next one"""

Models = Mapping[str, ServedModel]


def required_values(contract_digest: str, updates_log: bytes) -> dict[str, Required]:
    """The values that every state of a server must have; `updates_log` is the identity of the topic
    of updates."""
    return {
        "version": required_version(STATE_VERSION, "the server's checkpoint"),
        "contract": Required(
            contract_digest,
            InvalidState(
                "the server's checkpoint was made under another contract; put the old federation "
                "file back, or start the new federation under a new name or in a new folder"
            ),
        ),
        "log": Required(
            updates_log,
            InvalidState(
                "the log was made anew since the checkpoint was saved; restore the log, or start "
                "again in a new folder"
            ),
        ),
    }


def start_fresh(
    contract: ResolvedContract, validator: Validator, log: Log, models: Models, rebuild: bool
) -> Positions:
    """The positions of the start of the log, for a server without a checkpoint.

    Raises `InvalidState` when published snapshots show that a checkpoint has been lost, unless the
    models are to be rebuilt from the log; `LogError` when the log no longer holds what they would
    be rebuilt from.
    """
    agreed = contract.contract
    newest = latest(log, agreed.snapshots_topic)
    # A lease shows that a server ran here, and not that it has learnt anything.
    published = {key: record for key, record in newest.items() if not is_for_servers(record)}
    oldest = beginning(log, agreed.updates_topic)
    if published and not rebuild:
        raise InvalidState(
            f"snapshots of {contract.federation} were published but the server's checkpoint is "
            "gone; restore it, or let --rebuild learn everything again from the log"
        )
    whole_log = [name for name, model in models.items() if model.needs_whole_log]
    if any(name.encode() in published for name in whole_log) and any(oldest.values()):
        raise LogError(
            "the log no longer begins at its first update, so the model cannot be rebuilt from it"
        )
    for name, model in models.items():
        record = published.get(name.encode())
        if record is not None:
            _begin_after(name, model, record, contract, validator)
    # A server that never published reads from the first update ever, so that a log that has lost
    # some is noticed.
    if published:
        return oldest
    return first_positions(log, agreed.updates_topic)


def _begin_after(
    name: str,
    model: ServedModel,
    record: Record,
    contract: ResolvedContract,
    validator: Validator,
) -> None:
    """Let a model begin as its newest snapshot shows that it began. Raises `InvalidState`."""
    try:
        snapshot = Snapshot.decode(record.value, record.headers)
        validator.check_snapshot(snapshot)
        if snapshot.model != name:
            raise MessageRejected("model", f"it is of {snapshot.model}")
    except MessageRejected as rejected:
        raise InvalidState(
            f"the newest snapshot of model {name} cannot be used to rebuild the model "
            f"({rejected}); restore the server's checkpoint, or start under a new federation name"
        ) from None
    if validator.is_learnt(snapshot):
        model.rebuild(snapshot)
        return
    # Of an earlier contract: its arrays mean nothing to this one, but names, numbers and history go
    # on.
    before = contract.earlier[snapshot.contract].contract
    publisher = ModelPublisher(before, before.models[name])
    publisher.adopt(snapshot)
    model.begin_anew(publisher.state(), before)


class _Batch(NamedTuple):
    """Records read in one step."""

    records: Sequence[Record]
    positions: Positions
    """the next offset to read of each partition"""
    caught_up: bool
    """whether every update that was in the log when the step began has been read"""


class ServerNode:
    """Gives every update of the log to its model, and publishes the snapshots of all models. Drive
    it with `step`.

    The order of the log alone decides what is learnt. `clock` (seconds since 1970) decides only
    when timers are due and when snapshots are published, and what it decided is stored in the
    checkpoint.
    """

    def __init__(  # noqa: PLR0913 - one argument for each part of a server
        self,
        contract: ResolvedContract,
        settings: ServerSettings,
        log: Log,
        checkpoint: Checkpoint,
        rebuild: bool = False,
        metrics: ServerMetrics | None = None,
        clock: Callable[[], float] = time.time,
        update_bytes_max: int = UPDATE_RECORD_BYTES_MAX,
        *,
        history: HistoryStore,
        upstream: UpstreamState | None = None,
        server_keys: Path | None = None,
    ) -> None:
        """`log` has the topics; `update_bytes_max` is the largest record for updates; `upstream`
        None: there is no upstream federation; `server_keys` is that of `[log]`.

        Call `resume` before the first step.
        """
        self._resolved = contract
        self._contract = contract.contract
        self._settings = settings
        self._log = log
        self._checkpoint = checkpoint
        self._clock = clock
        self._update_bytes_max = update_bytes_max
        self._server_keys = server_keys
        self.metrics = metrics or ServerMetrics()
        self._rebuild = rebuild
        self._history = history
        self._upstream = upstream
        self._positions: Positions = {}
        self._unprocessed: _Batch | None = None
        """records that were read and are not processed yet"""
        self._ends_at_start: Positions = {}
        self._history_waits = False
        """whether models hold what belongs to a history that was not whole"""
        self._started_at = clock()

    def _make_stages(self) -> None:
        """Make the stages that keep nothing in a checkpoint. Raises as they do."""
        contract = self._resolved
        settings = self._settings
        self._validator = Validator(contract)
        self._statements = {model.name: model.statement for model in contract.models.values()}
        self._keys = ServerKeys(settings, self._server_keys)
        self._outbox = Outbox(self._checkpoint, self._log, request_signer(settings, as_server=True))
        self._monitoring = ServerMonitoring(self.metrics, contract, settings.client_names)
        self._rejections = Rejections(self._contract, self._update_bytes_max)

    def _make_parts(self) -> None:
        """Make the parts that a checkpoint restores, each as before the first update."""
        forms = PLAIN if self._upstream is None else self._upstream.model_forms
        self._models = make_models(
            self._resolved, self._settings, self._validator, self._history, forms
        )
        self._hierarchy = Hierarchy(self._contract, self._upstream, self._models)
        self._reassembly = Reassembly()
        self._quarantine = QuarantineRegister()
        self._quotas = Quotas(self._settings)
        self._taken = TakenRequests()
        parts = ServerParts(
            self._validator,
            self._models,
            self._reassembly,
            self._quarantine,
            self._quotas,
            self._taken,
            self._hierarchy,
        )
        self._unlearning = Unlearning(parts)
        self._masked = MaskedRounds(
            self._resolved,
            self._models,
            self._log,
            self._hierarchy.take,
            self._upstream,
        )
        self._ingest = Ingest(parts, self._clock, self._rejections, self._keys, self._masked)

    def resume(self) -> None:
        """Make every stage, restore the checkpoint, publish its outbox again and the contract.

        Once, before the first step. Raises `SettingsError` for a key that cannot be read;
        `InvalidState`: a checkpoint of another contract, or none although snapshots have been
        published; and as the log does.
        """
        self._make_stages()
        # Before the checkpoint is restored: the server is ready once it has read what was there
        # when it began.
        self._ends_at_start = dict(self._ends())
        restored = self._restore()
        clients = self._client_statuses(self._started_at)
        self._monitoring.resumed(self._models, clients, restored=restored)
        self._outbox.publish_pending()
        publish_contract(self._log, self._resolved)
        # After the outbox: a kill between storing and this left records that the history lacks.
        self._history.catch_up(self._log, HISTORY_START_S)
        self._history_waits = not self._history.whole or self._held_history > 0
        if not self._history.whole:
            log_event("history_read", share=self._history.share_read)

    def _restore(self) -> bool:
        """Make the parts anew and restore the checkpoint into them; whether there was one."""
        self._make_parts()
        self._saved = self._saved_parts()
        state = self._checkpoint.load()
        if state is None:
            self._positions = start_fresh(
                self._resolved, self._validator, self._log, self._models, self._rebuild
            )
            self._hierarchy.begin_without_checkpoint(self._log)
            return False
        generation = self._resolved.earlier.get(state.get("contract", ""))
        if generation is None:
            self._saved.restore(state)
        else:
            self._follow(generation, state)
        return True

    def _follow(self, generation: Generation, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint of an earlier contract.

        Models that stay are restored to the bit; of those that begin anew, names and numbers go on.
        The new state is stored with the removal of what is gone, before anything is read.
        """
        before = generation.contract
        standing = generation.standing
        # Whole, before anything else: models that begin anew take over counts of bins, and what is
        # removed from the history depends on what is in it.
        self._history.catch_up(self._log)
        same: dict[str, ServedModel] = {}
        anew: list[str] = []
        for name, model in self._models.items():
            if standing.get(name) == "same":
                same[name] = model
            elif standing.get(name) == "anew":
                anew.append(name)
                model.begin_anew(state["models"][name]["publisher"], before)
        self._saved_parts(same).restore({**state, "contract": self._contract.digest})
        self._quarantine.keep(self._models)
        # A model that begins anew knows of no quarantine, and its rounds must wait for no such
        # client.
        for entry in self._quarantine.clients():
            rounds = self._models[entry.model].rounds
            if rounds is not None:
                rounds.quarantine(entry.client)
        changed = contract_change_records(self._resolved, standing, self._history)
        # Stored before the history is changed: a kill in between leaves a history that is behind
        # its topic, and `catch_up` mends that. The other way round nothing would.
        self._outbox.store(self._saved.state(), changed.records, self._clock())
        self._history.apply(changed.history)
        stays = {*same, *anew}
        log_event(
            "contract_changed",
            before=before.digest,
            contract=self._contract.digest,
            same=", ".join(sorted(same)),
            anew=", ".join(sorted(anew)),
            added=", ".join(sorted(self._models.keys() - stays)),
            removed=", ".join(sorted(standing.keys() - stays)),
        )

    def _saved_parts(self, models: Models | None = None) -> SavedParts:
        """The values that a checkpoint must have, and its parts; `models`: those saved, or all."""
        required = required_values(
            self._contract.digest, self._log.identity(self._contract.updates_topic)
        )
        whole = "the server's checkpoint"
        parts: dict[str, SavedPart] = {
            "positions": SavedValue(lambda: pairs_of(self._positions), self._go_to),
            "models": SavedParts(whole, models if models is not None else self._models),
            "masked": self._masked,
            "reassembly": self._reassembly,
            "quarantine": self._quarantine,
            "unlearning": self._unlearning,
            "quotas": self._quotas,
            "requests": self._taken,
            "hierarchy": self._hierarchy,
        }
        return SavedParts(whole, parts, required)

    def _go_to(self, pairs: Sequence[Sequence[int]]) -> None:
        self._positions = positions_of(pairs)

    def step(self, timeout_s: float = 0.0) -> bool:
        """Read records, ingest them, do what is due by the clock, store and publish.

        Returns whether there was anything to do. Raises `LogUnavailable` (try again later),
        `LogError` and `OffsetOutOfRange`; after an error only a new node, resumed from the
        checkpoint, may go on.
        """
        history_waited = self._history_waits
        self._read_history()
        # Nothing is waited for while there is more of the history to read.
        wait_s = 0.0 if self._history_waits else self._wait_s(timeout_s)
        batch = self._unprocessed or self._read(wait_s)
        began = time.perf_counter()
        try:
            ingested, rejected, reached = self._process(batch, began + self._settings.step_s)
        except RecordFailed as failed:
            self._go_back(failed)
            return True
        ingest_s = time.perf_counter() - began
        unlearned = self._unlearning.after(ingested, reached, self._beginning_for(ingested))
        self._positions = unlearned.positions
        # After a request to unlearn, the log is read from its start once more.
        if self._positions != reached:
            self._unprocessed = None
            self._quotas.begin_again()
        caught_up = batch.caught_up and self._positions == batch.positions
        now = self._clock()
        events, published = self._run_timers(caught_up, unlearned.hidden, now)
        outcome = StepOutcome(
            ingested=ingested,
            ingest_s=ingest_s,
            incomplete=self._reassembly.collect_incomplete(),
            waiting_updates=len(self._reassembly),
            events=events,
            published=published,
            quarantined=self._quarantine.clients(),
            stored_at=None,
            reports=unlearned.reports,
            history=self._waiting_history(unlearned.hidden),
        )
        made = step_records(
            self._contract, self._models, self._quarantine, self._history, outcome, now
        )
        rounds = self._masked.records(now) if caught_up else ()
        records = [*rejected, *made.records, *rounds, *self._hierarchy.records(now)]
        stored = self._store(records, outcome, now)
        self._monitoring.observe(replace(outcome, stored_at=now) if stored else outcome)
        # Only what is on the disk may be seen: after a kill before the store it is learnt anew.
        if stored:
            self._publish()
            self._history.apply(made.history, self._log)
        return bool(ingested or records or events or history_waited)

    def _read_history(self) -> None:
        """Read on in a history that is made again from the log, for a part of a step."""
        if self._history.whole:
            return
        for_s = HISTORY_STEP_S if self._held_history <= HELD_MAX else math.inf
        self._history.catch_up(self._log, for_s)
        if self._history.whole:
            log_event("history_read", share=1.0)

    @property
    def _held_history(self) -> int:
        return sum(model.held_history for model in self._models.values())

    def _waiting_history(self, hidden: bool) -> Sequence[HistoryChange]:
        """What the models have held while the history was not whole, once it is."""
        if not self._history_waits or not self._history.whole or hidden:
            return ()
        self._history_waits = False
        return [model.take_history() for model in self._models.values()]

    def _go_back(self, failed: RecordFailed) -> None:
        """Go back to the checkpoint, as after a kill: models are unknown after a record that made
        one fail."""
        self._rejections.failed.add(failed)
        self._unprocessed = None
        self._restore()

    @property
    def up_to_date(self) -> bool:
        """Whether every update in the log has been processed and the newest snapshots show it."""
        is_read = _has_reached(self._positions, self._ends())
        return is_read and not any(model.pending for model in self._models.values())

    @property
    def idle(self) -> bool:
        """Whether no model does anything by itself until updates, time or a wake request come."""
        return all(model.rounds is None or model.rounds.idle for model in self._models.values())

    def models(self) -> Mapping[str, ServedModel]:
        """name -> model, for the tests and the one-box."""
        return self._models

    def status(self) -> ServerStatus:
        """Status of the server for people."""
        now = self._clock()
        topic = self._contract.updates_topic
        lag = 0
        margins: list[int] = []
        for partition, (first, end) in self._log.bounds(topic).items():
            lag += end - self._positions.get(partition, 0)
            margins.append(self._positions.get(partition, first) - first)
        # An alert needs the partition from which retention removes unread records first.
        self._monitoring.observe_lag(topic, lag, min(margins))
        self._monitoring.observe_hierarchy(self._hierarchy)
        self._monitoring.observe_places(self._quotas.used)
        self._monitoring.observe_masked(self._masked.waits_for(), self._masked.wrong_helpers)
        return ServerStatus(
            contract=self._resolved,
            started_at=self._started_at,
            now=now,
            ready=_has_reached(self._positions, self._ends_at_start),
            models={name: model.status() for name, model in self._models.items()},
            clients=self._client_statuses(now),
            rejected=self._monitoring.rejected,
            quarantined=self._quarantine.clients(),
            lag_records=lag,
            regions=self._hierarchy.regions,
            client_names=self._settings.client_names,
            history_read=self._history.share_read,
        )

    def _wait_s(self, timeout_s: float) -> float:
        """Seconds to wait for records, `timeout_s` at most; what is due waits for none of them."""
        now = self._clock()
        for model in self._models.values():
            timeout_s = min(timeout_s, model.snapshot_wait_s(now) + CLOCKS_APART_S)
        return timeout_s

    def _read(self, timeout_s: float) -> _Batch:
        topic = self._contract.updates_topic
        limit = self._settings.batch_updates_max
        gaps = self._settings.accept_gap
        # Asked before reading: what comes meanwhile is for the next step, or a busy log would never
        # be caught up with.
        ends = self._ends()
        records, after = read_next(
            self._log, topic, self._positions, limit, timeout_s, gaps, self._gap
        )
        models = self._models.values()
        until = time.monotonic()
        # Not with rounds: each waits for the one before, so that these waits would add up.
        if timeout_s > 0 and all(model.rounds is None for model in models):
            until += GATHER_S
        # One of each client and model: what comes after these is of the next burst.
        enough = min(limit, sum(len(model.clients) for model in models) or limit)
        while records and len(records) < enough:
            wait_s = until - time.monotonic()
            if wait_s <= 0:
                break
            more, after = read_next(
                self._log, topic, after, limit - len(records), wait_s, gaps, self._gap
            )
            records = [*records, *more]
        # Fewer records than asked for do not mean that these were all: a broker sends what it has
        # at hand.
        return _Batch(records, after, _has_reached(after, ends))

    def _process(
        self, batch: _Batch, until_s: float
    ) -> tuple[list[IngestOutcome], list[OutboxRecord], Positions]:
        """Ingest a batch: the outcome of each record, the records for the rejected topic, and the
        next positions.

        It stops after the first record at which the time `until_s` has passed, and keeps the others
        for the next step.
        """
        ingested: list[Ingested] = []
        for record in batch.records:
            # One record at least, or a step without time would never come any further.
            if ingested and time.perf_counter() >= until_s:
                break
            ingested.append(self._ingest.process(record))
        unprocessed = batch.records[len(ingested) :]
        self._unprocessed = batch._replace(records=unprocessed) if unprocessed else None
        reached = dict(batch.positions)
        # Backwards, so that the first unprocessed record decides for its partition.
        for record in reversed(unprocessed):
            reached[record.partition] = record.offset
        outcomes: list[IngestOutcome] = []
        rejected: list[OutboxRecord] = []
        for outcome, rejected_record in ingested:
            outcomes.append(outcome)
            if rejected_record is not None:
                rejected.append(rejected_record)
        return outcomes, rejected, reached

    def _beginning_for(self, ingested: Sequence[IngestOutcome]) -> Positions:
        """The beginning of the log, for a step that is to unlearn a client.

        No other step needs it, and to ask a broker takes time.
        """
        requests = (outcome.request for outcome in ingested)
        if any(request is not None and request.unlearn for request in requests):
            return beginning(self._log, self._contract.updates_topic)
        return {}

    def _run_timers(
        self, caught_up: bool, hidden: bool, now: float
    ) -> tuple[list[ModelEvent], list[PublishedSnapshot]]:
        """Let models do what is due by the clock; the events, and the snapshots due after them."""
        events: list[ModelEvent] = []
        published: list[PublishedSnapshot] = []
        self._hierarchy.follow_rounds(now)
        # Those in rounds come last: they may start from clusters that the others find in this step.
        for model in sorted(self._models.values(), key=lambda model: model.rounds is not None):
            # An answer that is in the log was given in time: no round closes before it was read.
            if caught_up or model.rounds is None:
                events += model.on_timer(now)
            if model.snapshot_due(now) and not hidden:
                statement = self._statements[model.name]
                published.append(model.take_snapshot(self._positions, statement, now))
        return events, published

    def _store(self, records: Sequence[OutboxRecord], outcome: StepOutcome, now: float) -> bool:
        """Save the checkpoint with the records of the step, where that is due; whether it was."""
        learnt = len(outcome.ingested)
        unstored_max = self._settings.batch_updates_max
        # Of a flood of records that are refused only the clock decides: a store for each batch
        # of them would take as long as to refuse them, and delay the updates behind them.
        if not any(ingested.kept for ingested in outcome.ingested):
            unstored_max = COUNT_MAX
        due = self._outbox.should_store(learnt, unstored_max, now)
        # Events are stored at once: what the clock decided cannot be learnt again from the log.
        if not (records or outcome.events or due):
            return False
        self._outbox.store(self._saved.state(), records, now)
        return True

    def _publish(self) -> None:
        self._outbox.publish_pending()
        self._log.show_progress(
            f"{self._contract.federation}.server", self._contract.updates_topic, self._positions
        )

    def _gap(self, records: int) -> None:
        """Note updates that were removed from the log before they were read."""
        self._monitoring.observe_lost(self._contract.updates_topic, records)
        for model in self._models.values():
            # Numbers of the updates that were lost never come: without this, each client's next one
            # could be too far ahead.
            model.clients.allow_jumps()

    def _ends(self) -> Positions:
        bounds = self._log.bounds(self._contract.updates_topic)
        return {partition: end for partition, (_, end) in bounds.items()}

    def _client_statuses(self, now: float) -> list[ClientStatus]:
        return client_statuses((model.clients for model in self._models.values()), now)


def _has_reached(positions: Positions, ends: Positions) -> bool:
    """Whether every record before `ends` has been read."""
    return all(positions.get(partition, 0) >= end for partition, end in ends.items())
