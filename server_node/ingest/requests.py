"""Requests on the topic of updates: one class for each, with its check, what it does, and its
event.

`REQUESTS` is the table of all. A new request is a message in `shoal.protocol`, a class here and its
line in the table.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, cast

from shoal.config.contract import Contract
from shoal.config.sections import ServerSettings
from shoal.errors import MessageRejected
from shoal.protocol.masked import CloseRound, RoundPlan
from shoal.protocol.messages import ClusterAlerts, ClusterName, ModelMessage, OperatorRequest, Wake
from shoal.protocol.quarantine import QuarantineRequest
from shoal.protocol.regions import Contribute
from shoal.protocol.signatures import RequestSigner
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.saved_state import SavedState, state_type
from shoal.server_node.ingest.quarantine import AHEAD_S_MAX, Place, QuarantineRegister
from shoal.server_node.ingest.quotas import Quotas
from shoal.server_node.ingest.reassembly import Reassembly
from shoal.server_node.models.base import ServedModel
from shoal.server_node.regions.hierarchy import Hierarchy
from shoal.server_node.report.lineage.events import ClusterChange, EventKind
from shoal.transports.base import Headers, Record

SUBJECTS_MAX: Final = 10_000
"""subjects, counted for each model, that requests of one type may be about: each is kept, and in
every checkpoint"""


@state_type
class TakenRequestsState(SavedState):
    """Saved state of `TakenRequests`."""

    newest: dict[str, dict[str, dict[str, float]]]
    """type of message -> model -> subject -> when the newest request was made"""


class TakenRequests:
    """Times of the newest request about each subject, so that a request is taken once.

    A signature does not show that a request is new: any reader of the log could publish an earlier
    one again and undo a later one. What was taken follows from the log, so a rebuild takes the
    same.
    """

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, dict[str, float]]] = {}
        """type of message -> model -> subject -> when the newest request was made, seconds since
        1970"""

    def check(self, request: OperatorRequest) -> None:
        """Raises `MessageRejected` ("repeated") for one that was not made after the newest about
        its subject.

        And ("quota") for one about a further subject where there are `SUBJECTS_MAX`.
        """
        of_type = self._newest.get(request.TYPE, {})
        newest = of_type.get(request.model, {}).get(request.subject)
        if newest is not None:
            if request.made_at <= newest:
                raise MessageRejected(
                    "repeated",
                    "not made after the newest request about the same; compare the clocks",
                )
        elif sum(len(subjects) for subjects in of_type.values()) >= SUBJECTS_MAX:
            raise MessageRejected(
                "quota", f"there have been requests of this type about {SUBJECTS_MAX} already"
            )

    def remember(self, request: OperatorRequest) -> None:
        """Keep when the request was made, as it has been taken."""
        of_type = self._newest.setdefault(request.TYPE, {})
        of_type.setdefault(request.model, {})[request.subject] = request.made_at

    def begin_again(self) -> None:
        """Forget all: the log is read from its start once more, and its requests taken again."""
        self._newest = {}

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return TakenRequestsState(newest=self._newest).saved()

    def restore(self, state: Any) -> None:
        """Become the saved one. Raises `InvalidState`."""
        self._newest = TakenRequestsState.read(state).newest


@dataclass(frozen=True)
class ServerParts:
    """The parts of a server that a record of the topic of updates can change, and the checks that
    it passes before."""

    validator: Validator
    models: Mapping[str, ServedModel]
    reassembly: Reassembly
    quarantine: QuarantineRegister
    quotas: Quotas
    taken: TakenRequests
    hierarchy: Hierarchy


class Applied(NamedTuple):
    """A request that has been applied, as the step that read it and monitoring see it."""

    event: str = ""
    """name of the event to log; empty for none"""
    level: int = logging.INFO
    """level of the event"""
    fields: Mapping[str, str] = {}
    """fields of the event"""
    quarantine_changed: bool = False
    """whether the published list of clients in quarantine has to be made anew"""
    unlearn: str = ""
    """the client that the model has to be rebuilt without; empty for none"""


class Request(ABC):
    """One request, decoded and not checked yet."""

    message_type: ClassVar[type[ModelMessage]]
    action: ClassVar[str] = ""
    """tells requests with the same type of message apart"""
    once: ClassVar[bool] = True
    """whether it is taken once: one that is published again, or made before the newest one about
    the same, is not"""
    event: ClassVar[str] = ""
    """name of the event to log; empty for none"""
    level: ClassVar[int] = logging.INFO
    """level of the event"""
    event_fields: ClassVar[tuple[str, ...]] = ("model",)
    """fields of the message that the event has"""

    def __init__(self, message: ModelMessage, place: Place, logged_at: float) -> None:
        """`place` is that of its record in the topic of updates, `logged_at` when the log took it
        in, s since 1970."""
        self.message = message
        self.place = place
        self.logged_at = logged_at

    @property
    def model(self) -> str:
        """The name of the model that it is for."""
        return self.message.model

    def check(self, server: ServerParts) -> None:
        """Raises `MessageRejected` for a request that is not for this federation, or asks for what
        cannot be.

        And for one that was taken before, or is from the future, where no other one could be newer.
        """
        server.validator.check_request(self.message)
        if isinstance(self.message, OperatorRequest):
            if self.message.made_at > self.logged_at + AHEAD_S_MAX:
                raise MessageRejected(
                    "malformed", "made_at lies more than a day after the log took the request in"
                )
            if self.once:
                server.taken.check(self.message)

    def take(self, server: ServerParts, record: Record) -> Applied:
        """Check and apply it, and remember that it was taken. Raises `MessageRejected`; then
        nothing has changed."""
        self.check(server)
        if not self.once or not isinstance(self.message, OperatorRequest):
            return self.apply(server)
        # After the check, so that requests that are published again do not use up the quota of
        # operators.
        server.quotas.check_request(self.message, record)
        applied = self.apply(server)
        # Only once it was applied: one that is refused may be corrected and sent again with the
        # same time.
        server.taken.remember(self.message)
        return applied

    @abstractmethod
    def apply(self, server: ServerParts) -> Applied:
        """Do what is asked for. Raises `MessageRejected`."""

    def applied(self) -> Applied:
        """The result of `apply`: the event that the class declares, with its fields from the
        message."""
        fields = {name: str(getattr(self.message, name)) for name in self.event_fields}
        return Applied(self.event, self.level, fields if self.event else {})


class WakeModel(Request):
    """Asks a model in rounds to collect answers now."""

    message_type = Wake
    event = "wake_requested"

    def check(self, server: ServerParts) -> None:
        """Besides: the model must have rounds."""
        super().check(server)
        server.validator.check_wake(self.message)

    def apply(self, server: ServerParts) -> Applied:
        """Wake the model, if it sleeps."""
        rounds = server.models[self.model].rounds
        assert rounds is not None, "the check lets no request pass for a model without rounds"
        rounds.wake()
        return self.applied()


class NameCluster(Request):
    """Gives a cluster a name."""

    message_type = ClusterName
    event = "name_requested"

    def apply(self, server: ServerParts) -> Applied:
        """Name the cluster in all snapshots to come. Raises `MessageRejected` ("cluster") if there
        is none."""
        name = cast("ClusterName", self.message)
        change = ClusterChange(name.identity, EventKind.NAMED, {"name": name.name})
        server.models[self.model].change_cluster(change, self.place)
        return self.applied()


class AlertsRequest(Request):
    """Base of the requests that decide whether a cluster raises alerts."""

    message_type = ClusterAlerts
    event = "alerts_requested"
    event_fields = ("model", "action")
    kind: ClassVar[EventKind]
    confirmed: ClassVar[bool] = False

    def apply(self, server: ServerParts) -> Applied:
        """Change the cluster in all snapshots to come. Raises `MessageRejected` ("cluster") if
        there is none."""
        asked = cast("ClusterAlerts", self.message)
        values = {"confirmed": self.confirmed, "muted_until": asked.until}
        server.models[self.model].change_cluster(
            ClusterChange(asked.identity, self.kind, values), self.place
        )
        return self.applied()


class ConfirmCluster(AlertsRequest):
    """Confirms a cluster as normal."""

    action = "confirm"
    kind = EventKind.CONFIRMED
    confirmed = True


class MuteCluster(AlertsRequest):
    """Mutes a cluster for a time."""

    action = "mute"
    kind = EventKind.MUTED


class UnmuteCluster(AlertsRequest):
    """Lets a cluster raise alerts again."""

    action = "alert"
    kind = EventKind.UNMUTED


class ContributeUpstream(Request):
    """Asks a region to contribute upstream what a model has learnt; the region's own server writes
    it."""

    message_type = Contribute
    # One that is published again undoes nothing: it contributes what has come since, if anything
    # has.
    once = False

    def apply(self, server: ServerParts) -> Applied:
        """Make the contribution, of what came before this record in the log."""
        server.hierarchy.contribute(self.model)
        return self.applied()


class ClientRequest(Request):
    """Base of the requests about one client and one model."""

    message_type = QuarantineRequest
    event = "client_quarantined"
    level = logging.WARNING
    event_fields = ("model", "client", "detail")

    @property
    def request(self) -> QuarantineRequest:
        """The message."""
        return cast("QuarantineRequest", self.message)

    def check(self, server: ServerParts) -> None:
        """Besides: what a client has sent must be known apart from what others have."""
        server.validator.check_client_request(self.message)
        super().check(server)

    def applied(self) -> Applied:
        """Apply it as every request; the published list of clients in quarantine has to be made
        anew."""
        return super().applied()._replace(quarantine_changed=True)


class QuarantineClient(ClientRequest):
    """Puts a client into quarantine: nothing more of it is absorbed."""

    action = "quarantine"

    def apply(self, server: ServerParts) -> Applied:
        """Absorb nothing more of the client, give up what waits of it, and let no round wait for
        it."""
        server.quarantine.begin(self.request)
        # No further chunk of it is taken: what waits would only use up room.
        server.reassembly.drop(self.model, self.request.client)
        rounds = server.models[self.model].rounds
        if rounds is not None:
            rounds.quarantine(self.request.client)
        return self.applied()


class ReleaseClient(ClientRequest):
    """Releases a client from quarantine: its updates are absorbed again from this record on."""

    action = "release"
    event = "client_released"
    level = logging.INFO

    def apply(self, server: ServerParts) -> Applied:
        """Absorb the client's next updates, whatever their numbers."""
        server.quarantine.end(self.request)
        model = server.models[self.model]
        # It has counted on while it was in quarantine, so its next number does not follow the last
        # one.
        model.clients.allow_jump(self.request.client)
        if model.rounds is not None:
            model.rounds.release(self.request.client)
        return self.applied()


