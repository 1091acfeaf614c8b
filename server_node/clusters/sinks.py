"""Sinks of cluster events: what every sink is, and the two that shoal brings, a webhook and an MQTT topic.

A sink is found by the name of its section [events.NAME], through the entry-point group `shoal.sinks`.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Protocol, Self
from urllib.parse import urlsplit

from pydantic import Field, PlainSerializer, field_validator, model_validator

from shoal import __version__
from shoal.config.base import FilePath
from shoal.config.extension_settings import SINKS, SinkSettings
from shoal.errors import LogUnavailable, MissingExtra, SettingsError
from shoal.files import read_password

TIMEOUT_S = 10.0
BUSY = frozenset({408, 425, 429})
"""HTTP statuses below 500 with which the same request may succeed later"""


class Sink(Protocol):
    """Somewhere to deliver to. Delivery is at least once: after an outage the same alert may arrive twice."""

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """Deliver one alert; False if the receiver rejects it for good. Raises `LogUnavailable`: try again later."""
        ...

    def close(self) -> None:
        """Release the connection; closing twice is harmless."""
        ...


class SinkType(ABC):
    """One kind of sink: an object that the entry-point group `shoal.sinks` names."""

    name: str
    """name of its section in [events] and of its entry point"""
    settings: type[SinkSettings]
    """section of the sink; a required setting has no default"""

    @abstractmethod
    def open(self, settings: Any, federation: str) -> Sink:
        """The sink of a federation; `settings` is an instance of `self.settings`. It connects when it delivers.

        Raises `SettingsError` for settings that cannot be, and `MissingExtra`.
        """


def host_of(url: str) -> str:
    """The URL up to its host, since path and query of a webhook often are its secret: https://alerts.example/..."""
    parts = urlsplit(url)
    port = "" if parts.port is None else f":{parts.port}"
    rest = "/..." if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.hostname}{port}{rest}"


