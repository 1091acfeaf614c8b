"""The lease: the message by which one server says that it answers for a federation.

Leases are records of the topic of snapshots, which every server reads. How a server takes, renews and loses one is in
`server_node.lease`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.protocol.checks import is_count, is_number, is_text, require
from shoal.protocol.messages import Envelope
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
    """how often the lease is published again, in seconds"""
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
        """Leases in order. Two servers that start at once have the same generation; their random process ids then
        decide, so that all readers agree, whatever order they read in and whatever compaction has removed."""
        return self.generation, self.process_id


def is_lease(record: Record) -> bool:
    """Whether this record of the topic of snapshots is a lease."""
    return ("type", Lease.TYPE.encode()) in record.headers


def is_for_servers(record: Record) -> bool:
    """Whether this record of the topic of snapshots is of no model: a lease, a list, or the contract. No model's name
    begins as the keys of such records do."""
    return (record.key or b"").startswith(b"@") or is_lease(record)
