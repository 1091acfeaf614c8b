"""Rejected messages as they are kept: the original, where it came from, and one of the reasons
listed here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from shoal.config.limits import ORIGINAL_HEADERS_BYTES_MAX
from shoal.protocol.messages import envelope_headers
from shoal.transports.base import Headers

REASONS: Final[Mapping[str, str]] = {
    "unreadable": "cannot be read from the log: damaged, or compressed with what is not installed",
    "type": "is not of a type that belongs in this topic",
    "version": "has another version of the envelope",
    "oversized": "is too large, or made of too many values",
    "malformed": "cannot be decoded, or a field is not what it should be",
    "federation": "belongs to another federation",
    "contract": "was made under another contract",
    "model": "is for a model that the contract does not have",
    "privacy": "has another privacy statement than the contract",
    "arrays": "has other arrays than its algorithm sends",
    "not_finite": "holds a value that is not a finite number",
    "bounds": "holds a value outside the bounds of the contract",
    "claims": "claims what no rows within the bounds can give: its numbers do not agree",
    "sequence": "has an impossible sequence number",
    "client": "is of a client that is not among `[server] clients`, or of a region not among "
    "`regions`",
    "quota": "is beyond what one client, or all clients, may send or have kept, or beyond the "
    "requests of a type for one model, or for none",
    "conflict": "has the sequence number of another update of this client",
    "repeated": "is a request that has been taken before, or was made before one that has been "
    "taken",
    "cluster": "names a cluster that is not known",
    "chunks": "is a chunk that contradicts the others, or has no room",
    "failed": "made the server fail when it was processed, twice",
    "cycle": "has come from this federation itself, through its regions",
    "signature": "is not signed with the key of its client, or, a request, of an operator",
}
"""every value of `MessageRejected.reason`, and what a message with this reason has done"""


CUT_BYTES: Final = 4096
"""part that is kept of a value that no topic of the federation accepts, and of such a key"""
VALUE_BYTES: Final = "value_bytes"
"""header: the length of a value that was cut"""
VALUE_SHA256: Final = "value_sha256"
"""header: its digest"""


@dataclass(frozen=True)
class Rejected:
    """A message that failed a check, as it is stored.

    It has its own bytes, the reason, and where it came from.
    """

    value: bytes | None
    key: bytes | None
    reason: str
    detail: str
    topic: str
    partition: int
    offset: int
    original_headers: Headers = field(default=())
    cut: Headers = field(default=())
    """length and digest of a value that was cut"""

    def within(self, value_bytes_max: int) -> Self:
        """The record with a value that the topic of rejected messages accepts.

        A value of more than `value_bytes_max` bytes comes from no client, as the topic of updates
        does not accept it either: a compressed record can grow to it. Its first `CUT_BYTES` are
        kept, its length and its digest.
        """
        key = self.key
        if key is not None:
            key = key[:CUT_BYTES]
        if self.value is None or len(self.value) <= value_bytes_max:
            return replace(self, key=key)
        size = str(len(self.value)).encode()
        digest = hashlib.sha256(self.value).hexdigest().encode()
        return replace(
            self,
            key=key,
            value=self.value[:CUT_BYTES],
            cut=((VALUE_BYTES, size), (VALUE_SHA256, digest)),
        )

    @property
    def record_key(self) -> bytes:
        """The same for the same message, so that to reject it twice changes nothing."""
        return f"{self.topic}/{self.partition}/{self.offset}".encode()

    @property
    def headers(self) -> Headers:
        """Reason and origin, then the original key and headers.

        The original headers are cut at `ORIGINAL_HEADERS_BYTES_MAX`: their new names are longer, so
        a record full of small headers would outgrow the topic.
        """
        why = (*envelope_headers("rejected"), ("reason", self.reason.encode()))
        origin = (
            ("detail", self.detail.encode()),
            ("origin", self.record_key),
            ("key", self.key or b""),
        )
        return why + origin + self.cut + tuple(self._kept_headers())

    def _kept_headers(self) -> Iterator[tuple[str, bytes]]:
        # A sender chooses its headers: with all of them the record could be larger than its topic
        # accepts.
        bytes_left = ORIGINAL_HEADERS_BYTES_MAX
        for name, value in self.original_headers:
            kept_name = f"original.{name}"
            bytes_left -= len(kept_name.encode()) + len(value)
            if bytes_left < 0:
                yield "original_headers_cut", b"1"
                return
            yield kept_name, value
