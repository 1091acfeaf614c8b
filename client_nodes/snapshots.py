"""Reads snapshots: keeps the newest one of each model for round answers and labels.

Who can write to the topic of snapshots can forge one. A version far above the known one counts only once another
snapshot continues it, and those that it would have hidden count again once two of them have followed. Other lower
versions count only under a newer lease, so that an old snapshot that is published again does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from shoal.config.contract import Contract
from shoal.errors import ContractMissing, MessageRejected
from shoal.protocol.conflicts import CONFLICTS_KEY
from shoal.protocol.lease import Lease, is_for_servers, is_lease
from shoal.protocol.masked import OpenRound, check_envelope, is_open_round
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import CONTRACT_KEY, check_contract
from shoal.protocol.validation import Validator
from shoal.transports.base import Log, Positions, Record, beginning, latest

VERSIONS_AHEAD_MAX = 64
"""most by which a snapshot's version may be above the one before, besides versions that compaction has removed"""
LOOK_EVERY_S = 60.0
"""interval at which a client that needs no snapshots looks for conflicts among them"""
GENERATIONS_AHEAD_MAX = 1000
"""most by which the generation of a lease may be above the one before: a forged one must not be the newest for ever"""


class Published(NamedTuple):
    """Records that the server has published by the time that a client starts."""

    records: Mapping[bytes, Record] = {}
    """the newest record of each key, with those that are of no model"""
    ends: Mapping[int, int] = {}
    """partition -> the end of the topic before they were read"""

    def check_contract(self, contract: Contract, *, required: bool = False) -> None:
        """Raises `ContractDiffers` for another contract than this; if it is `required`, `ContractMissing` for none."""
        if not check_contract(self.records.get(CONTRACT_KEY), contract) and required:
            raise ContractMissing(
                f"no server has published the contract of federation {contract.federation} yet, and a new client "
                "compares its own with it before it publishes anything: start `shoal server`, or go on with --no-wait"
            )


NOTHING_PUBLISHED: Final = Published()


def read_published(log: Log, contract: Contract) -> Published:
    """The newest records of the topic of snapshots. Raises as the log does."""
    topic = contract.snapshots_topic
    ends = {partition: end for partition, (_, end) in log.bounds(topic).items()}
    return Published(latest(log, topic), ends)


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
        """versions above it may count again, as the newest one has leapt over them; None: it has not"""
        self._waiting: int | None = None
        """version that counts once a higher one follows"""

    def take(self, snapshot: Snapshot, record: Record, lease: int) -> None:
        """Make it the newest if it counts; `lease` is the generation of the newest lease.

        Raises `MessageRejected` ("malformed") for a version that does not follow from those before it.
        """
        version, known = snapshot.version, self.newest
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
            # A server that has begun anew, from a backup for example; or the only snapshot that was here was forged.
            self._floor, self._followed = None, 1
            self._keep(snapshot, record, lease)
        elif version > known.version or (self._floor is not None and self._floor < version < known.version):
            self._leap(snapshot, record, lease, known)
        elif version < known.version - VERSIONS_AHEAD_MAX:  # nearer ones come again after a server was killed
            raise MessageRejected("malformed", f"version {version} after {known.version}: it is an old one")

    def _leap(self, snapshot: Snapshot, record: Record, lease: int, known: Snapshot) -> None:
        version = snapshot.version
        if self._waiting is None or version <= self._waiting:
            self._waiting = version
            raise MessageRejected("malformed", f"version {version} after {known.version}: it waits for the next one")
        self._floor = known.version if version > known.version else None
        self._waiting, self._followed = None, 1
        self._keep(snapshot, record, lease)

    def _keep(self, snapshot: Snapshot, record: Record, lease: int) -> None:
        self.newest, self._place, self.lease = snapshot, (record.partition, record.offset), lease

    def _ahead_max(self, record: Record) -> int:
        """The versions by which the one in a record may be above the newest: each has had a record in between."""
        partition, offset = self._place
        between = record.offset - offset if record.partition == partition else 0
        return max(between, VERSIONS_AHEAD_MAX)


