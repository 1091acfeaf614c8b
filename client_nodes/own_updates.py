"""Marks what one client publishes, and finds in the log what its folder does not know.

With a restored older folder, windows would be counted again under another plan, and updates would
get numbers that others have already. The log shows it, because it holds the later updates. Each has
a header that takes the client's noise key to make, so a process without the key cannot stop a
client by publishing in its name.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from shoal.config.resolved import ResolvedContract
from shoal.errors import (
    InvalidState,
    LogError,
    LogUnavailable,
    MessageRejected,
    OffsetOutOfRange,
    SettingsError,
)
from shoal.protocol.conflicts import (
    AUTHOR_HEADER,
    DIGEST_BYTES,
    INCARNATION_BYTES,
    INCARNATION_HEADER,
    ConflictList,
    Copy,
    PublishedDigests,
    content_digest,
    is_marked_by,
    make_mark,
    mark_in,
)
from shoal.protocol.messages import MASKED_COUNTS, Update
from shoal.runtime.checkpoint import OutboxRecord, pairs_of, positions_of
from shoal.saved_state import SavedState, state_type
from shoal.telemetry.events import log_event
from shoal.transports.base import Headers, Log, Positions, Record

RECORDS_MAX: Final = 100_000
"""newest records of a partition that are looked at when a client starts"""
SEEN_EVERY_S: Final = 60.0
"""interval at which a running client notes where the log ends: its next start looks from there"""
READ_RECORDS: Final = 1000
WAIT_S: Final = 10.0
"""wait for records that the log says are there"""


class Found(NamedTuple):
    """The messages of masked counts of this client that the log has."""

    masked: set[tuple[str, int]]
    """model and round of each"""
    first: Positions
    """partition -> the place from which on the log was looked at"""


@state_type
class OwnUpdatesState(SavedState):
    """Positions up to which the log was searched for own updates."""

    seen: list[list[int]]
    """[partition, offset]"""


class OwnUpdates:
    """Marks what one client publishes, and looks for it in the log."""

    def __init__(
        self,
        log: Log,
        contract: ResolvedContract,
        client: str,
        noise_key: bytes | None,
        key_is_new: bool = False,
    ) -> None:
        """`noise_key` None: nothing is marked and nothing is looked for.

        `key_is_new`: nothing is marked with it yet, so a new client need not read what all others
        have published. If each did, many starts would take a time that grows with the square of
        their number.
        """
        self._log = log
        self._models = contract.models
        self._client = client
        self._earlier = contract.earlier
        self._topic = contract.contract.updates_topic
        self._key = None
        if noise_key is not None:
            # A key of its own: what is made with it is published, and the noise key stays secret.
            self._key = hashlib.sha256(b"shoal author 1" + noise_key).digest()
        self._key_is_new = key_is_new
        # Random, as processes that run from copies of one folder have all else in common.
        self._incarnation = secrets.token_bytes(INCARNATION_BYTES)
        self._seen: Positions = {}
        """end of the log some time ago; everything of this client before was looked at"""
        self._seen_at: float | None = None
        self.found: Found | None = None
        """what `check` has found; None where nothing was looked at"""

    def headers(self, record: OutboxRecord) -> Headers:
        """The headers that mark an update as of this client and process; none for other records."""
        if self._key is None or record.topic != self._topic:
            return ()
        mark = make_mark(self._key, self._incarnation, record.value or b"")
        return (AUTHOR_HEADER, mark.author), (INCARNATION_HEADER, mark.incarnation)

    def check(
        self, published: PublishedDigests, since: Positions, *, accept_unseen: bool = False
    ) -> None:
        """Raises `InvalidState` if the log has an update of this client that its folder lacks.

        `since`: where the log ended when the newest masked counts were made; `found` then has what
        came of them. Raises `SettingsError` where the client may not read the updates; with
        `accept_unseen` that is a warning, and nothing is looked at. Raises as the log does.
        """
        if self._key is None:
            return
        # Asked once, before reading: a log that others write to would never be read to its end.
        ends = self.ends()
        first = self._first(ends, since)
        found = Found(set(), first)
        try:
            for record in self._records(first, ends):
                # A new client has nothing to look for. It reads one record all the same: that it
                # may read is what a later start will need.
                if self._key_is_new:
                    break
                self._check_record(record, published, found)
            self.found = found
        except LogError as forbidden:
            if not accept_unseen:
                raise SettingsError(
                    f"client {self._client} may not read {self._topic} ({forbidden}), so it cannot"
                    " find out whether its folder is older than what it has published, which would"
                    " publish the same readings twice with different noise. Give it the right to"
                    " read that topic, or set accept_unseen = true in [client]"
                ) from None
            log_event("own_updates_unread", logging.WARNING, detail=str(forbidden))
        self._seen = ends

    def check_copies(self, record: Record, published: PublishedDigests) -> None:
        """Raises `InvalidState` if this process and another one publish as this client.

        `record` has the conflicts that the server has found. An update of this client that somebody
        publishes again is no other process.
        """
        if self._key is None:
            return
        try:
            copies = ConflictList.decode(record.value, record.headers).copies
        # Not from a server of this version: it must not stop a client.
        except MessageRejected:
            return
        for copy in copies:
            if self._is_of_two_processes(copy, self._key, published):
                raise InvalidState(
                    f"two processes publish as client {self._client}: the server has update"
                    f" {copy.sequence} for model {copy.model} of the one that started first, after"
                    " updates of the other. They run from copies of one folder, and publish the"
                    " same readings twice with different noise. Stop both, and start the one with"
                    " the newest copy of the folder, or a new client name"
                )

    def _is_of_two_processes(self, copy: Copy, key: bytes, published: PublishedDigests) -> bool:
        """Whether this process is one of the two whose marks the server has found."""
        # Only the noise key can mark both: a list that somebody forged stops no client.
        is_own = is_marked_by(key, copy.older) and is_marked_by(key, copy.newer)
        if copy.client != self._client or not is_own:
            return False
        if copy.older.startswith(self._incarnation):
            return True
        # The newer process stops only where the update is not its own: after a start, the last
        # updates of the process before it may reach the log late.
        is_newer = copy.newer.startswith(self._incarnation)
        return is_newer and published.is_unknown(copy.model, copy.sequence, copy.digest)

    def ends(self) -> Positions:
        """Partition -> where the log ends. Raises as the log does."""
        return {partition: end for partition, (_, end) in self._log.bounds(self._topic).items()}

    def note_end(self, now: float) -> None:
        """Note where the log ends, once in a while. Raises as the log does."""
        if self._key is None:
            return
        # A clock that was set back must not lengthen the interval.
        self._seen_at = now if self._seen_at is None else min(self._seen_at, now)
        if now >= self._seen_at + SEEN_EVERY_S:
            self._seen = self.ends()
            self._seen_at = now

    def reset_published(self, _: float) -> None:
        """The federation's log was created anew: look from its beginning."""
        self._seen = {}

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return OwnUpdatesState(seen=pairs_of(self._seen)).saved()

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`."""
        self._seen = positions_of(OwnUpdatesState.read(state).seen)

    def _first(self, ends: Positions, since: Positions) -> Positions:
        """Partition -> where to begin: where the log ended once.

        Of each partition only the newest `RECORDS_MAX`; the newest one for a new client, which has
        published nothing.
        """
        newest = 1 if self._key_is_new else RECORDS_MAX
        at: Positions = {}
        for partition, (first, _) in self._log.bounds(self._topic).items():
            end = ends[partition]
            seen = self._seen.get(partition, 0)
            seen = min(seen, since.get(partition, seen))
            at[partition] = max(seen, first, end - newest)
        return at

    def _records(self, first: Positions, ends: Positions) -> Iterator[Record]:
        """The records from `first` up to `ends`."""
        topic = self._topic
        at = dict(first)
        while True:
            # Partitions that are at their end are not read on: others may have written to them.
            at = {partition: offset for partition, offset in at.items() if offset < ends[partition]}
            if not at:
                return
            limit = 1 if self._key_is_new else _to_boundary(at)
            try:
                records, reached = self._log.read(topic, at, limit, WAIT_S)
            except OffsetOutOfRange as gone:
                # Retention has removed it meanwhile; what is left begins there.
                at[gone.partition] = gone.first
                continue
            if not records and reached == at:
                raise LogUnavailable(f"the records of {topic} before its end do not come")
            yield from records
            at = {**at, **reached}

    def _check_record(self, record: Record, published: PublishedDigests, found: Found) -> None:
        # Most records are of other clients, and most of those do not even hold this one's name.
        if record.value is None or self._client.encode() not in record.value:
            return
        mark = mark_in(record)
        if mark is None or self._key is None or not is_marked_by(self._key, mark.packed()):
            return
        try:
            kind, name, number, digest = self._identified(record)
        except MessageRejected:
            return
        if digest is None or published.is_unknown(name, number, digest):
            raise InvalidState(
                f"the log has {kind} {number} of client {self._client} for model {name}, made with"
                " this folder's noise key, and the folder does not know it: the folder is older"
                " than what the client has published, or a copy of it runs elsewhere. Restore the"
                " newest copy of the whole folder, or start under a new client name; going on would"
                " publish the same readings twice with different noise"
            )
        if ("type", MASKED_COUNTS.encode()) in record.headers:
            found.masked.add((name, number))

    def _identified(self, record: Record) -> tuple[str, str, int, bytes | None]:
        """Kind, model, number and digest of a client's message; no digest for a model that the
        contract lacks.

        Raises `MessageRejected`.
        """
        value = record.value or b""
        if ("type", MASKED_COUNTS.encode()) in record.headers:
            from shoal.protocol.masked import (  # noqa: PLC0415 - loaded only to mask counts
                MaskedCounts,
            )

            masked = MaskedCounts.decode(value, record.headers)
            digest = None
            if masked.model in self._models:
                digest = masked_digest(value)
            return "the masked counts of round", masked.model, masked.round, digest
        update = Update.decode(value, record.headers)
        # An update under an earlier contract may be of a model that this one lacks.
        generation = self._earlier.get(update.contract)
        models = self._models if generation is None else generation.contract.models
        model = models.get(update.model)
        digest = None
        if model is not None:
            digest = content_digest(update, value, model.algorithm.update)
        return "update", update.model, update.sequence, digest


def _to_boundary(at: Positions) -> int:
    """Records to read at once from here: of one partition up to the next multiple of
    `READ_RECORDS`.

    Clients of a host begin at different places, and read the same records from the second read on,
    which their log then has: when a partition moves, thousands of them look at the same updates.
    """
    if len(at) != 1:
        return READ_RECORDS
    (offset,) = at.values()
    return READ_RECORDS - offset % READ_RECORDS


def masked_digest(value: bytes) -> bytes:
    """The digest of a message of masked counts, which has the same bytes whenever it is made."""
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest()
