"""What all sinks share that publish to an MQTT broker: its settings, and a publisher."""

from __future__ import annotations

from typing import Final, Self

from pydantic import Field, model_validator

from shoal.config.base import FilePath
from shoal.config.extension_settings import SinkSettings
from shoal.errors import LogUnavailable, MissingExtra
from shoal.files import read_password
from shoal.server_node.outputs.sinks.base import TIMEOUT_S

PORT: Final = 1883
TLS_PORT: Final = 8883
"""ports that IANA has registered for MQTT"""


class BrokerSettings(SinkSettings):
    """An MQTT broker to publish to."""

    host: str = Field(min_length=1, description="MQTT broker that every event is published to")
    port: int = Field(
        default=0, ge=0, le=65535, description="port of the broker; 0: 1883, with TLS 8883"
    )
    tls: bool = Field(default=False, description="use TLS and verify the broker's certificate")
    ca_file: FilePath | None = Field(
        default=None,
        description="certificates (PEM) of the authorities trusted with TLS; none: the system's",
    )
    user: str = Field(default="", description="user name at the broker")
    secret_file: FilePath | None = Field(default=None, description="file with that user's password")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.user) != (self.secret_file is not None):
            raise ValueError("user and secret_file are set together")
        if self.ca_file is not None and not self.tls:
            raise ValueError("ca_file is for TLS: set tls = true")
        return self


class MqttPublisher:
    """Publishes messages with QoS 1 and waits for the broker's acknowledgement."""

    def __init__(self, settings: BrokerSettings, client_id: str) -> None:
        """Connects at the first message. Raises `MissingExtra`."""
        try:
            from paho.mqtt import client, enums  # noqa: PLC0415 - MQTT is an extra
        except ModuleNotFoundError:
            raise MissingExtra("Events by MQTT", "mqtt") from None
        self._settings = settings
        self._client = client.Client(enums.CallbackAPIVersion.VERSION2, client_id=client_id)
        if settings.secret_file is not None:
            password = read_password(settings.secret_file, "events")
            self._client.username_pw_set(settings.user, password)
        if settings.tls:
            self._client.tls_set(None if settings.ca_file is None else str(settings.ca_file))
        self._connected = False

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish a message. Raises `LogUnavailable`: try again later."""
        try:
            self._connect()
            message = self._client.publish(topic, payload, qos=1, retain=retain)
            # The acknowledgement of the broker, not of its subscribers: that is all that QoS 1 has.
            message.wait_for_publish(TIMEOUT_S)
            stored = message.is_published()
        except (OSError, RuntimeError, ValueError) as away:
            self.close()
            raise LogUnavailable(f"MQTT broker {self._address()}: {away}") from None
        if not stored:
            self.close()
            raise LogUnavailable(
                f"MQTT broker {self._address()}: no acknowledgement in {TIMEOUT_S:.0f} s"
            )

    def close(self) -> None:
        """Disconnect; closing twice is harmless."""
        if self._connected:
            self._connected = False
            self._client.disconnect()
            # After `disconnect`, which the loop still has to send.
            self._client.loop_stop()

    def _connect(self) -> None:
        if self._connected:
            return
        default_port = TLS_PORT if self._settings.tls else PORT
        self._client.connect(self._settings.host, self._settings.port or default_port, keepalive=60)
        self._client.loop_start()
        self._connected = True

    def _address(self) -> str:
        return f"{self._settings.host}:{self._settings.port or 'default port'}"
