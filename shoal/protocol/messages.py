"""Messages: updates, snapshots and requests, in one versioned envelope.

Readings (`shoal.protocol.readings`) have it too.

The headers carry type and version, so that a reader can refuse a message before decoding it. A
message that cannot be true cannot be built: the same checks run where it is made and again where it
is received.

A snapshot may hold a round request, which asks clients for their statistics. Both sides compute
from a hash who is asked, so there is no list of members: a client that joins or leaves changes
nothing for the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple, Self

from shoal.config.contract import Rounds
from shoal.config.limits import MESSAGE_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.kernels.arrays import AnyArray
from shoal.protocol.checks import (
    CLUSTER_NAME_CHARACTERS_MAX,
    is_arrays,
    is_cluster_name,
    is_count,
    is_moment,
    is_name,
    is_number,
    is_pair,
    is_plain_table,
    require,
)
from shoal.protocol.codec import pack, unpack
from shoal.protocol.parts import Part, are_parts
from shoal.transports.base import CODEC, CODECS, UNREADABLE, Headers, Positions


class ClusterIdentity(NamedTuple):
    """The lasting identity of one cluster of a snapshot."""

    number: int
    """number of the cluster in the arrays of this snapshot"""
    identity: int
    name: str
    """the name that people gave it; empty without one"""
    active: bool
    """whether readings fall to it at present"""
    slot: int
    """number of its colour, which no two known clusters of a model share"""
    since_reading: int
    """readings that the model had learnt when it was first seen"""
    since: float
    """time of that, seconds since 1970"""
    recent_share: float
    """share of the recent readings, 0 to 1"""
    confirmed: bool = False
    """whether an operator has confirmed it as normal: it raises no alerts"""
    muted_until: float = 0.0
    """time until which it raises no alerts, seconds since 1970"""
    time: str = ""
    """time at which most of its readings fall, such as "at night"; empty where nothing shows that
    """


def is_cluster_identity(value: object) -> bool:
    """Whether this list can be a `ClusterIdentity`."""
    if not isinstance(value, list) or len(value) != len(ClusterIdentity._fields):
        return False
    (
        number,
        identity,
        name,
        active,
        slot,
        since_reading,
        since,
        share,
        confirmed,
        muted_until,
        time,
    ) = value
    counts = is_count(number) and is_count(identity) and is_count(slot) and is_count(since_reading)
    moments = is_moment(since) and is_moment(muted_until)
    texts = is_cluster_name(name) and is_cluster_name(time)
    flags = isinstance(active, bool) and isinstance(confirmed, bool)
    return counts and moments and texts and flags and is_number(share) and 0 <= share <= 1


VERSION = 1
"""version of the envelope; a reader refuses any other before decoding"""
MASKED_COUNTS = "masked_counts"
CLOSE_ROUND = "close_round"
ROUND_PLAN = "round_plan"
"""types of messages that are told apart without `shoal.protocol.masked`, which few processes load
"""
CHUNKS_MAX = 4096
REQUEST_BYTES_MAX: Final = 16_384
"""bytes of the largest request: its texts have a few hundred characters"""
MESSAGE_ITEMS_MAX = 16_384
"""most values in a message; the largest valid one lists an epsilon or a number for each of 4096
features"""


def envelope_headers(kind: str) -> Headers:
    """The headers that every message has: its type and the version of the envelope."""
    return (("type", kind.encode()), ("v", str(VERSION).encode()))


# Not functools.cache: for mypy, a class whose objects have a __hash__ cannot be its argument.
_FIELD_NAMES: dict[type, tuple[str, ...]] = {}
"""class of messages -> its fields, from the first message on"""


def _field_names(message: type[Envelope]) -> tuple[str, ...]:
    names = _FIELD_NAMES.get(message)
    if names is None:
        names = tuple(field_.name for field_ in fields(message))
        _FIELD_NAMES[message] = names
    return names


_MAPPING_STARTS: Final = frozenset(bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF))
"""first bytes of a mapping in MessagePack"""


@dataclass(frozen=True)
class Envelope:
    """Base of every message: encoding, headers and decoding.

    Subclasses add fields and check them when built.
    """

    TYPE: ClassVar[str] = ""
    BYTES_MAX: ClassVar[int] = MESSAGE_BYTES_MAX
    """bytes of the largest valid one; a larger one is refused before decoding"""

    def encode(self) -> bytes:
        """The value of the record.

        Raises `MessageRejected` ("oversized") for a message that no reader would accept.
        """
        # Field by field: `dataclasses.asdict` would copy every array.
        value = pack({name: getattr(self, name) for name in _field_names(type(self))})
        if len(value) > self.BYTES_MAX:
            detail = (
                f"{len(value)} bytes to send, the limit is {self.BYTES_MAX}; let its model "
                "keep fewer nodes"
            )
            raise MessageRejected("oversized", detail)
        return value

    @classmethod
    def headers(cls) -> Headers:
        """The headers of the record."""
        return envelope_headers(cls.TYPE)

    @classmethod
    def decode(cls, value: bytes | None, headers: Headers) -> Self:
        """The message in a record. Fields that this version does not know are ignored.

        Raises `MessageRejected` with one of `shoal.protocol.rejected.REASONS`.
        """
        # Before the value is unpacked: one of another version may be of any form.
        _check_headers(cls.TYPE, headers)
        if value is None:
            raise MessageRejected("malformed", "no value")
        # By its first byte, so that junk costs neither a decoder nor an exception of it.
        if len(value) <= cls.BYTES_MAX and value[:1] not in _MAPPING_STARTS:
            raise MessageRejected("malformed", "not a mapping")
        table = unpack(value, cls.BYTES_MAX, MESSAGE_ITEMS_MAX)
        if not isinstance(table, dict):
            raise MessageRejected("malformed", "not a mapping")
        names = _field_names(cls)
        # Unknown fields are left out, so that a newer version may add some.
        known = {name: table[name] for name in names if name in table}
        try:
            return cls(**known)
        except TypeError:
            # Fields without a default that are not there: the constructor says so by a TypeError.
            missing = sorted(set(names) - set(known))
            raise MessageRejected("malformed", f"without {', '.join(missing)}") from None


@dataclass(frozen=True)
class ModelMessage(Envelope):
    """Base of every message about a model: the federation, contract and model it belongs to."""

    federation: str
    contract: str
    """digest of the contract it was made under"""
    model: str

    def __post_init__(self) -> None:
        for name in ("federation", "contract", "model"):
            require(is_name(getattr(self, name)), "malformed", name)


@dataclass(frozen=True)
class OperatorRequest(ModelMessage):
    """Base of the requests of operators, which are records of the topic of updates.

    Each is taken once.
    """

    BYTES_MAX: ClassVar[int] = REQUEST_BYTES_MAX

    made_at: float = field(kw_only=True)
    """seconds since 1970; only one made after all others about the same client or cluster is taken
    """

    @property
    def subject(self) -> str:
        """What of the model it is about, such as one client; empty for the whole model."""
        return ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_moment(self.made_at), "malformed", "made_at")


@dataclass(frozen=True)
class Wake(OperatorRequest):
    """A request to start the rounds of a model now."""

    TYPE: ClassVar[str] = "wake"


@dataclass(frozen=True)
class ClusterName(OperatorRequest):
    """A name that people give to a cluster."""

    TYPE: ClassVar[str] = "cluster_name"

    identity: int
    """lasting identity of the cluster"""
    name: str
    """one line of at most `CLUSTER_NAME_CHARACTERS_MAX` characters; empty takes the name away"""

    @property
    def subject(self) -> str:
        """The identity of the cluster."""
        return str(self.identity)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_count(self.identity), "malformed", "identity")
        require(
            is_cluster_name(self.name),
            "malformed",
            f"not a line of at most {CLUSTER_NAME_CHARACTERS_MAX} characters",
        )


ALERT_ACTIONS: Final = ("confirm", "mute", "alert")


@dataclass(frozen=True)
class ClusterAlerts(OperatorRequest):
    """Whether a cluster raises alerts."""

    TYPE: ClassVar[str] = "cluster_alerts"

    identity: int
    """lasting identity of the cluster"""
    action: str
    """`confirm`: it is normal and raises none; `mute`: it raises none until `until`; `alert`: it
    raises alerts again"""
    until: float = 0.0
    """seconds since 1970; 0 unless the action is `mute`"""

    @property
    def subject(self) -> str:
        """The identity of the cluster."""
        return str(self.identity)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_count(self.identity), "malformed", "identity")
        require(
            isinstance(self.action, str) and self.action in ALERT_ACTIONS,
            "malformed",
            f"action: one of {', '.join(ALERT_ACTIONS)}",
        )
        require(
            is_moment(self.until) and (self.until > 0) == (self.action == "mute"),
            "malformed",
            "until",
        )


@dataclass(frozen=True)
class Update(ModelMessage):
    """What a client publishes for a model: what it has learnt, never the readings.

    >>> import numpy as np
    >>> import shoal
    >>> update = shoal.Update(
    ...     federation="plant",
    ...     contract="0" * 32,
    ...     model="heaps",
    ...     algorithm="fcac",
    ...     client="boiler-1",
    ...     sequence=1,
    ...     readings=2,
    ...     privacy={"mode": "off"},
    ...     made_at=0.0,
    ...     arrays={
    ...         "weight": np.array([[0.2, 0.7]]),
    ...         "count": np.array([2], np.int32),
    ...         "won": np.array([2], np.int32),
    ...     },
    ... )
    >>> shoal.Update.decode(update.encode(), update.headers()).arrays["weight"]
    array([[0.2, 0.7]])
    """

    TYPE: ClassVar[str] = "update"

    algorithm: str
    client: str
    sequence: int
    """1, 2, 3, ... per client and model; a receiver drops the ones it has seen"""
    readings: int
    """readings accepted since the update before this one; of private counts, and of noisy rows in
    `formal`, places, rejected readings included, so that the number does not tell whether one was
    valid"""
    privacy: dict[str, Any]
    """the privacy statement (`shoal.privacy`)"""
    arrays: Mapping[str, AnyArray]
    made_at: float
    """seconds since 1970, by the client's clock"""
    newest_reading_at: float | None = None
    """event time of the newest reading it was learnt from; in a mode with a guarantee, in whole
    seconds, that of the newest place, as its producer noted it beside the reading (`times` is
    `public`), or the time at which the client's own log took the last one in (`arrival`)"""
    oldest_reading_at: float | None = None
    """the same of the oldest one: its readings count as spread over the time between"""
    rejected: int | None = None
    """readings that the client has rejected or withheld since its first start; None where numbers
    must not tell whether a reading was valid: in `formal`, and for private counts. An update with
    neither arrays, readings nor round reports this number only: its client has had no reading to
    learn from"""
    round: int | None = None
    """the round it answers; None in the streaming family"""
    chunk: int = 1
    """number of this chunk, 1 to `chunks`, of an update too large for one record"""
    chunks: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_contents(self)
        require(is_name(self.client), "malformed", "client")
        require(is_count(self.sequence, 1), "sequence", "the sequence number must be 1 or more")
        require(is_count(self.readings), "malformed", "readings")
        require(
            is_span(self.oldest_reading_at, self.newest_reading_at),
            "malformed",
            "oldest_reading_at",
        )
        require(self.rejected is None or is_count(self.rejected), "malformed", "rejected")
        require(
            is_count(self.chunks, 1) and self.chunks <= CHUNKS_MAX,
            "chunks",
            f"chunks must be 1 to {CHUNKS_MAX}",
        )
        require(
            is_count(self.chunk, 1) and self.chunk <= self.chunks,
            "chunks",
            "chunk must be from 1 to chunks",
        )

    @property
    def is_report(self) -> bool:
        """Whether it only says how many readings were rejected, as there was none to learn from."""
        return (
            not self.arrays
            and not self.readings
            and self.rejected is not None
            and self.round is None
        )

    @property
    def reading_s(self) -> float | None:
        """Mean of the seconds between two readings of the client; None where it is not known."""
        # One reading has no gap, and a claimed 0 must not divide.
        if self.oldest_reading_at is None or self.newest_reading_at is None or self.readings < 2:
            return None
        return (self.newest_reading_at - self.oldest_reading_at) / (self.readings - 1)


