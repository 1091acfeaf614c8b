"""Opens the logs of a process: the federation's, and a client's own with its readings.

A server signs its records with a private key (`[server] signing_key_file`); all others hold its
public key (`[log] server_keys`), with which nobody can forge a snapshot, a lease or any other
record of a server. A signature (Ed25519) covers the topic, the record's key, the type and version
of the message, and its value. In the topic of updates the same holds for the end of a round of
masked counts, which helpers answer once. An old record that is published once more has a valid
signature: versions and generations show that it is old. A process that can write can still hide a
snapshot, because the topic is compacted and keeps the newest record of a key, until the next one
comes.

A client's readings are in its folder, or on a Kafka broker of its own site. Raw readings never
leave the site, so that broker must not be one of the federation's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from shoal.config.settings import CLIENT, Config
from shoal.errors import LogError, SettingsError
from shoal.protocol.messages import CLOSE_ROUND, ROUND_PLAN
from shoal.protocol.topics import READINGS, RELEASES, readings_settings
from shoal.runtime.checkpoint import OutboxRecord
from shoal.telemetry.events import log_event
from shoal.transports import open_log, open_log_to_read
from shoal.transports.base import (
    Headers,
    Log,
    Positions,
    Record,
    RecordBatch,
    TopicSettings,
    flush_unsynced,
    publish_batch,
    show_renewal,
    shown_renewal,
)
from shoal.transports.forwarded import ForwardedLog
from shoal.transports.sqlite.log import SqliteLog

if TYPE_CHECKING:
    from shoal.protocol.ed25519 import PrivateKey, PublicKeys

HEADER: Final = "server_signature"
SIGNED_IN_UPDATES: Final = frozenset(
    {("type", kind.encode()) for kind in (CLOSE_ROUND, ROUND_PLAN)}
)
"""headers of the records of the topic of updates that servers sign"""
_SIGNED_HEADERS: Final = ("type", "v")


class SignedTopic(ForwardedLog):
    """A `Log` in which records of servers are signed.

    All records of one topic are, and ends and plans of rounds in another.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        accepted: PublicKeys,
        own: PrivateKey | None = None,
        closes: str | None = None,
    ) -> None:
        """Accept what is signed with one of the keys `accepted`, and sign with `own`.

        `own` is None in a process that does not sign. `closes`: the topic in which ends and plans
        of rounds are signed as well.
        """
        self._log = log
        self._topic = topic
        self._accepted = accepted
        self._own = own
        self._closes = closes

    @contextmanager
    def _using(self) -> Iterator[Log]:
        yield self._log

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Publish, with the signature where the record is one of a server."""
        if topic == self._topic:
            assert self._own is not None, "only a server writes to this topic"
        of_round = topic == self._closes and not SIGNED_IN_UPDATES.isdisjoint(headers)
        if self._own is not None and (topic == self._topic or of_round):
            headers += _signed(self._own, topic, key, headers, value)
        self._log.publish(topic, value, key, headers, partition)

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """Read as `Log.read` does, but no unsigned records of servers; none means the end."""
        records, after = self._log.read(topic, at, limit, timeout_s)
        if topic not in (self._topic, self._closes):
            return records, after
        while records:
            signed = [record for record in records if self._is_signed(record)]
            if len(signed) < len(records):
                log_event(
                    "unsigned_records",
                    logging.WARNING,
                    topic=topic,
                    records=len(records) - len(signed),
                )
            # Empty records would say that the log ends here, so what follows unsigned ones is read
            # at once.
            if signed:
                return signed, after
            records, after = self._log.read(topic, after, limit, 0.0)
        return records, after

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return self._log.bounds(topic)

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        self._log.show_progress(reader, topic, at)

    def show_renewal(self, holder: str, count: int) -> bool:
        """See `show_renewal`."""
        return show_renewal(self._log, holder, count)

    def shown_renewal(self, holder: str) -> int | None:
        """See `shown_renewal`. Not signed: who can lock a byte of the file can delete the log."""
        return shown_renewal(self._log, holder)

    def close(self) -> None:
        self._log.close()

    def _is_signed(self, record: Record) -> bool:
        if record.topic != self._topic and SIGNED_IN_UPDATES.isdisjoint(record.headers):
            return True
        signature = dict(record.headers).get(HEADER, b"")
        message = _message(record.topic, record.key, record.headers, record.value)
        return bool(signature) and self._accepted.have_signed(message, signature)


def open_federation_log(config: Config, *, as_server: bool = False, read_only: bool = False) -> Log:
    """The federation's log. Where `[log] server_keys` is set, only signed records of servers count.

    `as_server`: sign as well; `read_only`: publish nothing, and change no file. Raises
    `SettingsError` for a key that cannot be read, and as `open_log` does.
    """
    log = open_log_to_read(config.log) if read_only else open_log(config.log)
    file = config.log.server_keys
    try:
        own = None
        if as_server:
            own = _server_key(config)
        if file is None:
            return log
        # Loaded only to sign and check: most federations run without keys of servers.
        from shoal.protocol.ed25519 import (  # noqa: PLC0415 - only to check
            PublicKeys,
            read_public_keys,
        )

        contract = config.contract
        closes = None
        if config.resolved.mode.masked:
            closes = contract.updates_topic
        return SignedTopic(
            log, contract.snapshots_topic, PublicKeys(read_public_keys(file)), own, closes
        )
    except BaseException:
        log.close()
        raise


def snapshot_signer(config: Config) -> Callable[[OutboxRecord], Headers]:
    """A function that gives the headers to add to a record.

    They are the signature that `open_federation_log` would add, if any. For writers to the topic
    that do not go through a `Log`. Raises `SettingsError` for a key that cannot be read.
    """
    key = _server_key(config)
    topic = config.contract.snapshots_topic

    def sign(record: OutboxRecord) -> Headers:
        if key is None or record.topic != topic:
            return ()
        return _signed(key, topic, record.key, record.headers, record.value)

    return sign


def _server_key(config: Config) -> PrivateKey | None:
    """The key that this server signs with; None where servers do not. Raises `SettingsError`."""
    if config.log.server_keys is None:
        return None
    if config.server.signing_key_file is None:
        raise SettingsError(
            "[log] server_keys says that the server signs: set signing_key_file in [server] and "
            "make it with `shoal keys server`"
        )
    # Loaded only to sign.
    from shoal.protocol.ed25519 import (  # noqa: PLC0415 - only to sign
        read_private_key,
        read_public_keys,
    )

    key = read_private_key(config.server.signing_key_file)
    if key.public not in read_public_keys(config.log.server_keys):
        raise SettingsError(
            f"{config.log.server_keys} does not have the public key that belongs to "
            f"{config.server.signing_key_file}: clients would leave out all that this server "
            "publishes; copy the file from where the key was made"
        )
    return key


def _signed(
    key: PrivateKey, topic: str, record_key: bytes | None, headers: Headers, value: bytes | None
) -> Headers:
    return ((HEADER, key.sign(_message(topic, record_key, headers, value))),)


def _message(topic: str, record_key: bytes | None, headers: Headers, value: bytes | None) -> bytes:
    """What a signature covers: each part with its length, so that no other record has the same."""
    contents = dict(headers)
    parts = [topic.encode(), record_key or b""]
    for name in _SIGNED_HEADERS:
        parts.append(contents.get(name, b""))
    parts.append(value or b"")
    # No key and an empty one are different records, and so are a tombstone and an empty value.
    message = b"shoal server signature 2\0" + bytes([record_key is None, value is None])
    for part in parts:
        message += len(part).to_bytes(8, "little") + part
    return message


def open_readings(
    config: Config, client: str, folder: Path | None = None, brokers: Log | None = None
) -> Log:
    """The log that a producer writes the topic `READINGS` of one client to.

    `folder` replaces the folder of the settings, in which each client has one of its own.
    `brokers`: those of [readings], where many clients use them over one connection; None: they are
    opened. Raises as `open_log` does.
    """
    if not config.readings.address:
        return _in_folder(config, client, folder or config.readings_folder)
    return _on_brokers(config, client, None, brokers)


@contextmanager
def open_readings_brokers(config: Config) -> Iterator[Log | None]:
    """The log of [readings] for many clients, closed at the end; None where their readings are in
    folders. Raises as `open_log` does."""
    if not config.readings.address:
        yield None
        return
    with closing(open_log(config.readings)) as brokers:
        yield BorrowedLog(brokers)


class BorrowedLog(ForwardedLog):
    """A `Log` that many use, and that another one closes."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @contextmanager
    def _using(self) -> Iterator[Log]:
        yield self._log

    def close(self) -> None:
        """Nothing: others use it."""


