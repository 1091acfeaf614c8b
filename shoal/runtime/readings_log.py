"""Where a client's own readings are: in its folder, or on a broker of its premises. Both are one `Log` to who reads.

Raw readings never leave the premises, so that broker must not be one of the federation's.
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
from shoal.transports.base import Headers, Log, Positions, Record, TopicSettings
from shoal.transports.sqlite.log import SqliteLog


def open_readings(config: Config, client: str, folder: Path | None = None) -> Log:
    """The log that a producer writes a client's `READINGS` into; `folder` of all clients if it is another one.

    Raises `SettingsError`, and as the log's own opening does.
    """
    if not config.readings.address:
        return _in_its_folder(config, client, folder or config.client.folder)
    return _on_brokers(config, client, None)


def open_premises(config: Config, client: str) -> Log:
    """All that a client keeps about its readings: themselves, those refused, labels. The last two are in its folder."""
    if not config.readings.address:
        return _in_its_folder(config, client, config.client.folder)
    return _on_brokers(config, client, SqliteLog(config.client.folder / client / "readings.db"))


def check_apart(readings: Log, log: Log) -> None:
    """Raises `SettingsError` when raw readings are on the brokers of the federation, by whatever address."""
    if isinstance(readings, ReadingsElsewhere) and isinstance(log, InCluster) and readings.cluster() == log.cluster():
        raise SettingsError(
            "[readings] leads to the federation's own brokers: raw readings would leave the premises; "
            "use a broker that is the client's alone"
        )


def _in_its_folder(config: Config, client: str, folder: Path) -> Log:
    """It keeps from now on as many bytes of readings as the settings say, whatever they said before."""
    log = SqliteLog(folder / client / "readings.db")
    try:
        log.keep(READINGS, readings_settings(config.client))
    except BaseException:
        log.close()
        raise
    return log


def _on_brokers(config: Config, client: str, own: Log | None) -> Log:
    topic = f"{config.contract.federation}.{client}.{READINGS}"
    try:
        return ReadingsElsewhere(open_log(config.readings), topic, own)
    except BaseException:
        if own is not None:
            own.close()
        raise


@runtime_checkable
class InCluster(Protocol):
    """A log that brokers keep."""

    def cluster(self) -> str:
        """Names the brokers, whatever the address they are reached by. Raises as the log does."""
        ...


class ReadingsElsewhere:
    """`Log` of a client whose readings are `topic` of another log, which several clients may share.

    Everything else is in `own`, the log in its folder; a producer has none.
    """

    def __init__(self, brokers: Log, topic: str, own: Log | None) -> None:
        self._brokers, self._name, self._own = brokers, topic, own

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """See `Log.ensure`."""
        log, name = self._place(topic)
        log.ensure(name, settings)

    def identity(self, topic: str) -> bytes:
        """See `Log.identity`: the brokers' own, which a topic that was made anew does not have."""
        log, name = self._place(topic)
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
        log, name = self._place(topic)
        log.publish(name, value, key, headers, partition)

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`."""
        if self._own is not None:
            self._own.flush(timeout_s)
        self._brokers.flush(timeout_s)

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`; readings name the topic they are in. `LogError` when it was made anew while it is read."""
        log, name = self._place(topic)
        records, after = log.read(name, at, limit, timeout_s)
        if records and topic == READINGS:
            # An offset is part of the noise. In a topic made anew it would be another reading's.
            log.identity(name)
        return records, after

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """See `Log.bounds`."""
        log, name = self._place(topic)
        return log.bounds(name)

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        """See `Log.show_progress`."""
        log, name = self._place(topic)
        log.show_progress(reader, name, at)

    def cluster(self) -> str:
        """See `InCluster`."""
        assert isinstance(self._brokers, InCluster), "the settings see to it that these are brokers"
        return self._brokers.cluster()

    def close(self) -> None:
        """See `Log.close`."""
        with ExitStack() as stack:
            stack.callback(self._brokers.close)
            if self._own is not None:
                stack.callback(self._own.close)

    def _place(self, topic: str) -> tuple[Log, str]:
        if topic == READINGS:
            return self._brokers, self._name
        if self._own is None:
            raise LogError(f"topic {topic!r}: only {READINGS} are on these brokers")
        return self._own, topic
