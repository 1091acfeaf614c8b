"""Where events are forwarded to: an HTTP endpoint (webhook) or an MQTT topic."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from shoal import __version__
from shoal.config.sections import EventSettings
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


class Webhook:
    """POSTs each alert as JSON. A status of 2xx is success; 5xx, 408, 425 and 429 are tried again, others are not."""

    def __init__(self, url: str, token_file: Path | None) -> None:
        """`token_file`: sent as `Authorization: Bearer`, read at each request so that it can be renewed."""
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"[events] webhook = {url!r}: must begin with http:// or https://")
        self._url, self._token_file = url, token_file

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """See `Sink.deliver`."""
        headers = {"Content-Type": "application/json", "User-Agent": f"shoal/{__version__}"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {read_password(self._token_file, 'events')}"
        request = urllib.request.Request(self._url, json.dumps(alert).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return True
        except urllib.error.HTTPError as answer:
            answer.close()
            if answer.code >= 500 or answer.code in BUSY:
                raise LogUnavailable(f"webhook {self._url}: answered {answer.code}") from None
            return False
        except (urllib.error.URLError, http.client.HTTPException, OSError) as away:
            reason = getattr(away, "reason", away)
            raise LogUnavailable(f"webhook {self._url}: {reason}") from None

    def close(self) -> None:
        """Nothing is kept open between two alerts."""


class MqttSink:
    """Publishes each alert as JSON with QoS 1 and waits for the broker's acknowledgement."""

    def __init__(self, settings: EventSettings, federation: str) -> None:
        """Connects at the first alert. Raises `MissingExtra`."""
        try:
            from paho.mqtt import client, enums  # noqa: PLC0415 - MQTT is an extra
        except ModuleNotFoundError:
            raise MissingExtra("Events by MQTT", "mqtt") from None
        self._settings, self._federation = settings, federation
        self._client = client.Client(enums.CallbackAPIVersion.VERSION2, client_id=f"shoal-{federation}-events")
        if settings.mqtt_user:
            if settings.mqtt_secret_file is None:
                raise SettingsError("[events] mqtt_user needs mqtt_secret_file")
            self._client.username_pw_set(settings.mqtt_user, read_password(settings.mqtt_secret_file, "events"))
        if settings.mqtt_tls:
            self._client.tls_set(None if settings.mqtt_ca_file is None else str(settings.mqtt_ca_file))
        self._connected = False

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """See `Sink.deliver`."""
        topic = self._settings.mqtt_topic.format(federation=self._federation, model=model, event=event)
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
            port = self._settings.mqtt_port or (8883 if self._settings.mqtt_tls else 1883)
            self._client.connect(self._settings.mqtt_host, port, keepalive=60)
            self._client.loop_start()
            self._connected = True

    def _place(self) -> str:
        return f"{self._settings.mqtt_host}:{self._settings.mqtt_port or 'default port'}"


class Sinks:
    """All sinks of the settings. Raises `SettingsError` if there is none."""

    def __init__(self, settings: EventSettings, federation: str) -> None:
        self._sinks: dict[str, Sink] = {}
        if settings.webhook:
            self._sinks["webhook"] = Webhook(settings.webhook, settings.webhook_token_file)
        if settings.mqtt_host:
            self._sinks["mqtt"] = MqttSink(settings, federation)
        if not self._sinks:
            raise SettingsError("nowhere to forward events to: set [events] webhook or mqtt_host")

    def items(self) -> list[tuple[str, Sink]]:
        """name -> sink."""
        return list(self._sinks.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for sink in self._sinks.values():
            sink.close()