def open_client_log(
    config: Config, client: str, of_site: Log | None = None, *, read_only: bool = False
) -> Log:
    """The log of a client: its readings, rejected readings and labels.

    The last two are always in its folder. `of_site`: the log of its readings where a host has those
    of a site in one file; None: that file is opened, to be read. `read_only`: publish nothing, and
    change no file. Raises as `open_log` does.
    """
    if config.host.client:
        return _of_site(config, client, of_site, read_only)
    if not config.readings.address and config.readings_folder == config.client.folder:
        return _in_folder(config, client, config.client.folder, read_only)
    own = _own_log(config, client, read_only)
    if config.readings.address:
        return _on_brokers(config, client, own)
    try:
        readings = _in_folder(config, client, config.readings_folder, read_only)
        return SplitLog(readings, READINGS, own)
    except BaseException:
        own.close()
        raise


def _own_log(config: Config, client: str, read_only: bool) -> Log:
    """The log in a client's folder."""
    file = config.client.folder / client / "readings.db"
    if read_only:
        return _reader(file)
    return SqliteLog(file)


def _reader(file: Path) -> Log:
    """The log in a file that is read and not changed."""
    # Commands read so: a client on a small machine does without this module.
    from shoal.transports.sqlite.reader import SqliteLogReader  # noqa: PLC0415 - commands

    return SqliteLogReader(file)


