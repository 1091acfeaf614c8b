"""The Kafka transport: an address with the scheme `kafka` opens a log on Kafka brokers."""

from __future__ import annotations

import re
from pathlib import Path

from shoal.config.base import Settings
from shoal.transports.base import Log, Transport
from shoal.transports.kafka.settings import KafkaSettings, check_compression, servers_of


class KafkaTransport(Transport):
    """Logs on Kafka brokers, at addresses `kafka://host:port,host:port`."""

    name = "kafka"
    settings = KafkaSettings

    def check_installed(self, settings: Settings) -> None:
        """See `Transport.check_installed`."""
        assert isinstance(settings, KafkaSettings)
        check_compression(settings)

    def open(self, location: str, settings: Settings) -> Log:
        """See `Transport.open`. Raises `MissingExtra`."""
        assert isinstance(settings, KafkaSettings)
        check_compression(settings)
        from shoal.transports.kafka.log import KafkaLog  # noqa: PLC0415 - kafka-python is an extra

        return KafkaLog(location, settings)

    def resolve(self, location: str, file: Path) -> str:
        """See `Transport.resolve`. Raises `SettingsError` for a location that names no brokers."""
        servers_of(location)
        return location

    def servers(self, location: str) -> frozenset[str]:
        """See `Transport.servers`. This machine has several names for itself; one of them is used
        for all."""
        named = re.sub(
            r"(^|,)(127\.0\.0\.1|\[::1\])(?=:)", r"\1localhost", location.lower().strip("/")
        )
        return frozenset(named.split(","))


KAFKA = KafkaTransport()