class UnlearnClient(QuarantineClient):
    """Puts a client into quarantine and has the model rebuilt without it, by the step that read the
    request."""

    action = "unlearn"

    def check(self, server: ServerParts) -> None:
        """Besides: an upstream federation must not have what came of the client already."""
        server.hierarchy.check_unlearning()
        super().check(server)

    def apply(self, server: ServerParts) -> Applied:
        """Apply it as a quarantine; a rebuild follows unless this record, or a later one, has led
        to one before."""
        super().apply(server)
        client = self.request.client
        is_new = server.quarantine.unlearn(self.request, self.place)
        # Its place is free once no model has anything of it.
        if all(server.quarantine.is_unlearned(model, client) for model in server.models):
            server.quotas.forget(client)
        return self.applied()._replace(unlearn=client if is_new else "")


class ForgetClient(ClientRequest):
    """Frees the place of a client that is gone, so that there is room for another one. The models
    keep what it sent.

    One that is published again frees a place again, which a client that is there takes; so none is
    remembered.
    """

    action = "forget"
    once = False
    event = "client_forgotten"
    level = logging.INFO

    def apply(self, server: ServerParts) -> Applied:
        """Free the place."""
        server.quotas.forget(self.request.client)
        # Not that of clients: the list of those in quarantine has not changed.
        return Request.applied(self)