class WebhookSettings(SinkSettings):
    """[events.webhook]: an HTTP endpoint."""

    url: Annotated[str, PlainSerializer(host_of, when_used="json")] = Field(
        description="URL that every event is POSTed to as JSON; only its host is ever shown"
    )
    token_file: FilePath | None = Field(
        default=None, description="file with a token sent as `Authorization: Bearer`, read at each request"
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """For a traceback, or a log of settings: without what may be secret in the URL."""
        yield from ((name, host_of(value) if name == "url" else value) for name, value in super().__repr_args__())

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        try:
            host_of(url)
        except ValueError:
            raise ValueError("has a port that is no number up to 65535") from None
        return url


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the host in the settings, and a GET of another page delivers nothing."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Let the answer be an error."""


class Webhook:
    """POSTs each alert as JSON. A status of 2xx is success.

    Redirects, 5xx, 408, 425 and 429 are tried again, others are not. No redirect is followed.
    """

    def __init__(self, url: str, token_file: Path | None) -> None:
        """`token_file`: sent as `Authorization: Bearer`, read at each request so that it can be renewed."""
        self._url, self._token_file = url, token_file
        self._host = host_of(url)
        self._opener = urllib.request.build_opener(_NoRedirects)

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """See `Sink.deliver`."""
        headers = {"Content-Type": "application/json", "User-Agent": f"shoal/{__version__}"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {read_password(self._token_file, 'events')}"
        request = urllib.request.Request(self._url, json.dumps(alert).encode(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=TIMEOUT_S):
                return True
        except urllib.error.HTTPError as answer:
            answer.close()
            if 300 <= answer.code < 400:
                raise LogUnavailable(
                    f"webhook at {self._host}: answered {answer.code}, a redirect, which is not followed; set the "
                    "final URL"
                ) from None
            if answer.code >= 500 or answer.code in BUSY:
                raise LogUnavailable(f"webhook at {self._host}: answered {answer.code}") from None
            return False
        except (urllib.error.URLError, http.client.HTTPException, OSError) as away:
            reason = getattr(away, "reason", away)
            raise LogUnavailable(f"webhook at {self._host}: {reason}") from None

    def close(self) -> None:
        """Do nothing: no connection is kept between two alerts."""


class WebhookType(SinkType):
    """The sink `webhook`."""

    name = "webhook"
    settings = WebhookSettings

    def open(self, settings: WebhookSettings, federation: str) -> Webhook:
        """See `SinkType.open`."""
        return Webhook(settings.url, settings.token_file)


WEBHOOK = WebhookType()


class MqttSinkSettings(SinkSettings):
    """[events.mqtt]: an MQTT broker."""

    host: str = Field(min_length=1, description="MQTT broker that every event is published to")
    port: int = Field(default=0, ge=0, le=65535, description="port of the broker; 0: 1883, with TLS 8883")
    topic: str = Field(
        default="shoal/{federation}/{model}/{event}",
        min_length=1,
        description="topic; `{federation}`, `{model}` and `{event}` (its kind) are filled in",
    )
    tls: bool = Field(default=False, description="use TLS and verify the broker's certificate")
    ca_file: FilePath | None = Field(
        default=None, description="certificates (PEM) of the authorities trusted with TLS; none: the system's"
    )
    user: str = Field(default="", description="user name at the broker")
    secret_file: FilePath | None = Field(default=None, description="file with that user's password")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.user) != (self.secret_file is not None):
            raise ValueError("user and secret_file are set together")
        if self.ca_file is not None and not self.tls:
            raise ValueError("ca_file is for TLS: set tls = true")
        try:
            self.topic.format(federation="", model="", event="")
        except (KeyError, IndexError, ValueError):
            raise ValueError("topic may hold {federation}, {model} and {event} only") from None
        return self


class MqttSink:
    """Publishes each alert as JSON with QoS 1 and waits for the broker's acknowledgement."""

    def __init__(self, settings: MqttSinkSettings, federation: str) -> None:
        """Connects at the first alert. Raises `MissingExtra`."""
        try:
            from paho.mqtt import client, enums  # noqa: PLC0415 - MQTT is an extra
        except ModuleNotFoundError:
            raise MissingExtra("Events by MQTT", "mqtt") from None
        self._settings, self._federation = settings, federation
        self._client = client.Client(enums.CallbackAPIVersion.VERSION2, client_id=f"shoal-{federation}-events")
        if settings.secret_file is not None:
            self._client.username_pw_set(settings.user, read_password(settings.secret_file, "events"))
        if settings.tls:
            self._client.tls_set(None if settings.ca_file is None else str(settings.ca_file))
        self._connected = False

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """See `Sink.deliver`."""
        topic = self._settings.topic.format(federation=self._federation, model=model, event=event)
        try:
            self._connect()
            message = self._client.publish(topic, json.dumps(alert).encode(), qos=1)
            message.wait_for_publish(TIMEOUT_S)
            stored = message.is_published()
        except (OSError, RuntimeError, ValueError) as away:
            self.close()
            raise LogUnavailable(f"MQTT broker {self._place()}: {away}") from None
        if not stored:
            self.close()
            raise LogUnavailable(f"MQTT broker {self._place()}: no acknowledgement in {TIMEOUT_S:.0f} s")
        return True

    def close(self) -> None:
        """See `Sink.close`."""
        if self._connected:
            self._connected = False
            self._client.disconnect()
            self._client.loop_stop()

    def _connect(self) -> None:
        if not self._connected:
            port = self._settings.port or (8883 if self._settings.tls else 1883)
            self._client.connect(self._settings.host, port, keepalive=60)
            self._client.loop_start()
            self._connected = True

    def _place(self) -> str:
        return f"{self._settings.host}:{self._settings.port or 'default port'}"


class MqttSinkType(SinkType):
    """The sink `mqtt`."""

    name = "mqtt"
    settings = MqttSinkSettings

    def open(self, settings: MqttSinkSettings, federation: str) -> MqttSink:
        """See `SinkType.open`."""
        return MqttSink(settings, federation)


MQTT = MqttSinkType()


def _sink_type(name: str) -> SinkType:
    sink_type = SINKS.load(name)
    if not isinstance(sink_type, SinkType):
        raise SettingsError(f"sink of events {name!r} is not a server_node.clusters.sinks.SinkType")
    return sink_type


class Sinks:
    """All sinks of a federation file. Raises `SettingsError` if there is none."""

    def __init__(self, sections: Mapping[str, SinkSettings], federation: str) -> None:
        """`sections`: sink -> its section, as in `Config.sinks`."""
        if not sections:
            known = ", ".join(f"[events.{name}]" for name in SINKS.names())
            raise SettingsError(f"nowhere to forward events to: write a section of a sink; there are {known}")
        self._sinks = {name: _sink_type(name).open(settings, federation) for name, settings in sections.items()}

    def items(self) -> list[tuple[str, Sink]]:
        """name -> sink."""
        return list(self._sinks.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for sink in self._sinks.values():
            sink.close()
