"""What the clients of a host share: a file with their checkpoints, one with their ledgers, and the
federation's log.

Ten thousand clients with files and connections of their own would be a hundred thousand open files,
and each would wait for the disk by itself. Here the steps of many clients are one transaction of
each file: first what they have charged is on the disk, then what they save; then all publish, with
one wait for the log. So a kill at any instant leaves what it leaves of a client of its own: charges
of what is not stored, which is made again and costs nothing then, and records that are stored and
perhaps not published yet, which its next start publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from shoal.client_nodes.asleep import SleepNotes, StoredStates
from shoal.client_nodes.bootstrap import (
    HOST_CHECKPOINTS,
    NOISE_KEY,
    checkpoint_owner,
    host_owner,
)
from shoal.client_nodes.snapshots import decode_snapshot
from shoal.config.settings import Config
from shoal.errors import ShoalError
from shoal.privacy.ledger import LEDGER, LedgersFile
from shoal.protocol.messages import Snapshot
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import CheckpointFile
from shoal.runtime.logs import open_federation_log
from shoal.telemetry.slow_files import noting_slowness
from shoal.transports.base import Headers, Log, Positions, Record, TopicSettings
from shoal.transports.forwarded import ForwardedLog

SNAPSHOTS_KEPT: Final = 64
"""snapshots that are kept to be shared: the newest of each model, and a few before it"""
_Place = tuple[str, tuple[tuple[int, int], ...], int]
"""a topic, positions in it, and the most records of a read"""


class SharedLog(ForwardedLog):
    """A `Log` that many clients read and publish to, over one connection.

    A client that closes it leaves it open for the others. Between `begin` and `end` no client
    waits for the log: `end` does it for all.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.has_failed = False
        """whether it has raised: then it must not be used again"""
        self._waits_at_end = False
        self._has_published = False
        self._ensured: set[tuple[str, TopicSettings | None]] = set()
        self._identities: dict[str, bytes] = {}
        self._reads: dict[_Place, tuple[Sequence[Record], Positions]] = {}
        """what was read since `begin`: clients read the same snapshots from the same places"""

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """See `Log.ensure`; once for all clients."""
        if (topic, settings) not in self._ensured:
            with self._using() as log:
                log.ensure(topic, settings)
            self._ensured.add((topic, settings))

    def identity(self, topic: str) -> bytes:
        """See `Log.identity`; the topic's identity when it was first asked for."""
        found = self._identities.get(topic)
        if found is None:
            with self._using() as log:
                found = log.identity(topic)
            self._identities[topic] = found
        return found

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Log.publish`."""
        self._has_published = True
        with self._using() as log:
            log.publish(topic, value, key, headers, partition)

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`; between `begin` and `end` the latter does it."""
        if not self._waits_at_end:
            with self._using() as log:
                log.flush(timeout_s)

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`. Between `begin` and `end` the records of a place are read once."""
        place = (topic, tuple(sorted(at.items())), limit)
        found = self._reads.get(place)
        if found is None:
            with self._using() as log:
                found = log.read(topic, at, limit, timeout_s)
            # That nothing was there is soon not true any more.
            if found[0] and self._waits_at_end:
                self._reads[place] = found
        records, after = found
        # A reader may change its positions.
        return records, dict(after)

    def close(self) -> None:
        """Nothing: the log stays open for the other clients."""

    def begin(self) -> None:
        """Let `flush` return at once until `end`."""
        self._waits_at_end = True

    def end(self) -> None:
        """Wait until the log has what was published. Raises as the log does."""
        self._waits_at_end = False
        self._reads.clear()
        if self._has_published:
            with self._using() as log:
                log.flush()
        self._has_published = False

    @contextmanager
    def _using(self) -> Iterator[Log]:
        try:
            yield self._log
        except ShoalError:
            self.has_failed = True
            raise


