"""The label of one reading, as a client's own record and as JSON for the federation's log.

The own record is packed; the published one (`[client] publish_labels`) has no value of a reading,
and is keyed by client, model and place, so that a record published again replaces itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from shoal.errors import MessageRejected
from shoal.protocol.checks import is_cluster_name, is_count, is_moment, is_number, is_text, require
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import envelope_headers
from shoal.transports.base import Headers

SCHEMA = 1
TYPE = "label"


class Reason(NamedTuple):
    """A feature in which a reading lies outside the usual values of a cluster at this client."""

    feature: int
    """position in the contract"""
    above: bool
    """whether it lies above the usual values, else below"""
    low: float
    """the usual values, in the unit of the feature: 1 % of the cluster's readings lie below `low`
    """
    high: float
    """and 1 % above `high`"""


class Label(NamedTuple):
    """Label of one reading by a snapshot."""

    cluster: int
    """number in the arrays of the snapshot, which the next snapshot may give to another; -1: none
    """
    identity: int | None
    """lasting identity of the cluster; None where it is not known"""
    name: str
    """the name that it had when the reading was labelled; empty without one"""
    novelty: float | None
    """0 to 1, the share of the readings of its cluster that lie nearer; None while too few are
    known"""
    version: int
    """version of the snapshot"""
    time: float | None
    """event time of the reading, seconds since 1970"""
    usual_in: str = ""
    """cluster that a novel reading was compared with, by name or identity; else empty. A reading is
    novel from `[client] novelty_quantile` on"""
    reasons: tuple[Reason, ...] = ()
    """features of a novel reading farthest outside the usual values of that cluster; none: no
    single one is"""
    new_here: bool = False
    """whether the client was in this cluster on no earlier day"""
    part: str = ""
    """number and label of the part of the only cluster, such as "2 Temperature high"; empty where
    it has no parts"""

    def encode(self) -> bytes:
        """The value of the client's own record."""
        table = self._asdict()
        # Of 1 000 labels about one has it, and there is a label for every reading.
        if not self.usual_in:
            del table["usual_in"]
            del table["reasons"]
        if not self.new_here:
            del table["new_here"]
        if not self.part:
            del table["part"]
        return pack(table)

    @classmethod
    def decode(cls, value: bytes | None) -> Self:
        """Raises `MessageRejected`."""
        table = unpack(value or b"")
        needed = set(cls._fields) - set(cls._field_defaults)
        if not isinstance(table, dict) or not needed <= set(table):
            raise MessageRejected("malformed", "not a label")
        reasons = table.get("reasons", [])
        require(isinstance(reasons, list) and all(map(_is_reason, reasons)), "malformed", "reasons")
        fields = {name: table[name] for name in cls._fields if name in table}
        fields["reasons"] = tuple(Reason(*reason) for reason in reasons)
        label = cls(**fields)
        # By type, since True is an int to `isinstance`.
        require(type(label.cluster) is int and label.cluster >= -1, "malformed", "cluster")
        require(label.identity is None or is_count(label.identity), "malformed", "identity")
        require(is_cluster_name(label.name), "malformed", "name")
        require(label.novelty is None or _is_share(label.novelty), "malformed", "novelty")
        require(is_count(label.version), "malformed", "version")
        require(label.time is None or is_moment(label.time), "malformed", "time")
        require(is_text(label.usual_in), "malformed", "usual_in")
        require(isinstance(label.new_here, bool), "malformed", "new_here")
        require(is_text(label.part), "malformed", "part")
        return label

    def to_json(self, federation: str, client: str, model: str, features: Sequence[str]) -> bytes:
        """The value of the published record; `features` are all names.

        It names features and sides, and no value of a reading.
        """
        outside = {}
        for reason in self.reasons:
            outside[features[reason.feature]] = "above" if reason.above else "below"
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
            "outside": outside,
            "new_here": self.new_here,
        }
        return json.dumps(table, ensure_ascii=False, allow_nan=False).encode()


def label_headers() -> Headers:
    """The headers of both records."""
    return envelope_headers(TYPE)


def label_key(model: str, partition: int, offset: int) -> bytes:
    """The key of the client's own record: the model, and the place of the reading in its log."""
    return f"{model}/{partition}/{offset}".encode()


def place_of_key(key: bytes | None, model: str) -> tuple[int, int] | None:
    """(partition, offset) of the reading that a record labels, None for one of another model."""
    try:
        model_of_key, partition, offset = (key or b"").decode().split("/")
        place = int(partition), int(offset)
    except ValueError:
        return None
    return place if model_of_key == model else None


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def _is_reason(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == len(Reason._fields)
        and is_count(value[0])
        and isinstance(value[1], bool)
        and all(map(is_number, value[2:]))
    )
