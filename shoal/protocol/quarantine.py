"""Messages about clients in quarantine: the request that begins or ends it, and who is in it.

A request is a record of the topic of updates, one for each model and under the key of that model,
so it stands at one place between the model's updates, and a rebuild from the log repeats it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from shoal.protocol.checks import is_moment, is_name, is_text, require
from shoal.protocol.messages import Envelope, OperatorRequest

ACTIONS: Final = ("quarantine", "release", "unlearn", "forget")
"""`quarantine`: absorb nothing more of the client; `release`: absorb its updates again from here
on; `unlearn`: rebuild the model without anything that the client has sent, and quarantine it;
`forget`: free its place among the clients"""
LIST_KEY: Final = b"@quarantine"
"""the key of the list in the topic of snapshots; a model cannot have this name"""
LIST_MAX: Final = 2500
"""most entries of a published list, the newest: a message is made of `MESSAGE_ITEMS_MAX` values at
most"""


@dataclass(frozen=True)
class QuarantineRequest(OperatorRequest):
    """A request about one client and one model."""

    TYPE: ClassVar[str] = "quarantine"

    client: str
    action: str
    """one of `ACTIONS`"""
    detail: str
    """why, for people; may be empty"""

    @property
    def subject(self) -> str:
        """The client."""
        return self.client

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_name(self.client), "malformed", "client")
        require(
            isinstance(self.action, str) and self.action in ACTIONS,
            "malformed",
            f"action must be one of {', '.join(ACTIONS)}",
        )
        require(is_text(self.detail), "malformed", "detail")


class QuarantinedClient(NamedTuple):
    """One client that a model absorbs nothing from."""

    model: str
    client: str
    since: float
    """time at which it was requested, seconds since 1970"""
    detail: str
    """why, for people"""
    unlearned: bool
    """whether the model has been rebuilt without it"""


@dataclass(frozen=True)
class QuarantineList(Envelope):
    """Every client in quarantine, as the server publishes it after each change."""

    TYPE: ClassVar[str] = "quarantine_list"

    federation: str
    entries: list[list[Any]]
    """a `QuarantinedClient` each, as lists"""

    def __post_init__(self) -> None:
        require(is_name(self.federation), "malformed", "federation")
        require(
            isinstance(self.entries, list) and all(map(_is_entry, self.entries)),
            "malformed",
            "entries",
        )

    @property
    def clients(self) -> list[QuarantinedClient]:
        """The entries by name."""
        return [QuarantinedClient(*entry) for entry in self.entries]


def _is_entry(value: object) -> bool:
    if not (isinstance(value, list) and len(value) == len(QuarantinedClient._fields)):
        return False
    model, client, since, detail, unlearned = value
    return (
        is_name(model)
        and is_name(client)
        and is_moment(since)
        and is_text(detail)
        and isinstance(unlearned, bool)
    )