def site_file(config: Config) -> Path:
    """The file with the readings of all clients of a site, as a host takes them in."""
    # A client's name has no dot, so this is no client's folder.
    return config.client.folder / "site.db"


def _of_site(config: Config, client: str, of_site: Log | None, read_only: bool) -> Log:
    with ExitStack() as stack:
        if of_site is None:
            file = site_file(config)
            if not file.exists():
                raise SettingsError(
                    f"{file} is missing: no host has taken in readings of this site yet; check"
                    " [client] folder, or start `shoal host`"
                )
            # Only a site with a host has such a file.
            from shoal.runtime.site_readings import SiteReadings  # noqa: PLC0415 - hosts

            site = SiteReadings(file, config.client.readings_bytes_max, read_only=read_only)
            stack.callback(site.close)
            of_site = site.log_of(client, closes_file=True)
        # Labels and rejected readings: many devices have none, and an open file for each of ten
        # thousand is too many.
        own = LazyLog(partial(_own_log, config, client, read_only))
        stack.pop_all()
        return SplitLog(of_site, READINGS, own)


def check_separate(readings: Log, log: Log) -> None:
    """Raises `SettingsError` when raw readings are on the brokers of the federation.

    By the id of the cluster: one cluster has many addresses, and text of settings cannot tell.
    """
    if not isinstance(readings, SplitLog) or not isinstance(log, ClusterLog):
        return
    if readings.cluster() == log.cluster():
        raise SettingsError(
            "[readings] address leads to the federation's own brokers: raw readings would leave "
            "the client's site; use a broker that is the client's alone"
        )


def _in_folder(config: Config, client: str, folder: Path, read_only: bool = False) -> Log:
    """Open the log in a client's folder, and give it the retention of the settings."""
    file = folder / client / "readings.db"
    if read_only:
        return _reader(file)
    log = SqliteLog(file)
    try:
        log.set_retention(READINGS, readings_settings(config.client))
    except BaseException:
        log.close()
        raise
    return log


