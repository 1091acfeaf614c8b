"""A round request: the part of a snapshot that asks clients for their statistics, and the draw of who is asked.

Both sides compute the draw from a hash, so there is no list of members: a client that joins or leaves changes nothing
for the others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from shoal.config.contract import Contract, Rounds
from shoal.errors import MessageRejected
from shoal.protocol.checks import is_count, is_number, require
from shoal.protocol.messages import Snapshot

FIELDS: Final = ("deadline", "fraction", "rows_min")
"""what a snapshot's `round_request` holds"""
_DRAWS: Final = 2**64


@dataclass(frozen=True)
class RoundRequest:
    """A request to answer one round of one model. Raises `MessageRejected` ("malformed")."""

    model: str
    round: int
    version: int
    """of the snapshot. A round that no client answered is requested again under a new version, which draws other
    clients: those drawn first may be gone for good"""
    deadline: float
    """seconds since 1970, by the server's clock"""
    fraction: float
    """share of the clients that is asked, above 0 to 1"""
    rows_min: int
    """fewest rows an answer may be computed from"""

    def __post_init__(self) -> None:
        require(is_number(self.deadline), "malformed", "the deadline of a round request must be a number")
        holds = is_number(self.fraction) and 0 < self.fraction <= 1
        require(holds, "malformed", "the fraction of a round request must be above 0 and at most 1")
        require(is_count(self.rows_min, 1), "malformed", "rows_min of a round request must be 1 or more")

    def selects(self, contract: Contract, client: str) -> bool:
        """Whether this client is asked: drawn anew for each version, and the same on every machine."""
        if self.fraction == 1.0:
            return True
        drawn = f"shoal round request 1\n{contract.federation}\n{self.model}\n{self.version}\n{client}".encode()
        return int.from_bytes(hashlib.shake_256(drawn).digest(8), "little") < self.fraction * _DRAWS

    def table(self) -> dict[str, Any]:
        """The fields that travel in a snapshot; the others are the snapshot's own."""
        return {name: getattr(self, name) for name in FIELDS}


def round_request_of(snapshot: Snapshot) -> RoundRequest | None:
    """The request in a snapshot of a model in rounds, or None when it asks for nothing. Raises `MessageRejected`."""
    if snapshot.round is None:
        raise MessageRejected("malformed", "a snapshot of a model in rounds needs the number of its round")
    given = snapshot.round_request
    if given is None:
        return None
    require(set(FIELDS) <= set(given), "malformed", f"a round request needs {', '.join(FIELDS)}")
    fields = {name: given[name] for name in FIELDS}
    return RoundRequest(snapshot.model, snapshot.round, snapshot.version, **fields)


def new_round_request(rounds: Rounds, model: str, number: int, version: int, now: float) -> RoundRequest:
    """The request that opens round `number` at `now`, in seconds since 1970."""
    return RoundRequest(model, number, version, now + rounds.deadline_s, rounds.fraction, rounds.rows_min)
