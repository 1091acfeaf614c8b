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
from typing import Any, Final

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
    PublishedDigests,
    content_digest,
    is_marked_by,
    make_mark,
    mark_in,
)
from shoal.protocol.messages import MASKED_COUNTS, Update
from shoal.runtime.checkpoint import OutboxRecord
from shoal.telemetry.events import log_event
from shoal.transports.base import Headers, Log, Positions, Record

RECORDS_MAX: Final = 100_000
"""newest records of a partition that are looked at when a client starts"""


SEEN_EVERY_S: Final = 60.0
"""interval at which a running client notes where the log ends, so that its next start begins to
look there"""


READ_RECORDS: Final = 1000


WAIT_S: Final = 10.0
"""wait for records that the log says are there"""


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
        """`noise_key` None: nothing is marked and nothing is looked for. `key_is_new`: nothing is
        marked with it yet, so a new client need not read what all others have published."""
        self._log = log
        self._models = contract.models
        self._client = client
        self._earlier = contract.earlier
        self._topic = contract.contract.updates_topic
        self._key = (
            None if noise_key is None else hashlib.sha256(b"shoal author 1" + noise_key).digest()
        )
        self._key_is_new = key_is_new
        self._incarnation = secrets.token_bytes(INCARNATION_BYTES)
        self._seen: Positions = {}
        """end of the log some time ago; everything of this client before was looked at"""
        self._seen_at: float | None = None

    def headers(self, record: OutboxRecord) -> Headers:
        """The headers that mark an update as this client's, by this process; none for other
        records."""
        if self._key is None or record.topic != self._topic:
            return ()
        mark = make_mark(self._key, self._incarnation, record.value or b"")
        return (AUTHOR_HEADER, mark.author), (INCARNATION_HEADER, mark.incarnation)

    def check(self, published: PublishedDigests, *, accept_unseen: bool = False) -> None:
        """Raises `InvalidState` with what to do if the log has an update of this client that its
        folder knows not.

        Raises `SettingsError` where the client may not read the updates; with `accept_unseen` that
        is a warning, and nothing is looked at. Raises as the log does.
        """
        if self._key is None:
            return
        ends = {partition: end for partition, (_, end) in self._log.bounds(self._topic).items()}
        try:
            for record in self._records(ends):
                if self._key_is_new:
                    break  # it may read, which a later start will need
                self._check_record(record, published)
        except LogError as forbidden:
            if not accept_unseen:
                raise SettingsError(
                    f"client {self._client} may not read {self._topic} ({forbidden}), so it cannot find out whether "
                    "its folder is older than what it has published, which would publish the same readings twice with "
                    "different noise. Give it the right to read that topic, or set accept_unseen = true in [client]"
                ) from None
            log_event("own_updates_unread", logging.WARNING, detail=str(forbidden))
        self._seen = ends

    def check_copies(self, record: Record, published: PublishedDigests) -> None:
        """Raises `InvalidState` if the server says that this process and another one publish as
        this client.

        `record` has the conflicts. An update of this client that somebody publishes again is no
        other process.
        """
        if self._key is None:
            return
        try:
            copies = ConflictList.decode(record.value, record.headers).copies
        except MessageRejected:
            return
        for one in copies:
            # Only the noise key can mark both: a list that somebody forged stops no client.
            mine = one.client == self._client and all(
                is_marked_by(self._key, each) for each in (one.older, one.newer)
            )
            is_older, is_newer = (
                each.startswith(self._incarnation) for each in (one.older, one.newer)
            )
            if mine and (
                is_older or (is_newer and published.is_unknown(one.model, one.sequence, one.digest))
            ):
                raise InvalidState(
                    f"two processes publish as client {self._client}: the server has update {one.sequence} for model "
                    f"{one.model} of the one that started first, after updates of the other. They run from copies of "
                    "one folder, and publish the same readings twice with different noise. Stop both, and start the "
                    "one with the newest copy of the folder, or a new client name"
                )

    def note_end(self, now: float) -> None:
        """Note where the log ends, once in a while. Raises as the log does."""
        if self._key is None:
            return
        # A clock that was set back must not lengthen the interval.
        self._seen_at = now if self._seen_at is None else min(self._seen_at, now)
        if now >= self._seen_at + SEEN_EVERY_S:
            bounds = self._log.bounds(self._topic)
            self._seen = {partition: end for partition, (_, end) in bounds.items()}
            self._seen_at = now

    def reset_published(self, _: float) -> None:
        """The federation's log was created anew: look from its beginning."""
        self._seen = {}

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        return [[partition, offset] for partition, offset in sorted(self._seen.items())]

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`."""
        try:
            self._seen = {int(partition): int(offset) for partition, offset in state}
        except (TypeError, ValueError) as broken:
            raise InvalidState(
                f"the checkpoint's place in the log of updates is damaged: {broken}"
            ) from None

    def _records(self, ends: Positions) -> Iterator[Record]:
        """The records from where the log ended once up to `ends`, but the newest `RECORDS_MAX` of a
        partition only.

        A new client, which has published nothing, reads the newest one of a partition.
        """
        topic = self._topic
        newest = RECORDS_MAX
        limit = READ_RECORDS
        if self._key_is_new:
            newest = limit = 1
        firsts = {partition: first for partition, (first, _) in self._log.bounds(topic).items()}
        at = {
            partition: max(self._seen.get(partition, 0), firsts[partition], end - newest)
            for partition, end in ends.items()
        }
        while at := {
            partition: offset for partition, offset in at.items() if offset < ends[partition]
        }:
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

    def _check_record(self, record: Record, published: PublishedDigests) -> None:
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
                f"the log has {kind} {number} of client {self._client} for model {name}, made with this "
                "folder's noise key, and the folder does not know it: the folder is older than what the client "
                "has published, or a copy of it runs elsewhere. Restore the newest copy of the whole folder, or start "
                "under a new client name; going on would publish the same readings twice with different noise"
            )

    def _identified(self, record: Record) -> tuple[str, str, int, bytes | None]:
        """Kind, model, number and digest of a client's message; no digest for a model that the
        contract lacks.

        Raises `MessageRejected`.
        """
        value = record.value or b""
        if ("type", MASKED_COUNTS.encode()) in record.headers:
            from shoal.protocol.masked import MaskedCounts  # noqa: PLC0415 - loaded only to mask counts

            masked = MaskedCounts.decode(value, record.headers)
            known = masked.model in self._models
            return (
                "the masked counts of round",
                masked.model,
                masked.round,
                masked_digest(value) if known else None,
            )
        update = Update.decode(value, record.headers)
        generation = self._earlier.get(update.contract)
        models = self._models if generation is None else generation.contract.models
        model = models.get(update.model)
        digest = None if model is None else content_digest(update, value, model.algorithm.update)
        return "update", update.model, update.sequence, digest


def masked_digest(value: bytes) -> bytes:
    """The digest of a message of masked counts, whose bytes are the same however often it is made."""
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest()
