"""The lease, by which one server answers for a federation, and which snapshots count by it.

Leases are records of the topic of snapshots, which every server reads. How a server takes, renews
and loses one is in `shoal.server_node.lease`.

Who can write to this topic can forge a snapshot. A version far above the known one counts only once
another snapshot continues it, and those that it would have hidden count again once two of them have
followed. Other lower versions count only under a newer lease, so that an old snapshot that is
published again does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from shoal.errors import MessageRejected
from shoal.protocol.checks import is_count, is_number, is_text, require
from shoal.protocol.messages import Envelope, Snapshot
from shoal.transports.base import Record

LEASE_KEY = b"@server"
"""the key of every lease; a model cannot have this name"""
# A forged lease must not keep every other server waiting for longer than a day.
RENEW_S_MAX = 86400


@dataclass(frozen=True)
class Lease(Envelope):
    """One server's lease of a federation. Of several, the one with the greatest `rank` holds."""

    TYPE: ClassVar[str] = "lease"

    federation: str
    instance: str
    """random name of the server's checkpoint: the same after every restart from the same folder"""
    process_id: str
    """random name of the process: another one after every restart"""
    generation: int
    """one more than that of the lease it follows"""
    renew_s: float
    """seconds after which the lease is renewed"""
    holder: str
    """the process and its host, for people"""
    released: bool = False
    """whether the server has ended in order, so that another one need not wait"""

    def __post_init__(self) -> None:
        for name in ("federation", "instance", "process_id", "holder"):
            require(is_text(getattr(self, name)), "malformed", name)
        require(is_count(self.generation, 1), "malformed", "generation")
        require(is_number(self.renew_s) and 0 < self.renew_s <= RENEW_S_MAX, "malformed", "renew_s")
        require(isinstance(self.released, bool), "malformed", "released")

    @property
    def rank(self) -> tuple[int, str]:
        """Order of leases.

        Two servers that start at once have the same generation; their random process ids then
        decide, so that all readers agree, whatever order they read in and whatever compaction has
        removed.
        """
        return self.generation, self.process_id


def is_lease(record: Record) -> bool:
    """Whether this record of the topic of snapshots is a lease."""
    return ("type", Lease.TYPE.encode()) in record.headers


def is_for_servers(record: Record) -> bool:
    """Whether this record of the topic of snapshots is of no model: a lease, a list, the
    contract."""
    # No model's name begins as the keys of such records do.
    return (record.key or b"").startswith(b"@") or is_lease(record)


ROUND_KEY: Final = "@round/"
"""start of the keys of open rounds of masked counts in the topic of snapshots; no model has a name
like it"""


def is_open_round(key: bytes | None) -> bool:
    """Whether a record of the topic of snapshots with this key is an open round."""
    return (key or b"").startswith(ROUND_KEY.encode())


VERSIONS_AHEAD_MAX: Final = 64
"""most by which a snapshot's version may be above the one before, besides versions that compaction
has removed"""
GENERATIONS_AHEAD_MAX: Final = 1000
"""most by which the generation of a lease may be above the one before: a forged one must not be the
newest for ever"""


class NewestSnapshots:
    """The newest snapshot of each model, of records of the topic of snapshots in their order."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelVersions] = {}
        self._lease = 0
        """generation of the newest lease"""

    def of(self, model: str) -> Snapshot | None:
        """The newest snapshot of a model; None before the first."""
        if model not in self._models:
            return None
        return self._models[model].newest

    def take_lease(self, record: Record) -> None:
        """The next record, a lease."""
        try:
            generation = Lease.decode(record.value, record.headers).generation
        except MessageRejected:
            # Servers log it.
            return
        if not self._lease:
            # The first lease is the one under which the snapshots came that are here.
            self._lease = generation
            for model in self._models.values():
                model.lease = generation
        elif generation <= self._lease + GENERATIONS_AHEAD_MAX:
            self._lease = max(self._lease, generation)

    def take(self, snapshot: Snapshot, record: Record) -> bool:
        """Take the next record, a snapshot that has been checked; whether it is the newest now.

        Raises `MessageRejected` ("malformed") for a version that does not follow from those before
        it.
        """
        versions = self._models.setdefault(snapshot.model, _ModelVersions())
        versions.take(snapshot, record, self._lease)
        return versions.newest is snapshot


class _ModelVersions:
    """Which snapshots of one model count, by their versions."""

    def __init__(self) -> None:
        self.newest: Snapshot | None = None
        self._place = (0, 0)
        """partition and offset of the newest one"""
        self.lease = 0
        """generation of the lease under which it came"""
        self._followed = 0
        """snapshots that have continued the first one"""
        self._floor: int | None = 0
        """versions above it may count again, as the newest one has leapt over them; None: it has
        not"""
        self._waiting: int | None = None
        """version that counts once a higher one follows"""

    def take(self, snapshot: Snapshot, record: Record, lease: int) -> None:
        """Make it the newest if it counts; `lease` is the generation of the newest lease.

        Raises `MessageRejected` ("malformed") for a version that does not follow from those before
        it.
        """
        version = snapshot.version
        known = self.newest
        if known is None:
            self._keep(snapshot, record, lease)
        elif known.version < version <= known.version + self._ahead_max(record):
            self._followed += 1
            if self._followed >= VERSIONS_AHEAD_MAX and not self._floor:
                self._floor = None
            if self._waiting is not None and self._waiting > version:
                self._waiting = None
            self._keep(snapshot, record, lease)
        elif version < known.version and (lease > self.lease or not self._followed):
            # A server that has begun anew, from a backup for example; or the only snapshot that was
            # here was forged.
            self._floor = None
            self._followed = 1
            self._keep(snapshot, record, lease)
        elif version > known.version or self._was_leapt_over(version, known):
            self._leap(snapshot, record, lease, known)
        # Nearer ones come again after a server was killed: they are old, and no fault.
        elif version < known.version - VERSIONS_AHEAD_MAX:
            raise MessageRejected(
                "malformed", f"version {version} after {known.version}: it is an old one"
            )

    def _was_leapt_over(self, version: int, known: Snapshot) -> bool:
        return self._floor is not None and self._floor < version < known.version

    def _leap(self, snapshot: Snapshot, record: Record, lease: int, known: Snapshot) -> None:
        """Take a version far from the known one, once another snapshot continues it.

        A single forged snapshot with a huge version would otherwise hide all that follow.
        """
        version = snapshot.version
        if self._waiting is None or version <= self._waiting:
            self._waiting = version
            raise MessageRejected(
                "malformed", f"version {version} after {known.version}: it waits for the next one"
            )
        self._floor = known.version if version > known.version else None
        self._waiting = None
        self._followed = 1
        self._keep(snapshot, record, lease)

    def _keep(self, snapshot: Snapshot, record: Record, lease: int) -> None:
        self.newest = snapshot
        self._place = (record.partition, record.offset)
        self.lease = lease

    def _ahead_max(self, record: Record) -> int:
        """How far the version in a record may be above the newest: each has had a record between.

        Compaction may have removed these, but not their offsets.
        """
        partition, offset = self._place
        if record.partition != partition:
            return VERSIONS_AHEAD_MAX
        return max(record.offset - offset, VERSIONS_AHEAD_MAX)
