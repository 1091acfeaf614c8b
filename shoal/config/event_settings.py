"""The section [events] of a federation file: where `shoal events forward` delivers cluster events."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from shoal.config.base import FilePath, Settings


class EventSettings(Settings):
    """[events]: sinks and rules of the forwarder of cluster events."""

    folder: FilePath = Field(default=Path("data/events"), description="where the forwarder keeps its position")
    rules: FilePath | None = Field(
        default=None, description="TOML file of `[[rule]]` tables: forward only matching events; none: all of them"
    )
    webhook: str = Field(default="", description="URL that every event is POSTed to as JSON; empty: none")
    webhook_token_file: FilePath | None = Field(
        default=None, description="file with a token sent as `Authorization: Bearer`, read at each request"
    )
    mqtt_host: str = Field(default="", description="MQTT broker that every event is published to; empty: none")
    mqtt_port: int = Field(default=0, ge=0, le=65535, description="of the broker; 0: 1883, with TLS 8883")
    mqtt_topic: str = Field(
        default="shoal/{federation}/{model}/{event}",
        min_length=1,
        description="topic; `{federation}`, `{model}` and `{event}` (its kind) are filled in",
    )
    mqtt_tls: bool = Field(default=False, description="use TLS and verify the broker's certificate")
    mqtt_ca_file: FilePath | None = Field(
        default=None, description="certificates (PEM) of the authorities trusted with TLS; none: the system's"
    )
    mqtt_user: str = Field(default="", description="user name at the broker")
    mqtt_secret_file: FilePath | None = Field(default=None, description="file with that user's password")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.webhook and not self.webhook.startswith(("http://", "https://")):
            raise ValueError("webhook must begin with http:// or https://")
        if bool(self.mqtt_user) != (self.mqtt_secret_file is not None):
            raise ValueError("mqtt_user and mqtt_secret_file are set together")
        if self.mqtt_ca_file is not None and not self.mqtt_tls:
            raise ValueError("mqtt_ca_file is for TLS: set mqtt_tls = true")
        try:
            self.mqtt_topic.format(federation="", model="", event="")
        except (KeyError, IndexError, ValueError):
            raise ValueError("mqtt_topic may hold {federation}, {model} and {event} only") from None
        return self
