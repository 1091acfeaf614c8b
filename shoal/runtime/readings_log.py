"""Opens the readings log of a client: in its folder, or on a Kafka broker of its own site.

Raw readings never leave the site, so that broker must not be one of the federation's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, runtime_checkable

from shoal.config.settings import Config
from shoal.errors import LogError, SettingsError
from shoal.protocol.topics import READINGS, readings_settings
from shoal.transports import open_log
from shoal.transports.base import Headers, Log, Positions, Record, RecordBatch, TopicSettings, publish_batch
from shoal.transports.sqlite.log import SqliteLog


def open_readings(config: Config, client: str, folder: Path | None = None) -> Log:
    """The log that a producer writes the topic `READINGS` of one client to.

    `folder` replaces [client] folder, in which each client has one of its own. Raises as `open_log` does.
    """
    if not config.readings.address:
        return _in_folder(config, client, folder or config.client.folder)
    return _on_brokers(config, client, None)


def open_client_log(config: Config, client: str) -> Log:
    """The log of a client: its readings, rejected readings and labels, the last two always in its folder.

    Raises as `open_log` does.
    """
    if not config.readings.address:
        return _in_folder(config, client, config.client.folder)
    return _on_brokers(config, client, SqliteLog(config.client.folder / client / "readings.db"))


def check_separate(readings: Log, log: Log) -> None:
    """Raises `SettingsError` when raw readings are on the brokers of the federation, under any address."""
    if isinstance(readings, BrokerReadingsLog) and isinstance(log, ClusterLog) and readings.cluster() == log.cluster():
        raise SettingsError(
            "[readings] address leads to the federation's own brokers: raw readings would leave the client's site; "
            "use a broker that is the client's alone"
        )


def _in_folder(config: Config, client: str, folder: Path) -> Log:
    """An existing log takes over the retention of the settings."""
    log = SqliteLog(folder / client / "readings.db")
    try:
        log.set_retention(READINGS, readings_settings(config.client))
    except BaseException:
        log.close()
        raise
    return log


def _on_brokers(config: Config, client: str, local: Log | None) -> Log:
    topic = f"{config.contract.federation}.{client}.{READINGS}"
    try:
        return BrokerReadingsLog(open_log(config.readings), topic, local)
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


class BrokerReadingsLog:
    """`Log` of a client that has its readings on brokers and its other topics in its folder.

    Several clients may share the brokers: the topic `READINGS` of this client has the name `topic` there.
    """

    def __init__(self, brokers: Log, topic: str, local: Log | None) -> None:
        """`local` is the log in the client's folder; None for a producer, which needs none."""
        self._brokers, self._topic, self._local = brokers, topic, local

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
        self._brokers.flush(timeout_s)

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`. Records of readings have the topic's name on the brokers.

        Raises `LogError` when the topic was deleted and created anew while it was read.
        """
        log, name = self._locate(topic)
        records, after = log.read(name, at, limit, timeout_s)
        if records and topic == READINGS:
            # The noise of a reading depends on its offset. In a topic created anew it would be another reading's.
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

    def cluster(self) -> str:
        """See `ClusterLog`."""
        assert isinstance(self._brokers, ClusterLog), "the settings allow only brokers here"
        return self._brokers.cluster()

    def close(self) -> None:
        """See `Log.close`."""
        with ExitStack() as stack:
            stack.callback(self._brokers.close)
            if self._local is not None:
                stack.callback(self._local.close)

    def _locate(self, topic: str) -> tuple[Log, str]:
        if topic == READINGS:
            return self._brokers, self._topic
        if self._local is None:
            raise LogError(f"topic {topic!r}: only {READINGS} are on these brokers")
        return self._local, topic
