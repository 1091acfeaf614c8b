"""The source type `influx`: receives points of InfluxDB's line protocol over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from shoal.config.settings import Config
from shoal.errors import SettingsError
from shoal.producers.influx.settings import InfluxSettings, influx_settings
from shoal.producers.source_type import NAME, UNTIL_IDLE, MessageSource, MessageStream, ProducerTask


class InfluxSource(MessageSource):
    """Receives writes until it is stopped."""

    name = "influx"
    settings = InfluxSettings
    parameters = (
        click.Option(
            ["--influx"],
            is_flag=True,
            help="Receive InfluxDB line protocol over HTTP, as [influx] of the federation file"
            " says.",
        ),
        NAME,
        UNTIL_IDLE,
    )

    def client_name(self, options: Mapping[str, Any]) -> str | None:
        """See `SourceType.client_name`."""
        name: str | None = options["name"]
        return name

    def gives_users(self, config: Config, options: Mapping[str, Any]) -> bool:
        """See `SourceType.gives_users`."""
        return bool(influx_settings(config).user_id)

    def is_described(self, config: Config) -> bool:
        """See `MessageSource.is_described`."""
        settings = config.source(self.name)
        assert isinstance(settings, InfluxSettings)
        return bool(settings.listen)

    def stream(self, task: ProducerTask) -> MessageStream:
        """See `MessageSource.stream`."""
        settings = influx_settings(task.config)
        if not settings.client and task.options["name"] is None:
            raise SettingsError(
                "give --name CLIENT, or set client in [influx] to the tag that names the client of"
                " a point"
            )
        # Loaded only by a producer that receives points.
        from shoal.producers.influx.ingest import influx_stream  # noqa: PLC0415 - HTTP

        return influx_stream(task)


INFLUX = InfluxSource()
