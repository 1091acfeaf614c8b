"""Why a message can be rejected: a closed set, fit for a metric label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REASONS: Final[Mapping[str, str]] = {
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
    "client": "is of a client that is not among `[server] clients`",
    "quota": "is beyond what one client, or all clients, may send or have kept",
    "conflict": "has the sequence number of another update of this client",
    "cluster": "names a cluster that is not known",
    "chunks": "is a chunk that contradicts the others, or has no room",
    "failed": "made the server fail when it was processed, twice",
    "cycle": "has come from this federation itself, through its regions",
    "signature": "is not signed with its client's key",
}
"""every value of `MessageRejected.reason`, and what a message with this reason has done"""