class SharedFiles:
    """The checkpoints, the ledgers and the log of all clients of a host, opened at the first
    use."""

    def __init__(
        self,
        config: Config,
        opened: Callable[[CheckpointFile], None] | None = None,
        committed: Callable[[CheckpointFile], None] | None = None,
        ledgers: LedgersFile | None = None,
    ) -> None:
        """`opened`: called with the file of checkpoints when it was opened; `committed`: called
        with it once steps are stored in it, and before any of that is published. `ledgers`: the
        open file with the ledgers of the clients; None: one of this host, beside the
        checkpoints."""
        self._config = config
        self._opened = opened
        self._committed = committed
        self._checkpoints: CheckpointFile | None = None
        self._moving_ledgers = ledgers
        self._own_ledgers: LedgersFile | None = None
        self._log: SharedLog | None = None
        self._real_log: Log | None = None
        self._begun: set[str] = set()
        """clients that have a checkpoint, or must have one"""
        self._snapshots: dict[tuple[int, int], Snapshot] = {}
        """partition and offset -> snapshot, of the newest that clients have read"""

    @property
    def has_failed(self) -> bool:
        """Whether the log has raised, so that all must be closed and opened again."""
        return self._log is not None and self._log.has_failed

    @property
    def checkpoints(self) -> CheckpointFile:
        """The open file with the checkpoints of all clients."""
        assert self._checkpoints is not None, "clients step within `together`"
        return self._checkpoints

    @property
    def ledgers(self) -> LedgersFile | None:
        """The open file with the ledgers of all clients; None where nothing is counted."""
        return self._moving_ledgers or self._own_ledgers

    @property
    def log(self) -> SharedLog:
        """The open log of the federation."""
        assert self._log is not None, "clients step within `together`"
        return self._log

    @contextmanager
    def together(self, clients: Collection[str]) -> Iterator[None]:
        """Steps of clients inside: what they save is one transaction, and in the file after it.

        `clients`: all that may step. Raises as the file and the log do; then none of those that
        stepped inside may step again, and all is closed: new ones go on from their checkpoints.
        """
        with self._closed_by_errors():
            self._open()
            self._begin(clients)
            self.log.begin()
            # The ledgers within the checkpoints: they are on the disk before what they are charged
            # for is stored.
            with self.checkpoints.together(), self._charging():
                yield
            if self._committed is not None:
                self._committed(self.checkpoints)

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Ledgers note inside what is stored: before it is published, so that an older copy of a
        checkpoint is known from then on. Raises as `together` does."""
        with self._closed_by_errors(), self._charging():
            yield

    def _charging(self) -> AbstractContextManager[None]:
        ledgers = self.ledgers
        return nullcontext() if ledgers is None else ledgers.together()

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Clients publish inside what they have saved; the log has it after it.

        Raises as `together` does.
        """
        with self._closed_by_errors():
            yield
            self.log.end()

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def sleep_notes(self, site: str) -> SleepNotes:
        """What the host notes of its clients at its end. `site`: identity of their readings' file.

        Raises as the log does."""
        return SleepNotes(self._config, self.checkpoints, site, self._updates_log())

    def stored_states(self) -> StoredStates:
        """What the states of clients say that are stored. Raises as the log does."""
        return StoredStates(self._config, self.checkpoints, self._updates_log())

    def _updates_log(self) -> bytes:
        """The identity of the topic of updates."""
        config = self._config
        # Before any client is opened there may be no topic yet.
        ensure_topics(self.log, config.contract, config.log, config.client.publish_labels)
        return self.log.identity(config.contract.updates_topic)

    def decode(self, record: Record) -> Snapshot:
        """The snapshot in a record: one object for all clients, which hold it for long. Raises
        `MessageRejected`."""
        place = (record.partition, record.offset)
        snapshot = self._snapshots.get(place)
        if snapshot is None:
            snapshot = decode_snapshot(record)
            for array in snapshot.arrays.values():
                # Others have it too.
                array.flags.writeable = False
            self._snapshots[place] = snapshot
            # Clients read the same ones within a turn or two.
            while len(self._snapshots) > SNAPSHOTS_KEPT:
                del self._snapshots[next(iter(self._snapshots))]
        return snapshot

    def close(self) -> None:
        """Close all. The next use opens them."""
        log = self._real_log
        checkpoints = self._checkpoints
        ledgers = self._own_ledgers
        self._own_ledgers = None
        self._log = None
        self._real_log = None
        self._checkpoints = None
        # What was not stored when it failed is not there, and another log has other records.
        self._begun = set()
        self._snapshots = {}
        try:
            if log is not None:
                log.close()
        finally:
            if ledgers is not None:
                ledgers.close()
            if checkpoints is not None:
                checkpoints.close()

    def _begin(self, clients: Collection[str]) -> None:
        """Make the checkpoints of new clients, which must be on the disk before their keys are."""
        owners = []
        for client in clients:
            if client not in self._begun:
                if not (self._config.client.folder / client / NOISE_KEY).exists():
                    owners.append(checkpoint_owner(self._config, client))
                self._begun.add(client)
        if owners:
            with self.checkpoints.together():
                for owner in owners:
                    self.checkpoints.holder(owner)

    def _open(self) -> None:
        if self._checkpoints is None:
            path = self._config.client.folder / HOST_CHECKPOINTS
            self._checkpoints = CheckpointFile(path, host_owner(self._config))
            if self._opened is not None:
                self._opened(self._checkpoints)
        self._open_ledgers()
        if self._log is None:
            self._real_log = open_federation_log(self._config)
            self._log = SharedLog(self._real_log)

    def _open_ledgers(self) -> None:
        """Open the file of ledgers, under the lock of the checkpoints."""
        if self.ledgers is not None:
            return
        path = self._config.client.folder / LEDGER
        # Without a guarantee nothing is counted; what was counted before forbids that.
        if self._config.resolved.mode.formal or path.exists():
            self._own_ledgers = LedgersFile(path, watch=noting_slowness)