@dataclass(frozen=True)
class Snapshot(ModelMessage):
    """What the server publishes for a model: the whole clustering at one moment.

    >>> import numpy as np
    >>> import shoal
    >>> snapshot = shoal.Snapshot(
    ...     federation="plant",
    ...     contract="0" * 32,
    ...     model="heaps",
    ...     algorithm="kmeans",
    ...     version=1,
    ...     positions=[[0, 3]],
    ...     updates=3,
    ...     readings=900,
    ...     clients=2,
    ...     clusters=1,
    ...     nodes=1,
    ...     pooled=2,
    ...     privacy={"mode": "off"},
    ...     made_at=0.0,
    ...     arrays={"centre": np.array([[0.2, 0.7]]), "weight": np.array([900.0])},
    ... )
    >>> shoal.Snapshot.decode(snapshot.encode(), snapshot.headers()).arrays["centre"]
    array([[0.2, 0.7]])
    """

    TYPE: ClassVar[str] = "snapshot"

    algorithm: str
    version: int
    """1, 2, 3, ... per model; a reader ignores versions it has seen"""
    positions: list[list[int]]
    """[partition, next offset] of the updates read so far: the log up to there determines this
    model"""
    updates: int
    """updates absorbed"""
    readings: int
    """the `readings` of the updates it was learnt from, added up"""
    clients: int
    """distinct clients they came from"""
    clusters: int
    nodes: int
    pooled: int
    """updates merged together in the first clustering: a rebuild from the log starts with the same
    ones"""
    privacy: dict[str, Any]
    arrays: Mapping[str, AnyArray]
    made_at: float
    newest_reading_at: float | None = None
    reading_s: float | None = None
    """seconds between two readings of a client, as a rule; of states only, whose dwells are
    counted in readings"""
    round: int | None = None
    round_request: dict[str, Any] | None = None
    """request to clients (`shoal.protocol.messages`); None when they are asked for nothing"""
    known: int = 0
    """known clusters of the lineage"""
    active: int = 0
    """those of them to which readings fall at present"""
    next_identity: int = 0
    """all identities given so far are below it"""
    identities: list[list[Any]] = field(default_factory=list)
    """a `ClusterIdentity` each, as lists"""
    parts: list[list[Any]] = field(default_factory=list)
    """a `Part` each, as lists, where one cluster is known; else none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_contents(self)
        require(is_count(self.version, 1), "sequence", "the version must be 1 or more")
        for name in (
            "updates",
            "readings",
            "clients",
            "clusters",
            "nodes",
            "pooled",
            "known",
            "active",
            "next_identity",
        ):
            require(is_count(getattr(self, name)), "malformed", name)
        spaced = self.reading_s is None or (is_moment(self.reading_s) and self.reading_s >= 0)
        require(spaced, "malformed", "reading_s")
        require(
            isinstance(self.positions, list) and all(map(is_pair, self.positions)),
            "malformed",
            "positions",
        )
        require(
            self.round_request is None or is_plain_table(self.round_request),
            "malformed",
            "round_request",
        )
        identities = isinstance(self.identities, list) and all(
            map(is_cluster_identity, self.identities)
        )
        require(identities, "malformed", "identities")
        require(are_parts(self.parts), "malformed", "parts")

    @cached_property
    def request(self) -> RoundRequest | None:
        """What it asks of clients, None where that is nothing; for a model in rounds alone.

        Made once, as a client that is part of a round looks at it several times in each step.
        Raises `MessageRejected`.
        """
        if self.round is None:
            raise MessageRejected(
                "malformed", "a snapshot of a model in rounds needs the number of its round"
            )
        table = self.round_request
        # A model that sleeps asks nothing, and publishes what it has found.
        if table is None:
            return None
        require(
            set(FIELDS) <= set(table), "malformed", f"a round request needs {', '.join(FIELDS)}"
        )
        return RoundRequest(
            self.model,
            self.round,
            self.version,
            deadline=table["deadline"],
            fraction=table["fraction"],
            rows_min=table["rows_min"],
        )

    @property
    def cluster_identities(self) -> list[ClusterIdentity]:
        """The known clusters of this snapshot by number."""
        return [ClusterIdentity(*entry) for entry in self.identities]

    @property
    def cluster_parts(self) -> list[Part]:
        """The parts of the only known cluster."""
        return [Part(*entry) for entry in self.parts]

    @property
    def reading_time(self) -> float:
        """Time of the newest reading in it, or of the snapshot where that is not known or later."""
        if self.newest_reading_at is None:
            return self.made_at
        # A sensor's clock may be ahead; the server's own clock bounds it.
        return min(self.newest_reading_at, self.made_at)

    @property
    def read_up_to(self) -> Positions:
        """partition -> the first update that is not in it."""
        return {pair[0]: pair[1] for pair in self.positions}


def _check_headers(wanted: str, headers: Headers) -> None:
    # A header that is there twice counts as its last one, as in the decoder of readings.
    known = dict(headers)
    if "type" not in known and UNREADABLE in known:
        why = "the log cannot decode it"
        # Only of the transport's own: everybody can write a header, and this text is shown.
        if known.get(CODEC, b"").decode("ascii", "replace") in CODECS:
            why = f"compressed with {known[CODEC].decode()}, which is not installed here"
        raise MessageRejected("unreadable", why)
    require(known.get("type") == wanted.encode(), "type", f"not marked as {wanted}")
    same = known.get("v") == str(VERSION).encode()
    require(same, "version", f"another version than {VERSION}; upgrade the older side")


def _check_contents(message: Update | Snapshot) -> None:
    """The fields that updates and snapshots have in common."""
    require(is_name(message.algorithm), "malformed", "algorithm")
    require(is_plain_table(message.privacy), "malformed", "privacy")
    require(is_moment(message.made_at), "malformed", "made_at")
    newest = message.newest_reading_at
    require(newest is None or is_moment(newest), "malformed", "newest_reading_at")
    require(message.round is None or is_count(message.round), "malformed", "round")
    require(is_arrays(message.arrays), "malformed", "arrays")


def is_span(oldest: float | None, newest: float | None) -> bool:
    """Whether these are the oldest and the newest of some times, seconds since 1970.

    None for times that are not known.
    """
    if oldest is None:
        return True
    return newest is not None and is_moment(oldest) and oldest <= newest


FIELDS: Final = ("deadline", "fraction", "rows_min")
"""fields of a snapshot's `round_request`"""
_DRAWS: Final = 2**64


