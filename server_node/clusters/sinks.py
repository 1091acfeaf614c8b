"""Sinks of cluster events: what every sink is, and two that shoal brings, a webhook and an MQTT
topic.

A sink is found by the name of its section [events.NAME], through the entry-point group
`shoal.sinks`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Protocol, Self
from urllib.parse import quote, urlsplit

from pydantic import Field, PlainSerializer, field_validator, model_validator

from shoal import __version__
from shoal.config.base import FilePath
from shoal.config.extension_settings import SINKS, SinkSettings
from shoal.errors import LogUnavailable, MissingExtra, SettingsError
from shoal.files import read_password
from shoal.protocol.events import SITE_EVENT_KINDS

TIMEOUT_S = 10.0
ANSWER_S = 30.0
"""seconds without a byte of a receiver, and in all until it has answered"""
BUSY = frozenset({408, 425, 429})
"""HTTP statuses below 500 with which the same request may succeed later"""


class Sink(Protocol):
    """Somewhere to deliver to. Delivery is at least once: after an outage the same alert may arrive
    twice."""

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """Deliver one alert; False if the receiver rejects it for good. Raises `LogUnavailable`:
        try again later."""
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
        """The sink of a federation; `settings` is an instance of `self.settings`. It connects when
        it delivers.

        Raises `SettingsError` for settings that cannot be, and `MissingExtra`.
        """


def host_of(url: str) -> str:
    """The URL up to its host, since path and query of a webhook often are its secret:
    https://alerts.example/..."""
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
        default=None,
        description="file with a token sent as `Authorization: Bearer`, read at each request",
    )
    signing_key_file: FilePath | None = Field(
        default=None,
        description="file with a secret that the receiver has too: every request is signed with it (HMAC-SHA-256, "
        "`webhook-signature`), read at each request",
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Text for a traceback, or a log of settings: without what may be secret in the URL."""
        yield from (
            (name, host_of(value) if name == "url" else value)
            for name, value in super().__repr_args__()
        )

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
    """Follows no redirect: the token is for the host in the settings, and a GET of another page
    delivers nothing."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Let the answer be an error."""


class _Deadline(http.client.HTTPConnection):
    """A connection that is shut down `ANSWER_S` after it was made, unless it has been answered.

    The time limit of a socket begins anew with each byte: a receiver that sends one at a time would
    hold all alerts.
    """

    _timer: threading.Timer | None = None
    _late = False

    def connect(self) -> None:
        """Connect, and begin to count."""
        super().connect()
        connected = self.sock

        def shut() -> None:
            self._late = True
            # It may have ended by itself just before.
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

        self._timer = threading.Timer(ANSWER_S, shut)
        self._timer.daemon = True
        self._timer.start()

    def getresponse(self) -> http.client.HTTPResponse:
        """The answer's status and headers."""
        try:
            answer = super().getresponse()
        except OSError:
            if not self._late:  # a connection that was shut down can look like one that was reset
                raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._late:  # what was cut off can look like an answer
            raise TimeoutError(f"no whole answer in {ANSWER_S:g} s")
        return answer


class _TimedHandshake(ssl.SSLSocket):
    """A socket that is shut down where its handshake takes longer than `ANSWER_S`."""

    def do_handshake(self, block: bool = False) -> None:
        """See `ssl.SSLSocket.do_handshake`."""

        def shut() -> None:
            # It may have ended by itself just before.
            with suppress(OSError):
                socket.socket.shutdown(self, socket.SHUT_RDWR)

        timer = threading.Timer(ANSWER_S, shut)
        timer.daemon = True
        timer.start()
        try:
            super().do_handshake(block)
        finally:
            timer.cancel()


class _SecureDeadline(_Deadline, http.client.HTTPSConnection):
    """The same over TLS."""


class _Plain(urllib.request.HTTPHandler):
    """Opens connections that end."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open one without TLS."""
        return self.do_open(_Deadline, req)


class _Secure(urllib.request.HTTPSHandler):
    """The same over TLS."""

    def __init__(self) -> None:
        self._timed = ssl.create_default_context()
        self._timed.set_alpn_protocols(["http/1.1"])
        self._timed.sslsocket_class = _TimedHandshake
        super().__init__()

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open one with TLS."""
        return self.do_open(_SecureDeadline, req, context=self._timed)


def cloud_event_headers(alert: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of an alert as headers (CloudEvents 1.0, HTTP binding, binary mode).

    `ce-id` is the same whenever the alert is delivered again: the id of the event, and the rule
    that it matched.
    """
    event = alert["event"]
    family = "site" if event["kind"] in SITE_EVENT_KINDS else "cluster"
    attributes = {
        "specversion": "1.0",
        "id": f"{event['id']}/{alert['alert']}",
        "source": f"/shoal/{event['federation']}"
        + (f"/{event['client']}" if "client" in event else ""),
        "type": f"shoal.{family}.{event['kind']}",
        "subject": event["model"]
        if event["cluster"] is None
        else f"{event['model']}/{event['cluster']}",
    }
    if event["at"] is not None:
        attributes["time"] = (
            datetime.fromtimestamp(event["at"], UTC).isoformat().replace("+00:00", "Z")
        )
    # Printable ASCII, the rest percent-encoded, as the binding has it.
    return {
        f"ce-{name}": quote(text, safe="!#$&'()*+,-./:;<=>?@[]^_`{|}~")
        for name, text in attributes.items()
    }


def signature_headers(secret: str, identity: str, now: float, body: bytes) -> dict[str, str]:
    """The headers that prove who has sent a request, and when (the scheme of Standard Webhooks).

    The signature is HMAC-SHA-256 over id, time in seconds and body, with full stops between them. A
    secret that begins with `whsec_` is base64 from there on, any other one is taken as it is.
    Raises `SettingsError`.
    """
    try:
        key = (
            base64.b64decode(secret[6:], validate=True)
            if secret.startswith("whsec_")
            else secret.encode()
        )
    except ValueError:
        raise SettingsError(
            "[events.webhook] signing_key_file: what follows whsec_ must be base64"
        ) from None
    moment = str(int(now))
    signed = hmac.new(key, f"{identity}.{moment}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": identity,
        "webhook-timestamp": moment,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


class Webhook:
    """POSTs each alert as JSON with the headers of CloudEvents. A status of 2xx is success.

    Redirects, 5xx, 408, 425 and 429 are tried again, others are not. No redirect is followed.
    """

    def __init__(
        self,
        url: str,
        token_file: Path | None,
        signing_key_file: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`token_file`: sent as `Authorization: Bearer`; `signing_key_file`: signs. Both are read
        at each request."""
        self._url = url
        self._token_file = token_file
        self._signing_key_file = signing_key_file
        self._host = host_of(url)
        self._clock = clock
        self._opener = urllib.request.build_opener(_NoRedirects, _Plain, _Secure)

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """See `Sink.deliver`."""
        body = json.dumps(alert).encode()
        headers = {"Content-Type": "application/json", "User-Agent": f"shoal/{__version__}"}
        headers |= cloud_event_headers(alert)
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {read_password(self._token_file, 'events')}"
        if self._signing_key_file is not None:
            secret = read_password(self._signing_key_file, "events")
            headers |= signature_headers(secret, headers["ce-id"], self._clock(), body)
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=TIMEOUT_S):
                return True
        except urllib.error.HTTPError as answer:
            # An open answer holds its connection, and thousands may come in an outage.
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
        return Webhook(settings.url, settings.token_file, settings.signing_key_file)


WEBHOOK = WebhookType()


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


class MqttSinkSettings(BrokerSettings):
    """[events.mqtt]: a topic for each kind of event."""

    topic: str = Field(
        default="shoal/{federation}/{model}/{event}",
        min_length=1,
        description="topic; `{federation}`, `{model}` and `{event}` (its kind) are filled in",
    )

    @model_validator(mode="after")
    def _topic_can_be_filled_in(self) -> Self:
        try:
            self.topic.format(federation="", model="", event="")
        except (KeyError, IndexError, ValueError):
            raise ValueError("topic may hold {federation}, {model} and {event} only") from None
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
            self._client.username_pw_set(
                settings.user, read_password(settings.secret_file, "events")
            )
        if settings.tls:
            self._client.tls_set(None if settings.ca_file is None else str(settings.ca_file))
        self._connected = False

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Raises `LogUnavailable`: try again later."""
        try:
            self._connect()
            message = self._client.publish(topic, payload, qos=1, retain=retain)
            # The acknowledgement of the broker, not of its subscribers: that is all that QoS 1 has.
            message.wait_for_publish(TIMEOUT_S)
            stored = message.is_published()
        except (OSError, RuntimeError, ValueError) as away:
            self.close()
            raise LogUnavailable(f"MQTT broker {self._place()}: {away}") from None
        if not stored:
            self.close()
            raise LogUnavailable(
                f"MQTT broker {self._place()}: no acknowledgement in {TIMEOUT_S:.0f} s"
            )

    def close(self) -> None:
        """Disconnect; closing twice is harmless."""
        if self._connected:
            self._connected = False
            self._client.disconnect()
            # After `disconnect`, which the loop still has to send.
            self._client.loop_stop()

    def _connect(self) -> None:
        if not self._connected:
            port = self._settings.port or (8883 if self._settings.tls else 1883)
            self._client.connect(self._settings.host, port, keepalive=60)
            self._client.loop_start()
            self._connected = True

    def _place(self) -> str:
        return f"{self._settings.host}:{self._settings.port or 'default port'}"


class MqttSink:
    """Publishes each alert as JSON."""

    def __init__(self, settings: MqttSinkSettings, federation: str) -> None:
        """Raises `MissingExtra`."""
        self._topic = settings.topic
        self._federation = federation
        self._publisher = MqttPublisher(settings, f"shoal-{federation}-events")

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """See `Sink.deliver`."""
        topic = self._topic.format(federation=self._federation, model=model, event=event)
        self._publisher.publish(topic, json.dumps(alert).encode())
        return True

    def close(self) -> None:
        """See `Sink.close`."""
        self._publisher.close()


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
        raise SettingsError(
            f"sink of events {name!r} is not a shoal.server_node.clusters.sinks.SinkType"
        )
    return sink_type


class Sinks:
    """All sinks of a federation file. Raises `SettingsError` if there is none."""

    def __init__(self, sections: Mapping[str, SinkSettings], federation: str) -> None:
        """`sections`: sink -> its section, as in `Config.sinks`."""
        if not sections:
            known = ", ".join(f"[events.{name}]" for name in SINKS.names())
            raise SettingsError(
                f"nowhere to forward events to: write a section of a sink; there are {known}"
            )
        self._sinks = {
            name: _sink_type(name).open(settings, federation) for name, settings in sections.items()
        }

    def items(self) -> list[tuple[str, Sink]]:
        """name -> sink."""
        return list(self._sinks.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for sink in self._sinks.values():
            sink.close()