REQUESTS: Final[tuple[type[Request], ...]] = (
    WakeModel,
    NameCluster,
    ConfirmCluster,
    MuteCluster,
    UnmuteCluster,
    ContributeUpstream,
    QuarantineClient,
    ReleaseClient,
    UnlearnClient,
    ForgetClient,
)
_MESSAGES: Final = {kind.message_type.TYPE.encode(): kind.message_type for kind in REQUESTS}
"""type in the headers of a record -> class of its message"""
_BY_ACTION: Final = {(kind.message_type, kind.action): kind for kind in REQUESTS}


_LIMITED: Final = {
    kind.message_type
    for kind in REQUESTS
    if all(other.once for other in REQUESTS if other.message_type is kind.message_type)
}
"""messages of which every request counts for the quota of its model"""


def request_in(record: Record, quotas: Quotas, of_key: Mapping[bytes, str]) -> Request | None:
    """The request in a record; None for a record that is none.

    `of_key`: key of the records of a model -> its name. Raises `MessageRejected` for one that is
    above the quota of its model, or that cannot be read.
    """
    message_type = _MESSAGES.get(dict(record.headers).get("type", b""))
    if message_type is None:
        return None
    if message_type in _LIMITED:
        quotas.check_unread_request(message_type.TYPE, of_key.get(record.key or b""), record)
    message = message_type.decode(record.value, record.headers)
    kind = _BY_ACTION[message_type, getattr(message, "action", "")]
    return kind(message, (record.partition, record.offset), record.timestamp_ms / 1000)


def quarantine_records(
    contract: Contract, client: str, action: str, detail: str, made_at: float
) -> list[OutboxRecord]:
    """The records of a request about a client, one for each model, for the log or for the outbox of
    the server.

    Raises `MessageRejected` ("malformed") for a wrong name, action or detail.
    """
    records: list[OutboxRecord] = []
    for model in contract.models:
        request = QuarantineRequest(
            contract.federation,
            contract.digest,
            model.name,
            client,
            action,
            detail,
            made_at=made_at,
        )
        # The key of the model's updates, so that both are in one partition and have an order.
        key = contract.update_key(model.name)
        records.append(
            OutboxRecord(contract.updates_topic, request.encode(), key, request.headers())
        )
    return records


def request_signer(
    settings: ServerSettings, *, as_server: bool = False
) -> Callable[[OutboxRecord], Headers]:
    """A function that gives the headers to add to a record: a signature of a request, where those
    are signed.

    `as_server`: with the server's key, not with an operator's. Raises `SettingsError` for a key
    that cannot be read.
    """
    signed_types = {CloseRound.TYPE, RoundPlan.TYPE}
    signed_types.update(request.message_type.TYPE for request in REQUESTS)
    signer = RequestSigner(settings, as_server=as_server)

    def sign(record: OutboxRecord) -> Headers:
        type_ = dict(record.headers).get("type", b"").decode()
        if type_ not in signed_types:
            return ()
        return signer.headers(record.topic, record.value or b"", type_)

    return sign
