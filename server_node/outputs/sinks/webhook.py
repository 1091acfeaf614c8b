"""The sink `webhook`: POSTs each alert as JSON, with the headers of CloudEvents and, if it has a
key, a signature.

Sources: CloudEvents 1.0, HTTP protocol binding, binary mode; Standard Webhooks for the signature.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

from pydantic import Field, PlainSerializer, field_validator

from shoal import __version__
from shoal.config.base import FilePath
from shoal.config.extension_settings import SinkSettings
from shoal.errors import LogUnavailable, SettingsError
from shoal.files import read_password
from shoal.protocol.events import SITE_EVENT_KINDS
from shoal.server_node.outputs.sinks.base import TIMEOUT_S, SinkType

BUSY: Final = frozenset({408, 425, 429})
"""HTTP statuses below 500 with which the same request may succeed later: request timeout, too
early, too many requests"""
ENCODED_KEY_PREFIX: Final = "whsec_"
"""how a secret of Standard Webhooks begins whose rest is base64"""
HEADER_CHARACTERS: Final = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""printable ASCII that an attribute keeps in its header, beside letters and digits; the binding has
the space, the double quote, the percent sign and all other characters percent-encoded"""


def host_of(url: str) -> str:
    """The URL up to its host: https://alerts.example/...

    Path and query of a webhook often are its secret, so that they are in no message and no log.
    """
    parts = urlsplit(url)
    port = "" if parts.port is None else f":{parts.port}"
    has_more = parts.path.strip("/") or parts.query
    rest = "/..." if has_more else ""
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
        description="file with a secret that the receiver has too: every request is signed with it "
        "(HMAC-SHA-256, `webhook-signature`), read at each request",
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Text for a traceback, or a log of settings: without what may be secret in the URL."""
        for name, value in super().__repr_args__():
            yield name, host_of(value) if name == "url" else value

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


def cloud_event_headers(alert: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of an alert as headers (CloudEvents 1.0, HTTP binding, binary mode).

    `ce-id` is the same whenever the alert is delivered again: the id of the event, and the rule
    that it matched.
    """
    event = alert["event"]
    source = f"/shoal/{event['federation']}"
    is_of_site = event["kind"] in SITE_EVENT_KINDS
    # An event that names a client may come from the server all the same.
    if is_of_site:
        source += f"/{event['client']}"
    subject = event["model"]
    if event["cluster"] is not None:
        subject += f"/{event['cluster']}"
    family = "site" if is_of_site else "cluster"
    attributes = {
        "specversion": "1.0",
        "id": f"{event['id']}/{alert['alert']}",
        "source": source,
        "type": f"shoal.{family}.{event['kind']}",
        "subject": subject,
    }
    if event["at"] is not None:
        moment = datetime.fromtimestamp(event["at"], UTC)
        attributes["time"] = moment.isoformat().replace("+00:00", "Z")
    return {f"ce-{name}": quote(text, safe=HEADER_CHARACTERS) for name, text in attributes.items()}


def signature_headers(secret: str, identity: str, now: float, body: bytes) -> dict[str, str]:
    """The headers that prove who has sent a request, and when (the scheme of Standard Webhooks).

    The signature is HMAC-SHA-256 over id, time in seconds and body, with full stops between them. A
    secret that begins with `whsec_` is base64 from there on, any other one is taken as it is.
    Raises `SettingsError`.
    """
    moment = str(int(now))
    signed = f"{identity}.{moment}.".encode() + body
    signature = hmac.new(_signing_key(secret), signed, hashlib.sha256).digest()
    return {
        "webhook-id": identity,
        "webhook-timestamp": moment,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


def _signing_key(secret: str) -> bytes:
    if not secret.startswith(ENCODED_KEY_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(ENCODED_KEY_PREFIX), validate=True)
    except ValueError:
        raise SettingsError(
            f"[events.webhook] signing_key_file: what follows {ENCODED_KEY_PREFIX} must be base64"
        ) from None


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
        """`token_file`: sent as `Authorization: Bearer`; `signing_key_file`: signs.

        Both are read at each request, so that they can be replaced while alerts are forwarded.
        Raises `MissingExtra`.
        """
        self._token_file = token_file
        self._signing_key_file = signing_key_file
        self._shown = f"webhook at {host_of(url)}"
        self._clock = clock
        from shoal.server_node.outputs.sinks.http_post import (  # noqa: PLC0415 - loads httpx2
            HttpPost,
        )

        self._post = HttpPost(url, self._shown, TIMEOUT_S)

    def deliver(self, alert: Mapping[str, Any], event: str, model: str) -> bool:
        """See `Sink.deliver`."""
        body = json.dumps(alert).encode()
        status = self._post.send(self._headers(alert, body), body)
        if 200 <= status < 300:
            return True
        self._check_rejected(status)
        return False

    def close(self) -> None:
        """Do nothing: no connection is kept between two alerts."""

    def _headers(self, alert: Mapping[str, Any], body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": f"shoal/{__version__}"}
        headers |= cloud_event_headers(alert)
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {read_password(self._token_file, 'events')}"
        if self._signing_key_file is not None:
            secret = read_password(self._signing_key_file, "events")
            # The id of the event, so that a receiver recognises an alert that is delivered again
            # although its time, and so its signature, is another.
            headers |= signature_headers(secret, headers["ce-id"], self._clock(), body)
        return headers

    def _check_rejected(self, status: int) -> None:
        """Raises `LogUnavailable` unless the status rejects the alert for good."""
        if 300 <= status < 400:
            raise LogUnavailable(
                f"{self._shown}: answered {status}, a redirect, which is not followed; "
                "set the final URL"
            )
        if status >= 500 or status in BUSY:
            raise LogUnavailable(f"{self._shown}: answered {status}")


class WebhookType(SinkType):
    """The sink `webhook`."""

    name = "webhook"
    settings = WebhookSettings

    def open(self, settings: WebhookSettings, federation: str) -> Webhook:
        """See `SinkType.open`."""
        return Webhook(settings.url, settings.token_file, settings.signing_key_file)


WEBHOOK = WebhookType()
