"""A call: a snapshot that asks clients for their answers, and who of them is asked.

Who is asked is drawn by a hash that both sides compute, so nobody needs a list of members: a client that comes or
goes changes nothing for the others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from shoal.config.contract import Contract, Rounds
from shoal.errors import MessageRejected
from shoal.protocol.messages import Snapshot

_DRAWS: Final = 2**64


@dataclass(frozen=True)
class RoundRequest:
    """What a snapshot asks for. Raises `MessageRejected` ("malformed")."""

    model: str
    round: int
    version: int
    """of the snapshot. A round that nobody answered is called again under a new one, and drawn anew: whoever was
    drawn at first may be gone for good"""
    until: float
    """seconds since 1970, by the server's clock"""
    fraction: float
    """share of the clients that are asked"""
    rows_min: int
    """fewest rows behind an answer"""

    def __post_init__(self) -> None:
        holds = _is_number(self.until) and _is_number(self.fraction) and 0 < self.fraction <= 1
        if not holds or type(self.rows_min) is not int or self.rows_min < 1:
            raise MessageRejected("malformed", "a call says until when, of what share, and from how many rows")

    def asks(self, contract: Contract, client: str) -> bool:
        """Whether this client is among those asked: drawn anew for each call, the same on every machine."""
        if self.fraction == 1.0:
            return True
        drawn = f"shoal call 1\n{contract.federation}\n{self.model}\n{self.version}\n{client}".encode()
        return int.from_bytes(hashlib.shake_256(drawn).digest(8), "little") < self.fraction * _DRAWS

    def table(self) -> dict[str, Any]:
        """As it stands in a snapshot."""
        return {"until": self.until, "fraction": self.fraction, "rows_min": self.rows_min}


def round_request_of(snapshot: Snapshot) -> RoundRequest | None:
    """The call in a snapshot of a model in rounds, None when nothing is asked. Raises `MessageRejected`."""
    if snapshot.round is None:
        raise MessageRejected("malformed", "a snapshot of a model in rounds says which round it is of")
    if snapshot.call is None:
        return None
    if not {"until", "fraction", "rows_min"} <= set(snapshot.call):
        raise MessageRejected("malformed", "a call says until when, of what share, and from how many rows")
    asked = {name: snapshot.call[name] for name in ("until", "fraction", "rows_min")}
    return RoundRequest(snapshot.model, snapshot.round, snapshot.version, **asked)


def new_round_request(rounds: Rounds, model: str, number: int, version: int, now: float) -> RoundRequest:
    """The call that opens a round now."""
    return RoundRequest(model, number, version, now + rounds.deadline_s, rounds.fraction, rounds.rows_min)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0
