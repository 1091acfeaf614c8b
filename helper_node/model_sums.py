"""What a helper keeps of one model: messages of the open round, and the windows it has unmasked.

The rules of `ModelSums.checked_batch` protect every client: the server may send any question, and
no two answers together may show what is in one client's window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from shoal.protocol.codec import StoredPart
from shoal.protocol.masked import (
    CLIENTS_MAX,
    BatchEntry,
    CloseRound,
    MaskedCounts,
    batch_digest,
)
from shoal.saved_state import SavedState, state_type
from shoal.transports.base import Record

# Other processes may write to the log, so that what is kept of a round needs a limit.
ENTRIES_MAX: Final = 2 * CLIENTS_MAX
"""messages of the open round that are kept of one model; of a batch with others, these are read
again from the log"""
GROUP: Final = 500
"""messages that are saved as one part, which is written once: else a flood of messages for one
round would be written anew with every few hundred that follow"""

Place = tuple[int, int]
"""(partition, offset)"""


class Refused(Exception):
    """A question that is not answered; the text says why."""


class Sent(NamedTuple):
    """A message of a client as a helper keeps it."""

    round: int
    plan: bytes
    cells: int
    entry: BatchEntry

    def is_of(self, close: CloseRound) -> bool:
        """Whether it is of this round and plan."""
        named = (self.round, self.plan, self.cells)
        return named == (close.round, close.plan, close.cells)


@state_type
class EntryState(SavedState):
    """One client's masked counts in a round, without the counts."""

    client: str
    window: int
    places: int
    key: bytes
    nonce: bytes


@state_type
class SentState(SavedState):
    """One entry, and where in the log the message with its counts stands."""

    partition: int
    offset: int
    round: int
    plan: bytes
    cells: int
    entry: EntryState


@state_type
class ModelSumsState(SavedState):
    """What the open round of one model has, and the windows that were unmasked."""

    sent: list[list[SentState]]
    """groups of messages"""
    unmasked: dict[str, int]
    round: int
    batch: bytes
    answer: bytes
    batch_before: bytes


@dataclass
class ModelSums:
    """Memory of a helper for one model."""

    sent: dict[Place, Sent] = field(default_factory=dict)
    """(partition, offset) -> message, of the round that is answered next, in the order of reading
    """
    groups: list[StoredPart] = field(default_factory=list)
    """the first of them as they are saved, `GROUP` in each"""
    unmasked: dict[str, int] = field(default_factory=dict)
    """client -> number of its newest window that was unmasked; an earlier one never will be"""
    round: int = 0
    """newest round that was answered"""
    batch: bytes = b""
    """its batch"""
    answer: bytes = b""
    """bytes of the answer"""
    batch_before: bytes = b""
    """the newest batch of the log before: its answer may have been published in this one"""

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        ungrouped = islice(self.sent.items(), GROUP * len(self.groups), None)
        while len(group := _saved_group(islice(ungrouped, GROUP))) == GROUP:
            self.groups.append(StoredPart(group))
        state = ModelSumsState(
            sent=[],
            # In the order of names: equal sums must be equal bytes.
            unmasked=dict(sorted(self.unmasked.items())),
            round=self.round,
            batch=self.batch,
            answer=self.answer,
            batch_before=self.batch_before,
        )
        return {**state.saved(), "sent": [*self.groups, StoredPart(group)]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        saved = ModelSumsState.read(state)
        self._forget_sent()
        for group in saved.sent:
            for sent in group:
                entry = BatchEntry(**vars(sent.entry))
                place = (sent.partition, sent.offset)
                self.sent[place] = Sent(sent.round, sent.plan, sent.cells, entry)
        self.unmasked = saved.unmasked
        self.round = saved.round
        self.batch = saved.batch
        self.answer = saved.answer
        self.batch_before = saved.batch_before

    def begin_log(self) -> None:
        """Begin with the rounds of a log that was created anew; what was unmasked stays so."""
        self._forget_sent()
        self.round = 0
        self.batch_before = self.batch
        self.batch = b""
        self.answer = b""

    def keep(self, message: MaskedCounts, record: Record) -> bool:
        """Keep a message until its round is answered; False where too many wait."""
        # A round opens when all helpers have answered the one before, so no honest message is of a
        # later one.
        if message.round != self.round + 1:
            return True
        if len(self.sent) >= ENTRIES_MAX:
            return False
        # By partition too: every writer may choose one, and offsets are the same in each.
        self.sent[record.partition, record.offset] = sent_in(message)
        return True

    def not_kept(self, close: CloseRound) -> list[int]:
        """The offsets of its batch whose messages had no room, ascending; those of a batch that is
        not answered anyway are not looked for."""
        if len(self.sent) < ENTRIES_MAX or close.round != self.round + 1:
            return []
        return [offset for offset in close.places if (close.partition, offset) not in self.sent]

    def checked_batch(
        self, close: CloseRound, batch_min: int, read_again: Mapping[int, Sent] | None = None
    ) -> list[BatchEntry]:
        """The messages that a round ends with. `read_again`: offset -> those of `not_kept`.

        Raises `Refused`.
        """
        if close.round == self.round:
            raise Refused("another batch of this round was answered before")
        if close.round < self.round:
            raise Refused("old")
        entries = []
        for offset in close.places:
            message = self.sent.get((close.partition, offset))
            if message is None and read_again is not None:
                message = read_again.get(offset)
            if message is None or not message.is_of(close):
                raise Refused(
                    "its batch has messages that are not in the log, or not of this round and plan"
                )
            entries.append(message.entry)
        # Else a server could fill a batch with one client, whose counts the sum would then show.
        if len({entry.client for entry in entries}) < len(entries):
            raise Refused("its batch has two messages of one client")
        if len(entries) < batch_min:
            raise Refused(f"its batch has fewer than {batch_min} clients")
        # The difference of two sums with a window in common would show what is in only one of them.
        if any(entry.window <= self.unmasked.get(entry.client, -1) for entry in entries):
            raise Refused("its batch has a window that was unmasked before")
        names = (close.federation, close.contract, close.model)
        if batch_digest(names, close.round, close.plan, close.cells, entries) != close.batch:
            raise Refused("its digest is not that of its batch")
        return entries

    def answered(self, close: CloseRound, entries: list[BatchEntry], answer: bytes) -> None:
        """Note what was unmasked."""
        self.round = close.round
        self.batch = close.batch
        self.answer = answer
        for entry in entries:
            self.unmasked[entry.client] = entry.window
        # No further batch may have them: of each round one batch is unmasked.
        self._forget_sent()

    def _forget_sent(self) -> None:
        self.sent = {}
        self.groups = []


def sent_in(message: MaskedCounts) -> Sent:
    """What is kept of a message."""
    return Sent(message.round, message.plan, message.cells, message.entry)


def _saved_group(messages: Iterable[tuple[Place, Sent]]) -> list[dict[str, Any]]:
    """Messages as `ModelSumsState` has them, as plain values."""
    group = []
    for (partition, offset), message in messages:
        state = SentState(
            partition=partition,
            offset=offset,
            round=message.round,
            plan=message.plan,
            cells=message.cells,
            entry=EntryState(**message.entry._asdict()),
        )
        group.append(state.saved())
    return group
