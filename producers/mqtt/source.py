"""The source type `mqtt`: receives the values of sensors from an MQTT broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.mqtt.settings import MqttSettings, mqtt_settings
from shoal.producers.source_type import NAME, UNTIL_IDLE, MessageSource, MessageStream, ProducerTask


class MqttSource(MessageSource):
    """Receives sensor values until it is stopped."""

    name = "mqtt"
    settings = MqttSettings
    parameters = (
        click.Option(
            ["--mqtt"],
            is_flag=True,
            help="Receive the values of the sensors in [mqtt] of the federation file.",
        ),
        NAME,
        UNTIL_IDLE,
    )

    def is_chosen(self, options: Mapping[str, Any]) -> bool:
        """See `SourceType.is_chosen`."""
        is_of_another = options.get("kafka") or options.get("influx")
        return bool(options["mqtt"]) or (options["name"] is not None and not is_of_another)

    def client_name(self, options: Mapping[str, Any]) -> str | None:
        """See `SourceType.client_name`."""
        name: str | None = options["name"]
        return name

    def gives_users(self, config: Config, options: Mapping[str, Any]) -> bool:
        """See `SourceType.gives_users`."""
        return bool(mqtt_settings(config).user_id)

    def is_described(self, config: Config) -> bool:
        """See `MessageSource.is_described`."""
        return bool(mqtt_settings(config).topics)

    def stream(self, task: ProducerTask) -> MessageStream:
        """See `MessageSource.stream`."""
        is_named = task.options["name"] is not None or mqtt_settings(task.config).client
        if not task.options["mqtt"] or not is_named:
            raise SettingsError(
                "--mqtt and --name CLIENT go together, unless client in [mqtt] says what names the"
                " client of a message"
            )
        from shoal.producers.mqtt.ingest import mqtt_stream  # noqa: PLC0415 - MQTT is an extra

        return mqtt_stream(task)


MQTT = MqttSource()