class Snapshots:
    """Follows the topic of snapshots of all models from its beginning. Skips records that fail validation."""

    def __init__(
        self,
        contract: Contract,
        validator: Validator,
        log: Log,
        on_conflicts: Callable[[Record], None] = lambda _: None,
        published: Published = NOTHING_PUBLISHED,
    ) -> None:
        """`on_conflicts` gets each list of conflicts that comes after what was `published` at the start."""
        self._on_conflicts = on_conflicts
        self._validator = validator
        self._log = log
        self._contract = contract
        self._topic = contract.snapshots_topic
        self._positions: Positions | None = None
        self._looked: Positions = dict(published.ends)
        """up to where lists of conflicts were looked for"""
        self._looked_at: float | None = None
        self._models: dict[str, _ModelVersions] = {}
        self._lease = 0
        """generation of the newest lease"""
        self._rejected: list[MessageRejected] = []
        self._rounds: dict[str, OpenRound] = {}

    def newest(self, model: str) -> Snapshot | None:
        """The newest snapshot read of this model, None before the first."""
        return self._models[model].newest if model in self._models else None

    def open_round(self, model: str) -> OpenRound | None:
        """The newest round of masked counts read of this model, None before the first."""
        return self._rounds.get(model)

    def follow(self) -> None:
        """Read all snapshots that are not read yet. Raises `ContractDiffers`, and as the log does."""
        if self._positions is None:
            self._positions = beginning(self._log, self._topic)
        # A broker keeps what was replaced for a while: only the newest contract counts.
        contract: Record | None = None
        records, self._positions = self._log.read(self._topic, self._positions)
        while records:
            for record in records:
                if is_lease(record):
                    self._keep_lease(record)
                elif record.key == CONTRACT_KEY:
                    contract = record
                elif record.key == CONFLICTS_KEY:
                    self._on_conflicts(record)
                elif is_open_round(record.key):
                    self._keep_round(record)
                elif not is_for_servers(record):
                    self._keep_if_newer(record)
            records, self._positions = self._log.read(self._topic, self._positions)
        check_contract(contract, self._contract)

    def look_for_conflicts(self, now: float) -> None:
        """Read once in a while what was published since the start, if nothing else needs it.

        Raises `ContractDiffers`, and as the log does.
        """
        # A clock that was set back must not lengthen the interval.
        self._looked_at = now if self._looked_at is None else min(self._looked_at, now)
        if self._positions is not None or now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at, ends = now, self._ends()
        contract: Record | None = None
        while any(self._looked.get(partition, 0) < end for partition, end in ends.items()):
            records, self._looked = self._log.read(self._topic, self._looked)
            for record in records:
                if record.key == CONFLICTS_KEY:
                    self._on_conflicts(record)
                elif record.key == CONTRACT_KEY:
                    contract = record
        check_contract(contract, self._contract)

    def _ends(self) -> Positions:
        return {partition: end for partition, (_, end) in self._log.bounds(self._topic).items()}

    def take_rejected(self) -> list[MessageRejected]:
        """Why records were skipped since the previous call."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def _keep_lease(self, record: Record) -> None:
        try:
            generation = Lease.decode(record.value, record.headers).generation
        except MessageRejected:  # servers log it
            return
        if not self._lease:  # the one under which the snapshots came that are here
            self._lease = generation
            for model in self._models.values():
                model.lease = generation
        elif generation <= self._lease + GENERATIONS_AHEAD_MAX:
            self._lease = max(self._lease, generation)

    def _keep_round(self, record: Record) -> None:
        try:
            opened = OpenRound.decode(record.value, record.headers)
            check_envelope(opened, self._contract.federation, self._contract.digest)
            if self._contract.model(opened.model) is None or opened.record_key != record.key:
                raise MessageRejected("model", "no such model in the contract")
            self._rounds[opened.model] = opened
        except MessageRejected as rejected:
            self._rejected.append(rejected)

    def _keep_if_newer(self, record: Record) -> None:
        if record.value is None:  # of a model that is gone
            return
        try:
            snapshot = Snapshot.decode(record.value, record.headers)
            if self._validator.is_superseded(snapshot):
                return
            self._validator.check_snapshot(snapshot)
            if not self._validator.is_learnt(snapshot):
                return
            self._models.setdefault(snapshot.model, _ModelVersions()).take(snapshot, record, self._lease)
        except MessageRejected as rejected:
            self._rejected.append(rejected)
