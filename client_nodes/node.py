"""The client node: a step reads readings, makes them private, learns them and publishes updates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.budget import Budget, RowCharges
from shoal.client_nodes.count_windows import CountWindows
from shoal.client_nodes.intake import READINGS_READ_MAX, Batch, Intake, no_batch
from shoal.client_nodes.learner import Learner
from shoal.client_nodes.monitoring import TOTALS, ClientMonitoring, Labelled, StepOutcome, Totals
from shoal.client_nodes.own_updates import OwnUpdates
from shoal.client_nodes.privacy import PrivateBatch, counted_only, privatise
from shoal.client_nodes.publisher import EncodedUpdate, Publisher, all_headers, make_signer
from shoal.client_nodes.releases import Releases
from shoal.client_nodes.round_answers import RoundAnswers
from shoal.client_nodes.snapshots import (
    NOTHING_PUBLISHED,
    Published,
    Snapshots,
    decode_snapshot,
)
from shoal.config.base import check_client_name
from shoal.config.changes import same_features
from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.config.resolved import Generation, ResolvedContract
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidState, OffsetOutOfRange, SettingsError
from shoal.privacy.imperfect import CoarseReadings, row_mechanism
from shoal.privacy.ledger import Ledger
from shoal.protocol.conflicts import CONFLICTS_KEY, check_no_conflict
from shoal.protocol.messages import Snapshot
from shoal.protocol.reading_faults import FaultCounts, Rejected
from shoal.protocol.readings import number_of
from shoal.protocol.topics import READINGS
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import (
    STORE_INTERVAL_S,
    Checkpoint,
    Outbox,
    OutboxRecord,
    Required,
    SavedPart,
    SavedParts,
    required_version,
)
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, first_positions

if TYPE_CHECKING:
    from shoal.client_nodes.labelling.labeller import Labeller
    from shoal.telemetry.metrics import ClientMetrics


class ClientResources(NamedTuple):
    """Resources of one client alone; none of them leaves its site."""

    readings: Log
    """the client's own log: raw readings, rejected ones, labels"""
    checkpoint: Checkpoint
    noise_key: bytes | None
    """None in privacy mode `off`, which adds no noise"""
    signing_key: bytes | None = None
    """None: updates are not signed"""
    noise_key_is_new: bool = False
    """made at this start, so that nothing can be published with it yet"""
    ledger: Ledger | None = None
    """None in a mode without a guarantee"""
    releases: Releases | None = None
    """None in a mode without a guarantee"""
    published: Published = NOTHING_PUBLISHED
    """records that the server had published when the client started"""
    decode: Callable[[Record], Snapshot] = decode_snapshot
    """decodes a snapshot; those of many clients in one process may share it"""
    store_interval_s: float = STORE_INTERVAL_S
    """most seconds of learning that are repeated after a kill"""
    is_one_of_many: bool = False
    """whether its process has those of thousands, and says in one line that they have begun"""


STATE_VERSION = 17
LABELS_PART = "labels"
"""name of the part that only a client with labels has"""


def required_values(contract_digest: str, readings_log: bytes) -> dict[str, Required]:
    """The values that every state of a client must have.

    `readings_log` is the 16 bytes of the identity of its log.
    """
    return {
        "version": required_version(STATE_VERSION, "the client's checkpoint"),
        "contract": Required(
            contract_digest,
            InvalidState(
                "the client's checkpoint was made under another contract; restore the old"
                " federation file, or start under a new client name"
            ),
        ),
        "readings_log": Required(
            readings_log,
            InvalidState(
                "the readings log was created anew since the checkpoint was stored, so its"
                " positions mean nothing; restore the readings log, or start under a new client"
                " name"
            ),
        ),
    }


def _check_repeats(contract: ResolvedContract, settings: ClientSettings) -> None:
    """Raises `SettingsError` where dropped repeats would show that another reading is there."""
    hides_each_reading = contract.contract.privacy.hide_presence and not contract.mode.unit.is_user
    if settings.drop_repeats and hides_each_reading:
        raise SettingsError(
            "drop_repeats lets the time of one reading decide on others, which hide_presence of"
            ' [privacy] must hide: leave it out, or take unit = "user"'
        )


def _windows_class(
    contract: ResolvedContract, log: bytes, ends: Callable[[], Positions]
) -> Callable[..., CountWindows]:
    """Only a client that masks its counts loads what it takes."""
    if not contract.mode.masked:
        return CountWindows
    from shoal.client_nodes.masked_windows import (  # noqa: PLC0415 - loaded only to mask counts
        MaskedWindows,
    )

    return partial(MaskedWindows, log=log, ends=ends)


