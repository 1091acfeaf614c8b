"""The label of one reading: as a record of the client's own topic `labels`, and as JSON for the federation's log.

The own record is packed; the published one (`[client] publish_labels`) has no value of a reading, and is keyed by
client, model and place, so that a record published again replaces itself.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Self

from shoal.errors import MessageRejected
from shoal.protocol.checks import is_cluster_name, is_count, is_moment, is_number, require
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import envelope_headers
from shoal.transports.base import Headers

SCHEMA = 1
TYPE = "label"


class Label(NamedTuple):
    """What a snapshot says about one reading."""

    cluster: int
    """number in the arrays of the snapshot, which the next snapshot may give to another; -1: none"""
    identity: int | None
    """lasting identity of the cluster; None where it is not known"""
    name: str
    """the name that it had when the reading was labelled; empty without one"""
    novelty: float | None
    """0 to 1, the share of the readings of its cluster that lie nearer; None while too few are known"""
    version: int
    """version of the snapshot"""
    time: float | None
    """event time of the reading, seconds since 1970"""

    def encode(self) -> bytes:
        """The value of the client's own record."""
        return pack(self._asdict())

    @classmethod
    def decode(cls, value: bytes | None) -> Self:
        """Raises `MessageRejected`."""
        table = unpack(value or b"")
        if not isinstance(table, dict) or not set(cls._fields) <= set(table):
            raise MessageRejected("malformed", "not a label")
        label = cls(**{name: table[name] for name in cls._fields})
        require(type(label.cluster) is int and label.cluster >= -1, "malformed", "cluster")
        require(label.identity is None or is_count(label.identity), "malformed", "identity")
        require(is_cluster_name(label.name), "malformed", "name")
        require(label.novelty is None or _is_share(label.novelty), "malformed", "novelty")
        require(is_count(label.version), "malformed", "version")
        require(label.time is None or is_moment(label.time), "malformed", "time")
        return label

    def to_json(self, federation: str, client: str, model: str) -> bytes:
        """The value of the published record."""
        table = {
            "schema": SCHEMA,
            "federation": federation,
            "client": client,
            "model": model,
            "time": self.time,
            "cluster": self.identity,
            "name": self.name,
            "novelty": self.novelty,
            "version": self.version,
        }
        return json.dumps(table, ensure_ascii=False, allow_nan=False).encode()


def label_headers() -> Headers:
    """The headers of both records."""
    return envelope_headers(TYPE)


def label_key(model: str, partition: int, offset: int) -> bytes:
    """The key of the client's own record: the model, and the place of the reading in the readings log."""
    return f"{model}/{partition}/{offset}".encode()


def place_of_key(key: bytes | None, model: str) -> tuple[int, int] | None:
    """(partition, offset) of the reading that a record labels, None for one of another model."""
    try:
        found, partition, offset = (key or b"").decode().split("/")
        return (int(partition), int(offset)) if found == model else None
    except ValueError:
        return None


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1
