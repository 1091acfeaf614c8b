"""Absorbs one record into one streaming model of one region: a pure function from the model's state
to its next state.

The state is bytes, and holds everything that a checkpoint of the server holds of the model. Time is
that of the record, as the brokers stamped it, so that nothing but the log decides what a model
learns and when a snapshot is published: a record that is processed again after a kill gives the
same bytes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.settings import Config
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import Wake
from shoal.protocol.signatures import ServerKeys
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import (
    STATE_BYTES_MAX,
    OutboxRecord,
    Required,
    SavedPart,
    SavedParts,
    required_version,
)
from shoal.server_node.ingest.ingest import Ingest, Ingested, RecordFailed, Rejections
from shoal.server_node.ingest.outcome import (
    StepOutcome,
    list_records,
    quarantine_requests,
    snapshot_records,
)
from shoal.server_node.ingest.quarantine import QuarantineRegister
from shoal.server_node.ingest.quotas import Quotas
from shoal.server_node.ingest.reassembly import Reassembly
from shoal.server_node.ingest.requests import ServerParts, TakenRequests, request_signer
from shoal.server_node.models.base import ModelEvent, PublishedSnapshot, ServedModel
from shoal.server_node.models.streaming import StreamingModel
from shoal.server_node.regions.hierarchy import Hierarchy
from shoal.transports.base import Record

STATE_VERSION = 5


class Absorbed(NamedTuple):
    """Result of absorbing one record."""

    state: bytes
    """state of the model after it"""
    records: tuple[OutboxRecord, ...]
    """the records to publish: a snapshot and cluster events, when one is due, or a rejected message
    """
    outcome: StepOutcome
    """the same for metrics and events"""
    pending: bool
    """whether updates have been absorbed that no snapshot shows yet"""


class _OneModel(dict[str, ServedModel]):
    """The model that a key names, as the models that records with this key can be for."""

    def __missing__(self, name: str) -> ServedModel:
        raise MessageRejected(
            "model", f"it is for model {name}, and its record has the key of another one"
        )


@dataclass
class _Parts:
    """Parts of a model that its state keeps, and those that change them."""

    model: StreamingModel
    ingest: Ingest
    reassembly: Reassembly
    quarantine: QuarantineRegister
    saved: SavedParts
    """all that the state keeps"""
    clock: list[float] = field(default_factory=lambda: [0.0])
    """the time of the record that is being processed"""


class RegionModel:
    """One streaming model of one region: what `absorb` needs besides its state.

    It keeps the objects that the newest state was made of, so that they need not be made from it
    again. That changes no result.
    """

    def __init__(
        self, config: Config, contract: ResolvedContract, model: ResolvedModel, log_identity: bytes
    ) -> None:
        """`log_identity` is that of the topic of updates. Raises `SettingsError` for keys that
        cannot be read."""
        self.contract = config.contract
        self.model = model.declared
        self.settings = config.server
        self._resolved = contract
        self._resolved_model = model
        self.validator = Validator(contract)
        self.rejections = Rejections(config.contract, config.log.update_bytes_max)
        self.statement = model.statement
        self.sign_request = request_signer(config.server, as_server=True)
        self._keys = ServerKeys(config.server, config.log.server_keys)
        self._state_name = f"the state of model {model.name} of {config.contract.federation}"
        self._required = self._required_values(log_identity)
        request = Wake(contract.federation, contract.digest, model.name, made_at=0.0)
        self._timer_request = request.encode()
        self._newest: tuple[bytes, _Parts] | None = None

    @property
    def timer_request(self) -> OutboxRecord:
        """The record that asks the model to look at its timers; it learns nothing from it."""
        contract = self.contract
        return OutboxRecord(
            contract.updates_topic,
            self._timer_request,
            contract.update_key(self.model.name),
            Wake.headers(),
        )

    def is_timer_request(self, record: Record) -> bool:
        """Whether `record` is one. Its time is the brokers', so that it makes nothing due early."""
        return record.value == self._timer_request and Wake.headers()[0] in record.headers

    def parts(self, state: bytes | None) -> _Parts:
        """The parts that `state` is the state of; None: a model without any update.

        Raises `InvalidState`.
        """
        newest = self._newest
        # Taken out first: should the record fail half-way, these are no longer the parts of that
        # state.
        self._newest = None
        # By its bytes: another replica may have served the region in between, and these parts would
        # be of an older state.
        if newest is not None and newest[0] == state:
            return newest[1]
        parts = self._empty_parts()
        if state is not None:
            self._restore(parts, state)
        return parts

    def saved(self, parts: _Parts) -> bytes:
        """The state of the parts, which must not be used after this call."""
        state = pack(parts.saved.state())
        self._newest = (state, parts)
        return state

    def _empty_parts(self) -> _Parts:
        # Not paced: how long a snapshot takes differs between machines, and must not decide when
        # one is published. A record that is absorbed again, elsewhere, has to give the same bytes.
        model = StreamingModel(self._resolved, self._resolved_model, self.settings, paced=False)
        reassembly = Reassembly()
        quarantine = QuarantineRegister()
        quotas = Quotas(self.settings)
        taken = TakenRequests()
        models = _OneModel({self.model.name: model})
        clock = [0.0]
        rejections = self.rejections
        hierarchy = Hierarchy(self.contract, None, models)
        server = ServerParts(
            self.validator, models, reassembly, quarantine, quotas, taken, hierarchy
        )
        ingest = Ingest(server, lambda: clock[0], rejections, self._keys)
        named: dict[str, SavedPart] = {
            "model": model,
            "reassembly": reassembly,
            "quarantine": quarantine,
            "quotas": quotas,
            "requests": taken,
        }
        saved = SavedParts(self._state_name, named, self._required)
        return _Parts(model, ingest, reassembly, quarantine, saved, clock)

    def _restore(self, parts: _Parts, state: bytes) -> None:
        try:
            saved = unpack(state, STATE_BYTES_MAX)
        except MessageRejected as damaged:
            raise InvalidState(f"{self._state_name} is damaged: {damaged}") from None
        if not isinstance(saved, dict):
            raise InvalidState(f"{self._state_name} is damaged: it is not a mapping")
        parts.saved.restore(saved)

    def _required_values(self, log_identity: bytes) -> dict[str, Required]:
        name = self._state_name
        return {
            "version": required_version(STATE_VERSION, name),
            "contract": Required(
                self.contract.digest,
                InvalidState(
                    f"{name} was made under another contract; put the old federation file back, or "
                    "begin under another [federation] name"
                ),
            ),
            "log": Required(
                log_identity,
                InvalidState(
                    f"{name} is of a topic of updates that was deleted since; begin with another "
                    "[replica] group"
                ),
            ),
        }


