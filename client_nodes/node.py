"""The client node: one step reads a batch of readings, makes it private, learns it and publishes what is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from client_nodes.count_windows import CountWindows
from client_nodes.intake import Batch, Intake, no_batch
from client_nodes.learner import Learner
from client_nodes.local_results import LocalResults, ReadingLabels
from client_nodes.monitoring import TOTALS, ClientMonitoring, StepOutcome, Totals
from client_nodes.privacy import Budget, PrivateBatch, RowCharges, privatise
from client_nodes.publisher import OwnUpdates, Publisher, all_headers, make_signer
from client_nodes.round_answers import RoundAnswers
from client_nodes.snapshots import Snapshots
from shoal.algorithms.streaming import Rows
from shoal.config.base import check_client_name
from shoal.config.contract import Contract
from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.config.privacy import epsilon_spent, learns_from_counts, privacy_mode
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidState
from shoal.privacy import Mechanism, PrivacyMode
from shoal.privacy.ledger import Ledger
from shoal.protocol.topics import READINGS, readings_settings
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint, OutboxRecord
from shoal.runtime.conflicts import check_no_conflict
from shoal.runtime.outbox import Outbox
from shoal.transports.base import Log, first_positions

if TYPE_CHECKING:
    from shoal.telemetry.metrics import ClientMetrics


class ClientResources(NamedTuple):
    """What belongs to one client alone; none of it leaves its site."""

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


STATE_VERSION = 5
LABELS_PART = "labels"
"""name of the part that only a client with labels has"""


class SavedPart(Protocol):
    """A part of a node that its checkpoint keeps."""

    def state(self) -> Any:
        """Plain values and arrays, for `restore`."""
        ...

    def restore(self, state: Any) -> None:
        """Become what `state` gave. Raises `InvalidState`."""
        ...


def check_state(state: dict[str, Any], contract: Contract, readings_log: bytes) -> None:
    """Raises `InvalidState` for a state of another version, contract or readings log (its 16 bytes of identity)."""
    if state.get("version") != STATE_VERSION:
        raise InvalidState("the client's checkpoint is of another version of shoal; run that version")
    if state["contract"] != contract.digest:
        raise InvalidState(
            "the client's checkpoint was made under another contract; restore the old federation file, "
            "or start under a new client name"
        )
    if state["readings_log"] != readings_log:
        raise InvalidState(
            "the readings log was created anew since the checkpoint was stored, so its positions mean nothing; "
            "restore the readings log, or start under a new client name"
        )


class ClientNode:
    """Learns one client's readings and publishes what it learned: `resume` once, then `step` again and again.

    What is learned depends on the readings log alone. `clock` (seconds since 1970) decides only when an update is
    published before enough readings arrived, and that decision is in the checkpoint.
    """

    _mechanism: Mechanism | None
    """of rows; None where every model learns from counts. Of `resume`: noise is bound to the readings log's identity"""
    _windows: CountWindows
    """of `resume`, for the same reason"""

    def __init__(
        self,
        contract: Contract,
        client: str,
        settings: ClientSettings,
        resources: ClientResources,
        log: Log,
        metrics: ClientMetrics | None = None,
        clock: Callable[[], float] = time.time,
        update_bytes_max: int = UPDATE_RECORD_BYTES_MAX,
    ) -> None:
        """`log` is the federation's and has its topics; `update_bytes_max` is the largest record for updates.

        `metrics` None: none are served. Raises `SettingsError` for a name that no client can have.
        """
        self._client = check_client_name(client)
        self._contract = contract
        # Computing the digest encodes every feature, so it is not done for each checkpoint.
        self._digest = contract.digest
        self._settings = settings
        self._resources = resources
        self._log = log
        self._clock = clock
        self.metrics = metrics
        validator = Validator(contract)
        self._publisher = publisher = Publisher(contract, validator, update_bytes_max)
        needs_users = contract.privacy.privacy_unit.is_user
        self._intake = Intake(resources.readings, contract.width, settings, needs_users)
        self._budget = Budget(contract, settings, resources.ledger)
        rows_epsilon = privacy_mode(contract).epsilon_per_reading()
        self._row_charges = RowCharges(resources.ledger, rows_epsilon if self._learns_rows else None)
        self._learner = Learner(contract, client, publisher, settings, clock())
        self._snapshots = Snapshots(contract, validator, log)
        self._round_answers = RoundAnswers(contract, client, publisher, self._snapshots, settings)
        self._labels = self._make_labels() if settings.label else None
        self._local_results = LocalResults(resources.readings, self._labels)
        self._labels_to_publish: list[OutboxRecord] = []
        """that go to the outbox with the state they belong to"""
        self._own_updates = OwnUpdates(log, contract, client, resources.noise_key, resources.noise_key_is_new)
        headers = all_headers(self._own_updates.headers, make_signer(resources.signing_key))
        self._outbox = Outbox(resources.checkpoint, log, headers)
        self._totals = Totals()
        self._monitoring = ClientMonitoring(
            metrics,
            self._intake.lag_records,
            clock,
            lambda: self._learner.newest_reading_at,
            [feature.name for feature in contract.features],
        )

    def resume(self) -> None:
        """Restore the checkpoint and publish its outbox again. Once, before the first step.

        Raises `InvalidState` when the checkpoint does not belong to the contract, the noise key and the readings log,
        the log has updates made with its noise key that it does not know, or the server has refused an update because
        another one has its number;
        `SettingsError` when a noise key is missing, and as the logs do.
        """
        readings = self._resources.readings
        readings.ensure(READINGS, readings_settings(self._settings))
        self._local_results.ensure_topics()
        self._readings_log = readings.identity(READINGS)
        self._updates_log = self._log.identity(self._contract.updates_topic)
        privacy = privacy_mode(self._contract)
        self._make_private_stages(privacy)
        state = self._resources.checkpoint.load()
        new_log = False
        if state is None:
            self._intake.positions = first_positions(readings, READINGS)
            self._windows.check_ledger()
        else:
            self._restore(state)
            new_log = state["updates_log"] != self._updates_log
        if not new_log:
            check_no_conflict(self._log, self._contract, self._client, self._publisher.digests)
        if new_log:
            self._own_updates.reset()
            self._learner.reset_published()
            self._round_answers.reset_published()
            if self._labels is not None:
                self._labels.reset_identities()
        self._own_updates.check(self._publisher.digests)
        self._budget.resume(self._resources.ledger, self._windows)
        self._monitoring.resumed(
            privacy.statement(),
            epsilon_spent(self._contract),
            self._totals,
            self._novel(),
            from_checkpoint=state is not None,
            new_log=new_log,
        )
        self._outbox.publish_pending()

    def step(self, timeout_s: float = 0.0) -> bool:
        """Learn one batch of readings and publish what is due. False when there was nothing to do.

        Raises `LogUnavailable` (try again later), `LogError` and `OffsetOutOfRange`. After an error this node must not
        step again: a new one resumes from the checkpoint.
        """
        if self._labels is not None and self._labels.has_work:
            timeout_s = 0.0
        batch, released = self._read(timeout_s)
        began = time.perf_counter()
        private = self._privatise(released)
        self._round_answers.keep(private, self._clock())
        updates = self._learner.learn(private, self._clock()) + self._windows.add(released, self._clock())
        learn_s = time.perf_counter() - began
        answers = self._round_answers.make_answers(self._clock())
        labelled = self._local_results.write(batch)
        self._labels_to_publish += labelled.records
        updates += answers.updates
        rejected = self._snapshots.take_rejected()
        refused = batch.records - released.records
        outcome = StepOutcome(
            batch, private, updates, answers.rejected, rejected, learn_s, labelled.backlog, self._novel(), refused
        )
        stored_at = self._store_and_publish(outcome)
        self._monitoring.stepped(outcome, self._totals, self._learner.nodes, stored_at)
        return outcome.did_something

    @property
    def totals(self) -> dict[str, int]:
        """`TOTALS` since the client was first started. They must not leave its site."""
        return {name: self._totals[name] for name in TOTALS}

    @property
    def nodes(self) -> int:
        """Number of nodes of all models together."""
        return sum(self._learner.nodes.values())

    @property
    def window(self) -> Rows:
        """(n, d) the noisy rows from which round requests are answered; none where no model is in rounds."""
        return self._round_answers.window.rows

    @property
    def up_to_date(self) -> bool:
        """Whether every reading in the log is learned and published in an update."""
        return not self._learner.has_unpublished and self._intake.lag_records() == 0

    def _make_labels(self) -> ReadingLabels:
        """Only a client that labels its readings loads what it takes."""
        from client_nodes.labelling.labeller import Labeller  # noqa: PLC0415 - loaded only to label

        return Labeller(self._contract, self._client, self._settings, self._snapshots, self._resources.readings)

    def _novel(self) -> Mapping[str, int]:
        return {} if self._labels is None else self._labels.novel

    def _make_private_stages(self, privacy: PrivacyMode) -> None:
        """What depends on the identity of the readings log: the mechanism of rows, and the windows of counts."""
        key, resources = self._resources.noise_key, self._resources
        self._mechanism = privacy.mechanism(key, self._client, self._readings_log) if self._learns_rows else None
        self._windows = CountWindows(
            self._contract, self._client, self._publisher, self._snapshots, resources.ledger, key, self._readings_log
        )

    @property
    def _learns_rows(self) -> bool:
        return any(not learns_from_counts(model) for model in self._contract.models)

    def _read(self, timeout_s: float) -> tuple[Batch, Batch]:
        """The next batch, and as much of it as may be released: all or nothing, by the limit of the ledger."""
        none = no_batch(self._contract.width)
        allowed = self._budget.allowance(self._settings.batch_readings_max)
        if not allowed and self._budget.pauses:
            time.sleep(timeout_s)
            return none, none
        before = dict(self._intake.positions)
        interrupt = self._request_is_due if self._round_answers.expects_requests else None
        batch = self._intake.read(timeout_s, interrupt, allowed or None)
        if not allowed:
            return batch, none
        self._budget.reserve(batch.records)
        self._row_charges.add(before, self._intake.positions)
        return batch, batch

    def _privatise(self, batch: Batch) -> PrivateBatch:
        """The noisy rows of a batch; none where no model learns rows."""
        if self._mechanism is None:
            none = np.empty(0, dtype=np.int64)
            return PrivateBatch(np.empty((0, self._contract.width)), [], none, [], counted=len(batch.values))
        return privatise(self._mechanism, batch, self._contract)

    def _request_is_due(self) -> bool:
        return self._round_answers.is_due(self._clock())

    def _store_and_publish(self, outcome: StepOutcome) -> float | None:
        """When the checkpoint was stored, None if that was not due."""
        self._totals.update(outcome.counts())
        now = self._clock()
        records, limit = outcome.batch.records + outcome.backlog, self._settings.batch_readings_max
        if not outcome.updates and not self._outbox.should_store(records, limit, now):
            return None
        updates = [record for update in outcome.updates for record in update.records]
        self._own_updates.note_end(now)
        if updates:
            self._row_charges.charge()
        self._outbox.store(self._state(), updates + self._labels_to_publish, now)
        self._labels_to_publish = []
        self._windows.stored()
        self._outbox.publish_pending()
        return now

    def _parts(self) -> dict[str, SavedPart]:
        """What the checkpoint has of each stage, by name, in the order in which they are restored.

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
            LABELS_PART: self._labels,
            "totals": self._totals,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _state(self) -> dict[str, Any]:
        """The whole checkpoint: whose it is, and every part."""
        identity = {
            "version": STATE_VERSION,
            "contract": self._digest,
            "readings_log": self._readings_log,
            "updates_log": self._updates_log,
        }
        return identity | {name: part.state() for name, part in self._parts().items()}

    def _restore(self, state: dict[str, Any]) -> None:
        check_state(state, self._contract, self._readings_log)
        for name, part in self._parts().items():
            # A client that labels now and did not before has no labels to restore.
            if name in state:
                part.restore(state[name])
            elif name != LABELS_PART:
                raise InvalidState(f"the client's checkpoint lacks its part {name}; it is damaged")