class ClientNode:
    """Learns a client's readings and publishes updates: `resume` once, then `step` again and again.

    What is learned depends on the readings log alone. `clock` (seconds since 1970) decides only
    when an update is published before enough readings arrived, and that decision is in the
    checkpoint.
    """

    def __init__(
        self,
        contract: ResolvedContract,
        client: str,
        settings: ClientSettings,
        resources: ClientResources,
        log: Log,
        metrics: ClientMetrics | None = None,
        clock: Callable[[], float] = time.time,
        update_bytes_max: int = UPDATE_RECORD_BYTES_MAX,
    ) -> None:
        """`log` is the federation's; both logs have their topics.

        `update_bytes_max`: largest record for updates; `metrics` None: none are served. Raises
        `SettingsError` for a name that no client can have, and for settings that the contract does
        not allow.
        """
        self._client = check_client_name(client)
        self._contract = contract
        self._settings = settings
        self._resources = resources
        self._log = log
        self._clock = clock
        self.metrics = metrics
        _check_repeats(contract, settings)
        self._update_bytes_max = update_bytes_max
        self._totals = Totals()
        self._labels_to_publish: list[OutboxRecord] = []
        """labels that go to the outbox with the state they belong to"""
        self._updates_to_store: list[EncodedUpdate] = []
        """updates that wait for the next store; after a kill they are made again"""
        self._has_stored = False
        """whether `publish` has something to do"""
        self._stepped_at = math.inf
        """the clock at the newest step: one that was set back since is an event of its own"""
        self._acts_by_itself = (
            bool(contract.in_rounds)
            or contract.contract.privacy.hide_presence
            or contract.mode.masked
            or settings.label
            or bool(settings.epsilon_max)
        )
        """whether a step without readings may do something that no clock tells beforehand: rounds,
        labels, and limits that other federations share"""
        self.stored_end: int | None = None
        """`readings_end` of the newest state that this process has stored; None: none yet"""

    def _make_stages(self) -> None:
        """Make every stage of a step. Raises as they do."""
        contract = self._contract
        client = self._client
        settings = self._settings
        resources = self._resources
        validator = Validator(contract)
        publisher = Publisher(contract, client, validator, self._update_bytes_max)
        self._publisher = publisher
        key = resources.noise_key
        readings_log = resources.readings.identity(READINGS)
        self._own_updates = OwnUpdates(self._log, contract, client, key, resources.noise_key_is_new)
        headers = all_headers(self._own_updates.headers, make_signer(resources.signing_key))
        self._outbox = Outbox(resources.checkpoint, self._log, headers, resources.store_interval_s)
        self._intake = Intake(
            resources.readings,
            contract.width,
            settings,
            contract.mode.unit.is_user,
            contract.learns_gaps,
            contract.mode.times if contract.mode.formal else None,
        )
        self._no_batch = no_batch(contract.width)
        self._budget = Budget(contract, settings, resources.ledger)
        self._row_charges = RowCharges(resources.ledger, contract.rows_epsilon)
        self._snapshots = Snapshots(
            contract.contract,
            validator,
            self._log,
            self._check_copies,
            resources.published,
            resources.decode,
        )
        self._learner = Learner(contract, publisher, settings, self._clock())
        self._round_answers = RoundAnswers(
            contract, client, publisher, self._snapshots, settings, lambda: self._learner.rejected
        )
        # Noise is bound to the identity of the readings log: the same key must not give the same
        # noise to other readings at the same places of a log that was created anew.
        self._mechanism = None
        if contract.takes_rows:
            self._mechanism = row_mechanism(contract.mode, key, client, readings_log)
        self._coarse = CoarseReadings(
            contract.bounds, contract.contract.steps, key, client, readings_log
        )
        updates_log = self._log.identity(contract.contract.updates_topic)
        windows = _windows_class(contract, updates_log, self._own_updates.ends)
        self._windows = windows(
            contract,
            client,
            publisher,
            self._snapshots,
            resources.ledger,
            key,
            readings_log,
            settings.drop_repeats,
        )
        self._windows.at_limit(settings.at_epsilon_max)
        self._labels = self._make_labeller() if settings.label else None
        self._faults = FaultCounts([feature.name for feature in contract.features])
        self._monitoring = ClientMonitoring(
            self.metrics,
            self._lag_records,
            self._clock,
            lambda: self._learner.newest_reading_at,
            self._faults,
        )

    def _make_labeller(self) -> Labeller:
        from shoal.client_nodes.labelling.labeller import (  # noqa: PLC0415 - loaded only to label
            Labeller,
        )
        from shoal.client_nodes.labelling.waiting import sequences_of  # noqa: PLC0415 - the same

        readings = self._resources.readings
        sequences = sequences_of(
            self._contract,
            self._learner.sequence_halves,
            self._resources.noise_key,
            self._client,
            readings.identity(READINGS),
        )
        return Labeller(
            self._contract, self._client, self._settings, self._snapshots, readings, sequences
        )

    def resume(self) -> None:
        """Make every stage, restore the checkpoint, and publish its outbox again.

        Once, before the first step. Raises `SettingsError` when a noise key is missing;
        `InvalidState` when the checkpoint does not belong to the contract, the noise key and the
        readings log, the log has updates made with its noise key that it does not know, or the
        server has refused an update because another one has its number; and as the logs do.
        """
        self._make_stages()
        self._saved = self._saved_parts()
        self._updates_log = self._log.identity(self._contract.contract.updates_topic)
        state = self._resources.checkpoint.load()
        has_state = state is not None
        new_log = False
        if state is None:
            self._intake.positions = first_positions(self._resources.readings, READINGS)
            self._windows.check_ledger()
        else:
            generation = self._contract.earlier.get(state.get("contract", ""))
            if generation is not None:
                state = self._moved(state, generation)
            self._saved.restore(state)
            new_log = state["updates_log"] != self._updates_log
        if new_log:
            self._reset_published()
        else:
            conflicts = self._resources.published.records.get(CONFLICTS_KEY)
            check_no_conflict(conflicts, self._client, self._publisher.digests)
        self._own_updates.check(
            self._publisher.digests,
            {} if new_log else self._windows.sent_from,
            accept_unseen=self._settings.accept_unseen,
        )
        if not new_log:
            waiting = [record for _, record in self._resources.checkpoint.pending()]
            self._windows.check_log(self._own_updates.found, waiting, self._clock())
        releases = self._resources.releases
        ledger = self._resources.ledger
        if releases is not None and ledger is not None:
            releases.resume(ledger, has_state=has_state)
        # After the windows: what they hold open is a part of what is spent.
        self._budget.resume(ledger, self._windows)
        self._monitoring.resumed(
            self._contract,
            self._totals,
            self._novel(),
            from_checkpoint=has_state,
            new_log=new_log,
            is_one_of_many=self._resources.is_one_of_many,
        )
        # Last: every check above must come before anything is published.
        self._outbox.publish_pending()

    def _reset_published(self) -> None:
        """The federation's log was created anew, and has nothing of this client."""
        now = self._clock()
        self._own_updates.reset_published(now)
        self._learner.reset_published(now)
        self._round_answers.reset_published(now)
        self._windows.reset_published(now)
        if self._labels is not None:
            self._labels.reset_published(now)

    def step(self, timeout_s: float = 0.0) -> bool:
        """Read one batch, make it private, learn it, store and publish what is due.

        Returns whether there was anything to do. Raises `LogUnavailable` (try again later),
        `LogError` and `OffsetOutOfRange`. After an error this node must not step again: a new one
        resumes from the checkpoint.
        """
        did_something = self.advance(timeout_s)
        self.publish()
        return did_something

    def advance(self, timeout_s: float = 0.0) -> bool:
        """A step up to what it stores; `publish` must come before the next one.

        For a host, whose clients store together. Returns and raises as `step` does.
        """
        # Work that waits here needs no further reading to go on.
        if self._updates_to_store or (self._labels is not None and self._labels.has_work):
            timeout_s = 0.0
        self._stepped_at = self._clock()
        batch, released = self._read(timeout_s)
        began = time.perf_counter()
        # Before noise and counts: values of a coarse grid would fall on the edges of bins.
        released = self._spread(released)
        private = self._privatise(released)
        self._round_answers.keep(private, self._clock())
        learnt = self._learner.learn(private, self._clock())
        counted = self._windows.add(released, self._clock(), self._budget.allows_window)
        learn_s = time.perf_counter() - began
        answers = self._round_answers.make_answers(self._clock())
        labelled = self._write_local_results(batch)
        self._labels_to_publish += labelled.records
        self._updates_to_store += [*learnt, *counted, *answers.updates]
        # What a window or an answer was made for is decided by the clock and by others: it is
        # stored at once.
        stores = bool(counted or answers.updates) or self._should_store(
            batch, labelled, made=bool(learnt)
        )
        outcome = StepOutcome(
            batch=batch,
            private=private,
            updates=self._updates_to_store if stores else [],
            rejected_requests=answers.rejected,
            rejected_snapshots=self._snapshots.take_rejected(),
            learn_s=learn_s,
            labelled=labelled,
            novel=self._novel(),
            refused=batch.records - released.records,
        )
        self._count(outcome)
        stored_at = self._store(outcome.updates) if stores else None
        self._monitoring.stepped(outcome, self._totals, self._learner.nodes, stored_at)
        return outcome.did_something

    def is_idle(self) -> bool:
        """Whether a step would do and change nothing now: nothing is to be read, and nothing is
        due by the clock.

        For a host, in whose turns most of thousands of clients may be idle; False where only the
        step can tell. Raises as the readings log does.
        """
        if self._acts_by_itself or self._updates_to_store or self._monitoring.has_unlogged:
            return False
        now = self._clock()
        if not self._stepped_at <= now < self._due_at():
            return False
        return not self.has_come()

    def has_come(self) -> bool:
        """Whether readings wait that the newest step has not read. Raises as their log does."""
        return self._intake.has_come()

    def _due_at(self) -> float:
        """Time at which a step without readings does something, seconds since 1970; inf: never."""
        due_at = self._outbox.due_at
        if self._learner.has_unpublished:
            due_at = min(due_at, self._learner.due[1])
        if self._windows.open_places:
            due_at = min(due_at, self._windows.due_at)
        return due_at

    @property
    def totals(self) -> dict[str, int]:
        """`TOTALS` since the client was first started. They must not leave its site."""
        return {name: self._totals[name] for name in TOTALS}

    @property
    def rejected(self) -> list[Rejected]:
        """The readings rejected since the client was first started. They stay on its site."""
        return self._faults.rejected()

    def rejected_of(self, source: str) -> list[tuple[Rejected, int | None]]:
        """The same, each with the number of its first reading in this source; None where that is
        not known.

        `source`: what its records have as their header. The readings log knows the numbers, so the
        first of all stays the first over kills. Raises as the readings log does.
        """
        return [
            (rejected, self._number_in(source, *place))
            for rejected, place in self._faults.with_places()
        ]

    def _number_in(self, source: str, partition: int, offset: int) -> int | None:
        try:
            records, _ = self._resources.readings.read(READINGS, {partition: offset}, 1)
        except OffsetOutOfRange:  # retention has removed it
            return None
        if not records:
            return None
        headers = records[0].headers
        if dict(headers).get("source") != source.encode():
            return None
        return number_of(headers)

    @property
    def nodes(self) -> int:
        """Number of nodes of all models together."""
        return sum(self._learner.nodes.values())

    @property
    def window(self) -> Rows:
        """(n, d) the noisy rows from which round requests are answered."""
        return self._round_answers.window.rows

    @property
    def up_to_date(self) -> bool:
        """Whether every reading in the log is learned and published in an update."""
        has_unpublished = self._learner.has_unpublished or self._updates_to_store
        return not has_unpublished and self._intake.lag_records() == 0

    @property
    def updated_at(self) -> float:
        """Time from which the next update by the clock is counted, seconds since 1970.

        A client that is closed while it is silent, and opened again for its next reading, goes on
        with the time of before, so that it publishes when it would have.
        """
        return self._learner.updated_at

    @updated_at.setter
    def updated_at(self, time: float) -> None:
        self._learner.updated_at = time

    @property
    def readings_end(self) -> int:
        """Offset of the next reading in its log that it has not read."""
        return sum(self._intake.positions.values())

    @property
    def is_quiet(self) -> bool:
        """Whether it is to do nothing more before its next reading, whatever the clock says.

        What contracts add to that, see `why_kept_open`.
        """
        has_backlog = self._labels is not None and self._labels.has_backlog
        return self.up_to_date and not self._windows.open_places and not has_backlog

    @property
    def wakes_at(self) -> float | None:
        """Time at which it has something to do though no reading comes, seconds since 1970; inf:
        never.

        None where that may be now. What contracts add to that, see `why_kept_open`.
        """
        has_backlog = self._labels is not None and self._labels.has_backlog
        waits = self.has_unstored or self._outbox.has_pending or has_backlog
        if waits or self._intake.lag_records() > 0:
            return None
        moments = [math.inf]
        if self._learner.nodes and self._learner.has_unpublished:
            moments.append(self._learner.due[1])
        if self._windows.open_places:
            moments.append(self._windows.due_at)
        return min(moments)

    def _write_local_results(self, batch: Batch) -> Labelled:
        """Write rejected readings and labels to the client's own log.

        Their keys are the readings' places, so that writing them again after a kill changes
        nothing. Raises as the log does.
        """
        self._intake.write_rejected(batch)
        labelled = Labelled() if self._labels is None else self._labels.label(batch)
        if batch.rejected or labelled.labels or labelled.events:
            self._resources.readings.flush()
        return labelled

    def _novel(self) -> Mapping[str, int]:
        if self._labels is None:
            return {}
        return self._labels.novel

    def lag_records(self) -> int:
        """Number of records in the readings log that are not read yet. Raises as the log does."""
        return self._intake.lag_records()

    def _lag_records(self) -> int:
        """Number of records that are not read yet, as of this step's read."""
        if self._intake.found_none:
            return 0
        return self._intake.lag_records()

    def _read(self, timeout_s: float) -> tuple[Batch, Batch]:
        """The next batch, and as much of it as may be released: all or nothing.

        Waits up to `timeout_s` seconds for readings, also where none may be read.
        """
        self._intake.found_none = False
        now = self._clock()
        pause_s = self._windows.pause_s(now)
        if pause_s:
            # Nothing is read while windows pause: what is read must be counted in this step or
            # never.
            time.sleep(min(timeout_s, pause_s))
            return self._no_batch, self._no_batch
        timeout_s = min(timeout_s, self._windows.longest_wait_s(now))
        room = min(self._settings.batch_readings_max, READINGS_READ_MAX, self._windows.room)
        # No room until a window that is due by the clock is closed: the step after this one does
        # that.
        if not room:
            time.sleep(timeout_s)
            return self._no_batch, self._no_batch
        allowed = self._budget.allowance(room)
        # The limit of the budget is reached: what is not read can be learnt later, under a raised
        # limit.
        if not allowed and self._budget.pauses:
            time.sleep(timeout_s)
            return self._no_batch, self._no_batch
        before = dict(self._intake.positions)
        # Copied only where it can be needed: most clients have no limit.
        read_before = self._intake.state() if self._budget.pauses else None
        # A client that is part of a round must not keep the others waiting for a reading.
        interrupt = self._request_is_due if self._round_answers.expects_requests else None
        batch = self._intake.read(timeout_s, interrupt, allowed or None)
        if allowed and (not batch.records or self._budget.claim(batch.records)):
            self._budget.reserve(batch.records)
            self._row_charges.add(before, self._intake.positions)
            return batch, batch
        if read_before is not None:
            # They wait in their log; the next step finds the limit reached.
            self._intake.restore(read_before)
            return self._no_batch, self._no_batch
        return batch, self._no_batch

    def _spread(self, batch: Batch) -> Batch:
        """The batch with its values spread over the steps of their features, as it is learnt."""
        if not self._coarse.spreads or not batch.places:
            return batch
        return batch._replace(values=self._coarse.spread(batch.values, batch.places))

    def _privatise(self, batch: Batch) -> PrivateBatch:
        """The noisy rows of a batch; none where no model learns rows."""
        if self._mechanism is None:
            return counted_only(batch, self._contract.bounds, self._contract.learns_gaps)
        return privatise(self._mechanism, batch, self._contract.bounds)

    def _check_copies(self, conflicts: Record) -> None:
        self._own_updates.check_copies(conflicts, self._publisher.digests)

    def _request_is_due(self) -> bool:
        return self._round_answers.is_due(self._clock())

    def _should_store(self, batch: Batch, labelled: Labelled, *, made: bool) -> bool:
        records = batch.records + labelled.backlog
        limit = self._settings.batch_readings_max
        # Each store waits for the disk: a client that is behind stores the updates of several steps
        # together.
        is_behind = batch.records == READINGS_READ_MAX
        return self._outbox.should_store(records, limit, self._clock(), made=made, more=is_behind)

    def _count(self, outcome: StepOutcome) -> None:
        for name, number in outcome.counts().items():
            self._totals[name] += number
        for rejected in outcome.batch.rejected:
            place = (rejected.record.partition, rejected.record.offset)
            self._faults.add(rejected.fault, place)

    def mark_stored(self) -> None:
        """Note in the ledger what the newest `advance` has stored, which must be on the disk by
        now; `publish` does so where it was not done."""
        if self._has_stored:
            self._windows.stored()

    def publish(self) -> bool:
        """Publish what the newest `advance` has stored, which must be on the disk by now.

        Returns whether anything was published. Raises as `step` does.
        """
        if not self._has_stored:
            return False
        self._has_stored = False
        self._windows.stored()
        if self._resources.releases is not None:
            self._resources.releases.note()
        published = self._outbox.publish_pending()
        if published and self._contract.mode.masked:
            # What still waits in the outbox may be unpublished: only without it does a log that
            # lacks the message show that it is an older copy.
            self._outbox.store(self._state(), [], self._clock())
        return published > 0

    @property
    def has_unstored(self) -> bool:
        """Whether it has learnt something since its newest store."""
        return self._outbox.has_unstored

    def store_unstored(self) -> None:
        """Store what was learnt since the newest store, so that a new process needs not learn it
        again; `publish` must follow. Raises as `step` does."""
        if self.has_unstored:
            self._store(self._updates_to_store)

    def delete_published(self) -> None:
        """Delete what is published from the outbox: a process after this one needs not be started
        to publish it again. Raises as `step` does."""
        self._outbox.delete_published()

    def _store(self, updates: Sequence[EncodedUpdate]) -> float:
        """Store the state with these updates, to be published.

        Returns when it was stored, seconds since 1970.
        """
        now = self._clock()
        records = [record for update in updates for record in update.records]
        self._own_updates.note_end(now)
        if records:
            self._snapshots.look_for_conflicts(now)
            self._row_charges.charge()
        releases = self._resources.releases
        if records and releases is not None:
            releases.add(self._intake.positions)
        # After the ledger: a kill in between costs budget that nothing was published for, and never
        # the reverse.
        self._outbox.store(self._state(), records + self._labels_to_publish, now)
        self._labels_to_publish = []
        self._updates_to_store = []
        self._has_stored = True
        self.stored_end = self.readings_end
        return now

    def _saved_parts(self) -> SavedParts:
        """The whole checkpoint: every part, in the order in which they are restored.

        The mechanism is first: it refuses another noise key before anything else is restored.
        """
        parts: dict[str, SavedPart | None] = {
            "privacy": self._mechanism,
            "intake": self._intake,
            "published": self._publisher.digests,
            "own_updates": self._own_updates,
            "row_charges": self._row_charges,
            "learner": self._learner,
            "windows": self._windows,
            "round_answers": self._round_answers,
            "releases": self._resources.releases,
            LABELS_PART: self._labels,
            "totals": self._totals,
            "faults": self._faults,
        }
        made = {name: part for name, part in parts.items() if part is not None}
        # A client that labels now and did not before has no labels to restore.
        required = required_values(
            self._contract.digest, self._resources.readings.identity(READINGS)
        )
        return SavedParts("the client's checkpoint", made, required, optional={LABELS_PART})

    def _moved(self, state: dict[str, Any], generation: Generation) -> dict[str, Any]:
        """A state of an earlier contract without what this one cannot go on with.

        Nothing that was read is read again, so nothing is released twice; windows and updates keep
        their numbers. Raises `InvalidState`.
        """
        before = generation.contract
        standing = generation.standing
        key = self._resources.noise_key
        log = self._resources.readings.identity(READINGS)
        # The mechanism of the earlier contract refuses another noise key: it must be the same one,
        # whatever the bounds are now.
        if before.takes_rows:
            row_mechanism(before.mode, key, self._client, log).restore(state["privacy"])
        keeps_rows = before.takes_rows and same_features(before.contract, self._contract.contract)
        moved = {**state, "contract": self._contract.digest}
        if not keeps_rows and self._mechanism is not None:
            moved["privacy"] = self._mechanism.state()
        # Faults are counted by the position of the feature: they go on where it is the same one.
        names = [feature.name for feature in before.features]
        first_names = [feature.name for feature in self._contract.features[: len(names)]]
        if first_names != names:
            moved["faults"] = FaultCounts([]).state()
        moved["learner"] = self._learner.moved(state["learner"], standing)
        moved["round_answers"] = self._round_answers.moved(
            state["round_answers"], standing, keeps_rows
        )
        moved["windows"] = self._windows.moved(state["windows"], generation)
        if self._labels is not None and LABELS_PART in state:
            moved[LABELS_PART] = self._labels.moved(state[LABELS_PART], standing)
        log_event("contract_changed", before=before.digest, contract=self._contract.digest)
        return moved

    def _state(self) -> dict[str, Any]:
        return self._saved.state() | {"updates_log": self._updates_log}