def absorb(region: RegionModel, state: bytes | None, record: Record) -> Absorbed:
    """Absorb `record` into the model that `state` is the state of (None: no update yet).

    The same arguments give the same result. Raises `InvalidState` for a state that cannot be read.
    """
    while True:
        parts = region.parts(state)
        try:
            return _absorb(region, parts, record)
        except RecordFailed as failed:
            # The second time it is rejected before it is looked at.
            region.rejections.failed.add(failed)


def _absorb(region: RegionModel, parts: _Parts, record: Record) -> Absorbed:
    model = parts.model
    now = record.timestamp_ms / 1000
    parts.clock[0] = now
    # What was due before the record is done without it, as a server would have done.
    events = list(model.on_timer(now))
    ingested: list[Ingested] = []
    if not region.is_timer_request(record):
        ingested.append(parts.ingest.process(record))
    events += model.on_timer(now)
    published = _due_snapshot(region, model, record, now)
    outcome = StepOutcome(
        ingested=[result.outcome for result in ingested],
        ingest_s=0.0,
        incomplete=parts.reassembly.collect_incomplete(),
        waiting_updates=len(parts.reassembly),
        events=events,
        published=published,
        quarantined=parts.quarantine.clients(),
        stored_at=None,
    )
    records = _records(region, parts, ingested, events, published, now)
    pending = model.pending
    return Absorbed(region.saved(parts), records, outcome, pending)


def _due_snapshot(
    region: RegionModel, model: StreamingModel, record: Record, now: float
) -> list[PublishedSnapshot]:
    if not model.snapshot_due(now):
        return []
    return [model.take_snapshot({record.partition: record.offset + 1}, region.statement, now)]


def _records(
    region: RegionModel,
    parts: _Parts,
    ingested: Sequence[Ingested],
    events: Sequence[ModelEvent],
    published: Sequence[PublishedSnapshot],
    now: float,
) -> tuple[OutboxRecord, ...]:
    """All records that the step publishes, in the order in which the server publishes them."""
    contract = region.contract
    records = [result.rejected for result in ingested if result.rejected is not None]
    for snapshot in published:
        records += snapshot_records(contract, snapshot)
    for request in quarantine_requests(contract, events, now):
        records.append(request._replace(headers=request.headers + region.sign_request(request)))
    # Each list is of all models of a federation, and a replica sees one.
    if len(contract.models) == 1:
        models = {parts.model.name: parts.model}
        outcomes = [result.outcome for result in ingested]
        records += list_records(contract, models, parts.quarantine, outcomes)
    return tuple(records)
