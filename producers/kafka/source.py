"""The source type `kafka`: reads the readings of clients from a topic of JSON messages that there
is already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from shoal.config.extension_settings import ReadMessage
from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.kafka.settings import KafkaSourceSettings, kafka_settings
from shoal.producers.source_type import (
    AGAIN,
    NAME,
    UNTIL_IDLE,
    MessageSource,
    MessageStream,
    ProducerTask,
)
from shoal.transports.base import Record


class KafkaSource(MessageSource):
    """Reads a topic until it is stopped."""

    name = "kafka"
    settings = KafkaSourceSettings
    parameters = (
        click.Option(
            ["--kafka"], is_flag=True, help="Read the topic in [kafka] of the federation file."
        ),
        NAME,
        AGAIN,
        UNTIL_IDLE,
    )

    def client_name(self, options: Mapping[str, Any]) -> str | None:
        """See `SourceType.client_name`."""
        name: str | None = options["name"]
        return name

    def gives_users(self, config: Config, options: Mapping[str, Any]) -> bool:
        """See `SourceType.gives_users`."""
        return bool(kafka_settings(config).user_id)

    def message_reader(self, config: Config, field: str) -> Callable[[Record, float], ReadMessage]:
        """See `SourceType.message_reader`. By the rules of [kafka], which need not name a topic."""
        # Loaded only by a host, which reads messages by these rules, too.
        from shoal.producers.kafka.record_reader import message_reader  # noqa: PLC0415 - hosts

        settings = config.source(self.name)
        assert isinstance(settings, KafkaSourceSettings)
        return message_reader(config, settings, field)

    def is_described(self, config: Config) -> bool:
        """See `MessageSource.is_described`."""
        settings = config.source("kafka")
        assert isinstance(settings, KafkaSourceSettings)
        return bool(settings.topic)

    def stream(self, task: ProducerTask) -> MessageStream:
        """See `MessageSource.stream`."""
        settings = kafka_settings(task.config)
        if not settings.client and task.options["name"] is None:
            raise SettingsError(
                "give --name CLIENT, or set client in [kafka] to the field that names the client"
                " of a message"
            )
        if settings.group and task.options["again"]:
            raise SettingsError(
                "--again is for one process that reads the whole topic: leave out group of [kafka]"
                " for that start, with no other process of it running"
            )
        # Loaded only by a producer that reads a topic.
        from shoal.producers.kafka.ingest import kafka_stream  # noqa: PLC0415 - topics

        return kafka_stream(task)


KAFKA = KafkaSource()