def _on_brokers(config: Config, client: str, local: Log | None, brokers: Log | None = None) -> Log:
    topic = (
        config.readings.topic.replace(CLIENT, client)
        or f"{config.contract.federation}.{client}.{READINGS}"
    )
    try:
        return SplitLog(brokers or open_log(config.readings), topic, local)
    except BaseException:
        if local is not None:
            local.close()
        raise


@runtime_checkable
class ClusterLog(Protocol):
    """A log on Kafka brokers."""

    def cluster(self) -> str:
        """The id of the Kafka cluster, the same under any address. Raises as the log does."""
        ...


class LazyLog(ForwardedLog):
    """A `Log` that is opened at its first use; topics that were ensured before are then made."""

    def __init__(self, opens: Callable[[], Log]) -> None:
        self._opens = opens
        self._log: Log | None = None
        self._ensured: dict[str, TopicSettings | None] = {}

    @contextmanager
    def _using(self) -> Iterator[Log]:
        yield self._opened()

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """See `Log.ensure`."""
        self._ensured[topic] = settings
        if self._log is not None:
            self._log.ensure(topic, settings)

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`."""
        if self._log is not None:
            self._log.flush(timeout_s)

    def close(self) -> None:
        """See `Log.close`."""
        if self._log is not None:
            self._log.close()

    def _opened(self) -> Log:
        if self._log is None:
            log = self._opens()
            try:
                for topic, settings in self._ensured.items():
                    log.ensure(topic, settings)
            except BaseException:
                log.close()
                raise
            self._log = log
        return self._log


class SplitLog:
    """`Log` of a client that has its readings elsewhere, and all else in its folder.

    Its readings are on brokers or in a shared folder. Several clients may share the brokers: the
    topic `READINGS` of this client has the name `topic` there, and what was released of it is
    beside it.
    """

    def __init__(self, shared: Log, topic: str, local: Log | None) -> None:
        """`local` is the log in the client's folder; None for a producer, which needs none."""
        self._shared = shared
        self._topic = topic
        self._local = local

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """See `Log.ensure`."""
        log, name = self._locate(topic)
        log.ensure(name, settings)

    def identity(self, topic: str) -> bytes:
        """See `Log.identity`."""
        log, name = self._locate(topic)
        return log.identity(name)

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Log.publish`."""
        log, name = self._locate(topic)
        log.publish(name, value, key, headers, partition)

    def publish_batch(self, topic: str, batch: RecordBatch, partition: int) -> None:
        """See `BatchLog.publish_batch`."""
        log, name = self._locate(topic)
        publish_batch(log, name, batch, partition)

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`."""
        if self._local is not None:
            self._local.flush(timeout_s)
        self._shared.flush(timeout_s)

    def flush_unsynced(self) -> None:
        """See `flush_unsynced`."""
        if self._local is not None:
            self._local.flush()
        flush_unsynced(self._shared)

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`. Records of readings have the topic's name on the brokers.

        Raises `LogError` when the topic was deleted and created anew while it was read.
        """
        log, name = self._locate(topic)
        records, after = log.read(name, at, limit, timeout_s)
        if records and topic == READINGS:
            # The noise of a reading depends on its offset. In a topic created anew it would be
            # another reading's.
            log.identity(name)
        return records, after

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """See `Log.bounds`."""
        log, name = self._locate(topic)
        return log.bounds(name)

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        """See `Log.show_progress`."""
        log, name = self._locate(topic)
        log.show_progress(reader, name, at)

    def cluster(self) -> str | None:
        """The id of the Kafka cluster with the readings; None where they are in a folder.

        Raises as the log does.
        """
        if not isinstance(self._shared, ClusterLog):
            return None
        return self._shared.cluster()

    def close(self) -> None:
        """See `Log.close`."""
        with ExitStack() as stack:
            # By a stack, so that one log is closed where closing the other fails.
            stack.callback(self._shared.close)
            if self._local is not None:
                stack.callback(self._local.close)

    def _locate(self, topic: str) -> tuple[Log, str]:
        if topic in (READINGS, RELEASES):
            return self._shared, self._topic + topic.removeprefix(READINGS)
        if self._local is None:
            raise LogError(f"topic {topic!r}: only {READINGS} are in this log")
        return self._local, topic
