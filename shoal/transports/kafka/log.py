"""The log on Kafka, by kafka-python, without consumer groups: positions belong to the reader."""

from __future__ import annotations

from contextlib import suppress

from kafka.errors import KafkaError

from shoal.errors import LogError
from shoal.transports.base import Headers, Positions, Record, TopicSettings, partition_of
from shoal.transports.kafka.client_configs import MIB, client_config, servers_of
from shoal.transports.kafka.consumer import LogReader
from shoal.transports.kafka.producer import LogWriter
from shoal.transports.kafka.topics import Topics
from shoal.transports.kafka.transport import KafkaSettings, check_compression
from shoal.transports.limits import check_record, check_settings, size_of

IN_FLIGHT_BYTES_MAX = 64 * MIB
CLOSE_S = 10.0


class KafkaLog:
    """`Log` on the brokers `//host:port,host:port`. One object per thread. It connects when it is first used.

    `in_flight_bytes_max` bounds what is published and not yet stored: beyond it `publish` waits, and then raises
    `LogUnavailable`. After an error of `publish` or `flush`, what was published since the last flush may be stored
    or not: publish it again; readers drop repetitions.

    Raises `SettingsError` (address, files of secrets), `MissingExtra`; later `LogUnavailable` (brokers unavailable),
    `LogError` (a wrong secret, an unknown certificate, an access rule, and as `Log` describes).
    """

    def __init__(
        self, place: str, settings: KafkaSettings | None = None, in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    ) -> None:
        settings = settings or KafkaSettings()
        servers = servers_of(place)
        check_compression(settings)
        self._where = f"kafka://{','.join(servers)}"
        config = client_config(servers, settings)
        self._topics = Topics(self._where, config, settings.replication)
        self._writer = LogWriter(self._where, config, settings.compression, in_flight_bytes_max)
        self._reader = LogReader(self._where, config, self._topics)
        self._closed = False

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """See `Log.ensure`. `SettingsError` if impossible."""
        self._check_open()
        check_settings(topic, settings or TopicSettings())
        self._topics.ensure(topic, settings)

    def identity(self, topic: str) -> bytes:
        """See `Log.identity`; the topic id of Kafka. `LogError` when it has changed since this log was opened."""
        self._check_open()
        return self._topics.identity(topic)

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Log.publish`."""
        self._check_open()
        settings = self._topics.get(topic).settings
        size = size_of(topic, value, key, headers)
        partition = partition_of(key, settings.partitions) if partition is None else partition
        check_record(topic, settings, partition, key, size)
        if value is None and key is None:
            raise LogError(f"topic {topic!r}: a record without a value is a tombstone, and needs the key it is for")
        self._writer.send(topic, partition, value, key, headers, size)

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`."""
        self._check_open()
        self._writer.flush(timeout_s)

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[list[Record], Positions]:
        """See `Log.read`. A record that cannot be decoded comes without a value, with the header `unreadable`."""
        self._check_open()
        if limit < 1:
            raise LogError(f"a read of {limit} records was asked for; limit must be 1 or more")
        at = {int(partition): int(position) for partition, position in at.items()}
        partitions = self._topics.get(topic).settings.partitions
        for partition in at:
            if not 0 <= partition < partitions:
                raise LogError(f"topic {topic!r} has partitions 0 to {partitions - 1}, not {partition}")
        if not at:
            return [], {}
        return self._reader.read(topic, at, limit, timeout_s)

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """See `Log.bounds`."""
        self._check_open()
        self._topics.check_partitions(topic)
        partitions = range(self._topics.get(topic).settings.partitions)
        return self._topics.bounds(topic, partitions)

    def cluster(self) -> str:
        """The id of the brokers' cluster, the same for every address they are reached by."""
        self._check_open()
        return self._topics.cluster()

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        """See `Log.show_progress`: committed to the consumer group `reader`, where tools look for lag."""
        self._check_open()
        self._topics.show_progress(reader, topic, at)

    def close(self) -> None:
        """Flush and close. Raises only if records published since the last flush are lost."""
        if self._closed:
            return
        try:
            if self._writer.unsure:
                self._writer.flush(CLOSE_S)
        finally:
            self._closed = True
            self._writer.close()
            self._reader.close()
            with suppress(KafkaError):
                self._topics.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LogError(f"{self._where}: this log was closed; open it again")
