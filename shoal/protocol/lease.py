"""Claims: how servers of one federation know of each other. They stand among the snapshots, which all servers read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.errors import MessageRejected
from shoal.protocol.messages import COUNT_MAX, Envelope
from shoal.transports.base import Record

LEASE_KEY = b"@server"
"""no model can have this name"""
WORDS_MAX = 300


@dataclass(frozen=True)
class Lease(Envelope):
    """A server says that it answers for a federation. The greatest `rank` holds."""

    TYPE: ClassVar[str] = "claim"

    federation: str
    instance: str
    """of the server's memory: the same after every restart in the same folder"""
    life: str
    """of the process"""
    generation: int
    """one more than that of the claim it follows"""
    renew_s: float
    """how often it is said again"""
    place: str
    """for people: which process, where"""
    released: bool = False
    """the server has ended in order"""

    def __post_init__(self) -> None:
        words = (self.federation, self.instance, self.life, self.place)
        if not all(isinstance(word, str) and word.isprintable() and len(word) <= WORDS_MAX for word in words):
            raise MessageRejected("malformed", "names")
        if type(self.generation) is not int or not 1 <= self.generation <= COUNT_MAX:
            raise MessageRejected("malformed", "generation")
        if not isinstance(self.renew_s, int | float) or not 0 < self.renew_s <= 86400:
            raise MessageRejected("malformed", "renew_s")
        if not isinstance(self.released, bool):
            raise MessageRejected("malformed", "released")

    @property
    def rank(self) -> tuple[int, str]:
        """Two that were made at once have one generation, and chance decides: everybody sees the same one as greater,
        whatever order they are read in and whatever compaction has left of them."""
        return self.generation, self.life


def is_lease(record: Record) -> bool:
    """Whether this record among the snapshots is for servers only."""
    return ("type", Lease.TYPE.encode()) in record.headers