@dataclass(frozen=True)
class RoundRequest:
    """A request to answer one round of one model. Raises `MessageRejected` ("malformed")."""

    model: str
    round: int
    version: int
    """version of the snapshot. A round that no client answered is requested again under a new
    version, which draws other clients: those drawn first may be gone for good"""
    deadline: float
    """seconds since 1970, by the server's clock"""
    fraction: float
    """share of the clients that is asked, above 0 to 1"""
    rows_min: int
    """fewest rows an answer may be computed from"""

    def __post_init__(self) -> None:
        require(
            is_number(self.deadline),
            "malformed",
            "the deadline of a round request must be a number",
        )
        holds = is_number(self.fraction) and 0 < self.fraction <= 1
        require(holds, "malformed", "the fraction of a round request must be above 0 and at most 1")
        require(
            is_count(self.rows_min, 1), "malformed", "rows_min of a round request must be 1 or more"
        )

    def selects(self, federation: str, client: str) -> bool:
        """Whether this client is asked.

        It is drawn anew for each version, and the same on every machine.
        """
        # Without a hash for each client where all are asked, as is usual.
        if self.fraction == 1.0:
            return True
        # What stands first is of this draw alone, so that no other hash of the protocol equals it.
        # No name has a line break, so two lists of names never read alike.
        name = f"shoal round request 1\n{federation}\n{self.model}\n{self.version}\n{client}"
        drawn = int.from_bytes(hashlib.shake_256(name.encode()).digest(8), "little")
        return drawn < self.fraction * _DRAWS

    def table(self) -> dict[str, Any]:
        """The fields that travel in a snapshot; the others are the snapshot's own."""
        return {
            "deadline": self.deadline,
            "fraction": self.fraction,
            "rows_min": self.rows_min,
        }


def round_request_of(snapshot: Snapshot) -> RoundRequest | None:
    """The request in a snapshot of a model in rounds; see `Snapshot.request`."""
    return snapshot.request


def new_round_request(
    rounds: Rounds, model: str, number: int, version: int, now: float
) -> RoundRequest:
    """The request that opens round `number` at `now`, in seconds since 1970."""
    return RoundRequest(
        model, number, version, now + rounds.deadline_s, rounds.fraction, rounds.rows_min
    )
