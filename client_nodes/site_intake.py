"""Takes in the readings of all clients of a site from one log, in which records name their client.

It reads that log once for all of them, in its order, and stores each record as the next reading of
its client (`SiteReadings`), before any client sees it. A reading of shoal is not decoded here: one
that cannot be is rejected by its own client, as in a log of its own. Any other record is read as a
message by the rules of [kafka], as a producer reads it, and left out where it makes no reading.
Neither costs other clients anything.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final, NamedTuple

from shoal.client_nodes.monitoring import RejectionWatch
from shoal.client_nodes.partition_state import PartitionState
from shoal.config.base import client_name_of
from shoal.config.extension_settings import SOURCES, ReadMessage
from shoal.config.settings import Config
from shoal.errors import InvalidState, SettingsError
from shoal.protocol.readings import Reading
from shoal.protocol.topics import RELEASES_SETTINGS
from shoal.runtime.client_folders import client_folder
from shoal.runtime.logs import ClusterLog, open_federation_log, site_file
from shoal.runtime.site_readings import SiteReadings, TakenIn
from shoal.telemetry.events import log_event
from shoal.transports import open_log
from shoal.transports.base import Log, Positions, Record, first_positions, read_next

RECORDS_READ_MAX: Final = 30_000
"""most records that are stored in one transaction: with several of each of ten thousand clients
those of a client are written at once"""
TAKE_IN_S: Final = 0.5
"""time for which records are taken in before the clients have their turn: beyond it, a device with
very many records would keep the others from learning what they have"""
SHOW_PROGRESS_S: Final = 5.0
"""least interval at which the log's tools are shown how far was read"""
NAME_BYTES_MAX: Final = 1000
"""longest name of a client in the records: it is kept in a file of the client's folder"""
NOTES_READ_MAX: Final = 10_000
"""most notes that are read at once"""
IS_READING: Final = ("type", Reading.TYPE.encode())
"""header of a record that is a reading of shoal"""
REFUSED_KEPT_MAX: Final = 10_000
"""most refused clients, and most clients of other hosts, that are known by name: a writer of the
log can name clients without end"""


class Outcomes(NamedTuple):
    """What became of the records of a site's log, over all that has read it."""

    counts: Counter[str]
    """records by result: taken_in, refused (of a client beyond `clients_max`), other (of a client
    that is not named), elsewhere (of a client that another host has), nameless, unreadable (a
    message that makes no reading)"""
    refused: set[str]
    """the clients beyond `clients_max`"""


