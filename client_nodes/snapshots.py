"""Reads snapshots: keeps the newest one of each model for round answers and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.config.contract import Contract
from shoal.config.resolved import ResolvedContract
from shoal.errors import ContractMissing, MessageRejected
from shoal.protocol.conflicts import CONFLICTS_KEY
from shoal.protocol.lease import NewestSnapshots, is_for_servers, is_lease, is_open_round
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import CONTRACT_KEY, check_contract, with_earlier
from shoal.protocol.validation import Validator
from shoal.transports.base import CODEC, CODECS, Log, Positions, Record, beginning, latest

if TYPE_CHECKING:
    from shoal.protocol.masked import OpenRound

LOOK_EVERY_S = 60.0
"""interval at which a client that needs no snapshots looks for conflicts among them"""


class Published(NamedTuple):
    """Records that the server has published by the time that a client starts."""

    records: Mapping[bytes, Record] = {}
    """the newest record of each key, with those that are of no model"""
    ends: Mapping[int, int] = {}
    """partition -> the end of the topic before they were read"""
    missing_codec: str = ""
    """a compression that records of the topic are in and whose library is not installed here"""

    def agreed(self, contract: ResolvedContract, *, required: bool = False) -> ResolvedContract:
        """The contract, with those that the federation had before.

        Raises `ContractDiffers` for another contract than this; if it is `required`,
        `ContractMissing` for none.
        """
        record = self.records.get(CONTRACT_KEY)
        if not check_contract(record, contract.contract) and required:
            if self.missing_codec:
                codec = self.missing_codec
                raise ContractMissing(
                    f"{contract.contract.snapshots_topic} has records compressed with {codec},"
                    " which is not installed here, and the contract may be among them: pip install"
                    f" '.[{codec}]' in a clone of shoal, and set the topic's compression.type to"
                    " producer, as `shoal topics ensure` makes it"
                )
            raise ContractMissing(
                f"no server has published the contract of federation {contract.federation} yet, and"
                " a new client compares its own with it before it publishes anything: start `shoal"
                " server`, or go on with --no-wait"
            )
        return with_earlier(contract, record)


NOTHING_PUBLISHED: Final = Published()


def read_published(log: Log, contract: Contract) -> Published:
    """The newest records of the topic of snapshots. Raises as the log does."""
    topic = contract.snapshots_topic
    ends = {partition: end for partition, (_, end) in log.bounds(topic).items()}
    # The ends were read first: what comes in between is read twice, and never missed.
    codecs: list[str] = []

    def note(record: Record) -> None:
        codec = dict(record.headers).get(CODEC, b"").decode("ascii", "replace")
        if codec in CODECS:
            codecs.append(codec)

    records = latest(log, topic, on_unreadable=note)
    return Published(records, ends, codecs[0] if codecs else "")


def decode_snapshot(record: Record) -> Snapshot:
    """The snapshot in a record. Raises `MessageRejected`."""
    return Snapshot.decode(record.value, record.headers)


class Snapshots:
    """Follows the topic of snapshots of all models; skips records that fail validation."""

    def __init__(
        self,
        contract: Contract,
        validator: Validator,
        log: Log,
        on_conflicts: Callable[[Record], None] = lambda _: None,
        published: Published = NOTHING_PUBLISHED,
        decode: Callable[[Record], Snapshot] = decode_snapshot,
    ) -> None:
        """`on_conflicts` gets each list of conflicts that comes after what was `published`;
        `decode`: see `decode_snapshot`."""
        self._decode = decode
        self._on_conflicts = on_conflicts
        self._validator = validator
        self._log = log
        self._contract = contract
        self._topic = contract.snapshots_topic
        self._positions: Positions | None = None
        self._looked: Positions = dict(published.ends)
        """up to where lists of conflicts were looked for, while nothing follows the topic"""
        self._looked_at: float | None = None
        self._newest = NewestSnapshots()
        self._rejected: list[MessageRejected] = []
        self._rounds: dict[str, OpenRound] = {}

    def newest(self, model: str) -> Snapshot | None:
        """The newest snapshot read of this model, None before the first."""
        return self._newest.of(model)

    def open_round(self, model: str) -> OpenRound | None:
        """The newest round of masked counts read of this model, None before the first."""
        return self._rounds.get(model)

    def follow(self) -> None:
        """Read all snapshots that are not read yet.

        Raises `ContractDiffers`, and as the log does.
        """
        if self._positions is None:
            self._positions = beginning(self._log, self._topic)
        # A broker keeps what was replaced for a while: only the newest contract counts.
        contract: Record | None = None
        records, self._positions = self._log.read(self._topic, self._positions)
        while records:
            for record in records:
                if record.key == CONTRACT_KEY:
                    contract = record
                else:
                    self._take(record)
            records, self._positions = self._log.read(self._topic, self._positions)
        check_contract(contract, self._contract)

    def _take(self, record: Record) -> None:
        if is_lease(record):
            self._newest.take_lease(record)
        elif record.key == CONFLICTS_KEY:
            self._on_conflicts(record)
        elif is_open_round(record.key):
            self._keep_round(record)
        elif not is_for_servers(record):
            self._keep_if_newer(record)

    def look_for_conflicts(self, now: float) -> None:
        """Read once in a while what was published since the start, if nothing else needs it.

        Raises `ContractDiffers`, and as the log does.
        """
        # A clock that was set back must not lengthen the interval.
        self._looked_at = now if self._looked_at is None else min(self._looked_at, now)
        if self._positions is not None or now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        ends = self._ends()
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
        rejected = self._rejected
        self._rejected = []
        return rejected

    def _keep_round(self, record: Record) -> None:
        # Only a client that masks its counts loads what it takes.
        from shoal.protocol.masked import (  # noqa: PLC0415 - for masked counts only
            OpenRound,
            check_envelope,
        )

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
            snapshot = self._decode(record)
            if self._validator.is_superseded(snapshot):
                return
            self._validator.check_snapshot(snapshot)
            if not self._validator.is_learnt(snapshot):
                return
            self._newest.take(snapshot, record)
        except MessageRejected as rejected:
            self._rejected.append(rejected)