class SiteIntake:
    """Reads the log of a site from where the file with the site's readings says."""

    def __init__(
        self,
        config: Config,
        log: Log,
        site: SiteReadings,
        named: Collection[str],
        clients_max: int,
        clock: Callable[[], float] = time.time,
        *,
        outcomes: Outcomes,
        moves: PartitionState | None = None,
    ) -> None:
        """`named`: the clients whose readings are taken in; none: all, up to `clients_max`.

        `outcomes`: gets what becomes of records; `moves`: the one partition that is read, where
        partitions move between hosts. Raises as the log does.
        """
        self._counts = outcomes.counts
        self._refused = outcomes.refused
        self._moves = moves
        self._config = config
        self._log = log
        self._site = site
        self._named = named
        self._clients_max = clients_max
        self._clock = clock
        self._topic = config.host.topic
        self._by_key = config.host.client == "key"
        self._read_message: Callable[[Record, float], ReadMessage] | None = None
        """reads a record that is no reading of shoal; made for the first one"""
        self._names: dict[bytes, str] = {}
        """what records call a client -> client, of those that are taken in"""
        self._rejections = RejectionWatch()
        self._shows_next = -math.inf
        """the moment at which the log's tools are shown how far was read, by the monotonic clock"""
        log.ensure(self._topic)
        self._source = log.identity(self._topic)
        self._stored_at = site.positions(self._source)
        # A partition that was not there before is read from its first record.
        self._at = self._own_partitions(log) | self._stored_at
        self._released_topic = f"{self._topic}.releases"
        self._given_to: dict[bytes, bytes] | None = None
        """client -> the file that its readings of this log are in, as `_note_of` writes it; None
        where nothing is guaranteed"""
        self._elsewhere: set[str] = set()
        """clients of other hosts of which records came in this host's partitions"""
        self._notes_at: Positions = {}
        """positions of the next notes to read in the site's log"""
        if config.resolved.mode.formal or config.host.hosts > 1 or moves is not None:
            log.ensure(self._released_topic, RELEASES_SETTINGS)
            self._notes_at = first_positions(log, self._released_topic)
            self._given_to = {}
            self._read_notes()

    def _own_partitions(self, log: Log) -> Positions:
        """The first positions of the partitions of the topic that this host reads.

        Raises `SettingsError` where there are too few, and `InvalidState` where it has read those
        of another host."""
        settings = self._config.host
        first = first_positions(log, self._topic)
        if self._moves is not None:
            return {self._moves.partition: first[self._moves.partition]}
        if len(first) < settings.hosts:
            raise SettingsError(
                f"[host] hosts = {settings.hosts}, and topic {self._topic} has {len(first)}"
                " partitions: one for each host is needed"
            )
        own = {}
        for partition, position in first.items():
            if partition % settings.hosts == settings.number:
                own[partition] = position
        others = sorted(self._stored_at.keys() - own.keys())
        if others:
            raise InvalidState(
                f"{site_file(self._config)} has readings of partitions {others}, which are those of"
                f" another host with hosts = {settings.hosts} and number = {settings.number}."
                " Clients do not move between hosts: set both as they were"
            )
        return own

    def step(self) -> bool:
        """Take in what there is, for `TAKE_IN_S` at most; False where there was nothing.

        Raises as the log and the file do, and `OffsetOutOfRange` where retention has removed
        records that were not read, unless [client] accepts gaps.
        """
        began = time.monotonic()
        if not self._take_in():
            return False
        while time.monotonic() < began + TAKE_IN_S and self._take_in():
            pass
        # A group of hosts shows it by itself.
        if began >= self._shows_next and self._moves is None:
            self._shows_next = began + SHOW_PROGRESS_S
            reader = f"{self._config.contract.federation}.hosts"
            self._log.show_progress(reader, self._topic, self._stored_at)
        return True

    def lag_records(self) -> int:
        """Number of records of the site's log that are not read yet. Raises as the log does."""
        lag = 0
        bounds = self._log.bounds(self._topic)
        for partition, position in self._at.items():
            lag += max(0, bounds[partition][1] - position)
        return lag

    def _take_in(self) -> bool:
        records, after = read_next(
            self._log,
            self._topic,
            self._at,
            RECORDS_READ_MAX,
            0.0,
            self._config.client.accept_gap,
        )
        # By position and not by records: a gap that compaction left moves on without one.
        if after == self._at:
            return False
        counts: Counter[str] = Counter()
        new: dict[str, str] = {}
        readings = self._of_clients(self._without_stored(records), counts, new)
        elsewhere = self._note_new(set(new))
        if elsewhere:
            kept = [reading for reading in readings if reading.client not in elsewhere]
            counts["taken_in"] -= len(readings) - len(kept)
            counts["elsewhere"] += len(readings) - len(kept)
            readings = kept
        for client in new.keys() - elsewhere:
            client_folder(self._config.client.folder, client, new[client])
        firsts = self._firsts(readings, new)
        self._site.take_in(readings, self._source, self._stored_at, after)
        if self._moves is not None:
            partition = self._moves.partition
            numbers = {client: self._site.client(client).number for client in firsts}
            self._moves.took_in(firsts, numbers, self._at[partition], after[partition])
        self._at = dict(after)
        self._stored_at = dict(after)
        self._counts += counts
        return True

    def _without_stored(self, records: Sequence[Record]) -> Sequence[Record]:
        """These records without those of which the readings were stored before their partition has
        come here."""
        if self._moves is None or not self._moves.resumes_at:
            return records
        resumes_at = self._moves.resumes_at
        kept = []
        for record in records:
            key, _, _ = self._read(record, 0.0)
            client = client_name_of(key.decode("utf-8", "replace"))
            if record.offset >= resumes_at.get(client, 0):
                kept.append(record)
        return kept

    def _firsts(
        self, readings: Sequence[TakenIn], new: Mapping[str, str]
    ) -> dict[str, tuple[int, str]]:
        """Client -> the place that the first of these readings of it gets, and what the data call
        it, where that must be known to other hosts."""
        firsts: dict[str, tuple[int, str]] = {}
        if self._moves is None:
            return firsts
        for reading in readings:
            client = reading.client
            if client not in firsts:
                place = self._site.client(client).next if client in self._site else 0
                firsts[client] = place, new.get(client, client)
        return firsts

    def _of_clients(
        self, records: Sequence[Record], counts: Counter[str], new: dict[str, str]
    ) -> list[TakenIn]:
        """The readings in these records, in their order; `counts` gets what became of each, `new`
        the clients without a reading so far, and what the first record calls each."""
        readings: list[TakenIn] = []
        faults: list[str] = []
        now = self._clock()
        taken_in = 0
        for record in records:
            _, _, _, timestamp_ms, key_in_log, value, headers = record
            # The usual case, which is to cost about a microsecond.
            if self._by_key and IS_READING in headers:
                client = self._names.get(key_in_log or b"")
                if client is not None:
                    taken_in += 1
                    readings.append(TakenIn(client, timestamp_ms, headers, value))
                    continue
            key, reading, fault = self._read(record, now)
            result = "unreadable" if fault else "taken_in"
            client = None if fault else self._names.get(key)
            if client is None and not fault:
                client, result = self._client_of(key, new)
            counts[result] += 1
            if result == "nameless":
                faults.append(result)
            elif fault:
                faults.append(fault)
            if client is not None:
                readings.append(reading._replace(client=client))
        counts["taken_in"] += taken_in
        for reason, number in self._rejections.add(faults, now):
            log_event("records_left_out", logging.WARNING, reason=reason, records=number)
        return readings

    def _read(self, record: Record, now: float) -> tuple[bytes, TakenIn, str]:
        """The name of the client in a record, its reading, and why it has none.

        The client of that reading is not known yet.
        """
        taken = TakenIn("", record.timestamp_ms, record.headers, record.value)
        if self._by_key and IS_READING in record.headers:
            return record.key or b"", taken, ""
        if self._read_message is None:
            field = "" if self._by_key else self._config.host.client
            # A `SourceType` of producers, of which settings know a part.
            source: Any = SOURCES.load("kafka")
            self._read_message = source.message_reader(self._config, field)
        if self._moves is not None:
            # Where another host may read the record again, what becomes of it must not hang on when
            # it is read.
            now = record.timestamp_ms / 1000
        message: ReadMessage = self._read_message(record, now)
        key = record.key or b""
        if not self._by_key:
            key = message.client.encode("utf-8", "replace")
        taken = taken._replace(headers=message.headers, value=message.value)
        return key, taken, message.fault

    def _client_of(self, key: bytes, new: dict[str, str]) -> tuple[str | None, str]:
        """The client that records call `key`, and what becomes of such a record; None for one that
        is left out.

        `new`: gets a client that has come in this batch first, and the text of `key`.
        """
        try:
            text = key.decode("utf-8")
        except UnicodeDecodeError:
            text = ""
        if not text or len(key) > NAME_BYTES_MAX:
            return None, "nameless"
        client = client_name_of(text)
        if self._named and client not in self._named:
            return None, "other"
        if client in self._elsewhere:
            return None, "elsewhere"
        if client not in self._site and client not in new:
            if len(self._site) + len(new) >= self._clients_max:
                self._refuse(client)
                return None, "refused"
            new[client] = text
        self._names[key] = client
        return client, "taken_in"

    def _refuse(self, client: str) -> None:
        if client in self._refused or len(self._refused) >= REFUSED_KEPT_MAX:
            return
        self._refused.add(client)
        log_event("client_refused", logging.WARNING, client=client, clients_max=self._clients_max)

    def _note_new(self, clients: set[str]) -> set[str]:
        """Note in the site's log which file the readings of new clients are in from now on; those
        of them that another host has.

        With that file and the clients' folders lost, the same readings would otherwise be released
        a second time, with other noise. Raises `InvalidState` where another file of this host has
        them.
        """
        if self._given_to is None or not clients:
            return set()
        self._read_notes()
        elsewhere = self._of_other_hosts(clients)
        for client in sorted(clients - elsewhere):
            self._log.publish(self._released_topic, self._note(), client.encode())
        self._log.flush()
        # Another host may have noted the same client meanwhile: the first of both notes counts, by
        # the order of the log, which is one for all.
        self._read_notes()
        elsewhere |= self._of_other_hosts(clients - elsewhere)
        for client in sorted(elsewhere):
            self._leave_out(client)
        return elsewhere

    def _note(self) -> bytes:
        """What says that this host has a client: the identity of its file and, where hosts share
        the topic, its number."""
        if self._moves is not None:
            return self._moves.note()
        settings = self._config.host
        if settings.hosts == 1:
            return self._site.identity.encode()
        return f"{self._site.identity} {settings.number}".encode()

    def _of_other_hosts(self, clients: Collection[str]) -> set[str]:
        """Those of these clients whose readings the file of a host of another number has.

        Raises `InvalidState` where it is another file of this host.
        """
        assert self._given_to is not None
        mine = self._note()
        own_number = mine.partition(b" ")[2]
        others = set()
        for client in sorted(clients):
            note = self._given_to.get(client.encode(), mine)
            number = note.partition(b" ")[2]
            if note == mine:
                continue
            if self._moves is not None:
                self._check_changelog(client, note)
                others.add(client)
                continue
            if not own_number or not number or number == own_number:
                raise InvalidState(
                    f"the site's log says that the readings of client {client} were taken in by"
                    f" another file than {site_file(self._config)}, which is lost or on another"
                    " host. Going on would release the same readings twice, with other noise."
                    " Restore that file with the clients' folders, or begin with a new topic"
                )
            others.add(client)
        return others

    def _check_changelog(self, client: str, note: bytes) -> None:
        """Raises `InvalidState` where a client's readings were not taken in by the hosts of this
        group and changelog."""
        assert self._moves is not None
        if note.rpartition(b" ")[0] == self._moves.note().rpartition(b" ")[0]:
            return
        raise InvalidState(
            f"the site's log says that the readings of client {client} were taken in by a host that"
            f" is not of this group, or that the topic {self._topic}.clients was deleted since:"
            " what was released of them is not known here. Going on would release the same readings"
            " twice. Start the host that has them, or begin with a new topic"
        )

    def _leave_out(self, client: str) -> None:
        """Leave out the records of a client of another host from now on.

        One device whose records come in two partitions is to cost the other clients nothing.
        """
        names = [name for name, known in self._names.items() if known == client]
        for name in names:
            del self._names[name]
        if client in self._elsewhere or len(self._elsewhere) >= REFUSED_KEPT_MAX:
            return
        self._elsewhere.add(client)
        log_event("client_of_another_host", logging.WARNING, client=client)

    def _read_notes(self) -> None:
        """Read the notes that are new: the first one of a client says which file has its
        readings."""
        assert self._given_to is not None
        while True:
            records, after = read_next(
                self._log, self._released_topic, self._notes_at, NOTES_READ_MAX, 0.0, True
            )
            for record in records:
                if record.key is None:
                    continue
                if record.value is None:
                    self._given_to.pop(record.key, None)
                else:
                    self._given_to.setdefault(record.key, record.value)
            if after == self._notes_at:
                return
            self._notes_at = dict(after)


def check_site_apart(config: Config, log: Log) -> None:
    """Raises `SettingsError` where the log of a site is on the brokers of the federation."""
    if not isinstance(log, ClusterLog):
        return
    with closing(open_federation_log(config)) as federation:
        # By the id of the cluster: one cluster has many addresses.
        if isinstance(federation, ClusterLog) and federation.cluster() == log.cluster():
            raise SettingsError(
                "[host] address leads to the federation's own brokers: raw readings would leave the"
                " clients' site; use a broker that is the site's alone"
            )


@contextmanager
def open_site_intake(
    config: Config,
    site: SiteReadings,
    named: Collection[str],
    clients_max: int,
    clock: Callable[[], float] = time.time,
    *,
    outcomes: Outcomes,
    moves: PartitionState | None = None,
) -> Iterator[SiteIntake]:
    """Open the log of a site. Raises as it does, and `SettingsError` where it is on the brokers of
    the federation."""
    with ExitStack() as stack:
        log = stack.enter_context(closing(open_log(config.host)))
        check_site_apart(config, log)
        yield SiteIntake(
            config, log, site, named, clients_max, clock, outcomes=outcomes, moves=moves
        )
