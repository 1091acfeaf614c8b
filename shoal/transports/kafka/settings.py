"""The settings of a log on Kafka, and the check that what they need is installed.

kafka-python is not imported before a log is opened: reading the settings of a federation needs none
of it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from shoal.config.base import FilePath, Settings
from shoal.config.sections import is_loopback
from shoal.errors import MissingExtra, SettingsError


class BrokerAccess(Settings):
    """How Kafka brokers are reached."""

    tls: bool = Field(default=False, description="connect by TLS, and verify the brokers")
    ca_file: FilePath | None = Field(
        default=None,
        description="certificates (PEM) of the authorities trusted with TLS; none: those of the "
        "system",
    )
    certificate_file: FilePath | None = Field(
        default=None, description="client certificate (PEM), if the brokers ask for one"
    )
    key_file: FilePath | None = Field(
        default=None, description="private key (PEM) of that certificate"
    )
    sasl: Literal["none", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer"] = Field(
        default="none", description="how to authenticate"
    )
    user: str = Field(
        default="", description="user name; for `oauthbearer` the client id at `oauth_url`"
    )
    secret_file: FilePath | None = Field(
        default=None,
        description="file with the password; for `oauthbearer` with the client secret for"
        " `oauth_url`, or without one with the bearer token, read at each login",
    )
    oauth_url: str = Field(
        default="",
        pattern=r"^(https?://[^\s@?#]+)?$",
        description="token endpoint of the identity provider, `https://...`, that gives bearer"
        " tokens for `user` and `secret_file` (OAuth client credentials); none: the token is in"
        " `secret_file`",
    )
    oauth_scope: str = Field(
        default="", description="scope to ask for there; several are separated by spaces"
    )
    oauth_ca_file: FilePath | None = Field(
        default=None,
        description="certificates (PEM) of the authorities of the token endpoint; none: those of"
        " the system",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.sasl == "none" and (self.user or self.secret_file):
            raise ValueError("user and secret_file need a way to authenticate: set sasl")
        if self.sasl != "none" and self.secret_file is None:
            raise ValueError(f'sasl = "{self.sasl}" needs a secret_file')
        if self.sasl not in ("none", "oauthbearer") and not self.user:
            raise ValueError(f'sasl = "{self.sasl}" needs a user')
        if self.sasl in ("plain", "oauthbearer") and not self.tls:
            raise ValueError(
                f'sasl = "{self.sasl}" sends the secret unencrypted, so it needs tls = true'
            )
        self._check_token_endpoint()
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError("ca_file, certificate_file and key_file are for TLS: set tls = true")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        return self

    def _check_token_endpoint(self) -> None:
        if not self.oauth_url:
            if self.oauth_scope or self.oauth_ca_file:
                raise ValueError("oauth_scope and oauth_ca_file are for an endpoint: set oauth_url")
            return
        if self.sasl != "oauthbearer":
            raise ValueError('oauth_url gives bearer tokens: set sasl = "oauthbearer"')
        if not self.user:
            raise ValueError("oauth_url needs a user, the client id there")
        host = None
        # A port that is no number, or brackets around what is no address.
        with suppress(ValueError):
            endpoint = urlsplit(self.oauth_url)
            if endpoint.port != 0:
                host = endpoint.hostname
        if host is None:
            raise ValueError("oauth_url: must be https://host/path")
        if endpoint.scheme != "https" and not is_loopback(host):
            raise ValueError(
                "oauth_url: the client secret is sent there unencrypted, so it needs https://"
            )


class KafkaSettings(BrokerAccess):
    """How Kafka brokers are reached, and how they keep a topic."""

    replication: int = Field(
        default=0, ge=0, le=100, description="copies of each topic; 0: the default of the brokers"
    )
    compression: Literal["none", "gzip", "lz4"] = Field(
        default="none", description="compression of records; `lz4` needs the extra `lz4`"
    )


def check_compression(settings: KafkaSettings) -> None:
    """Raises `MissingExtra` unless kafka-python is installed, with what the configured compression
    needs."""
    try:
        from kafka import codec  # noqa: PLC0415 - kafka-python is an extra
    except ModuleNotFoundError as missing:
        if missing.name != "kafka":
            raise
        raise MissingExtra("A Kafka log", "kafka") from None
    if settings.compression == "lz4" and not codec.has_lz4():
        raise MissingExtra('[log] compression = "lz4"', "lz4")


def servers_of(place: str) -> list[str]:
    """`//host:port,host:port` as a list. Raises `SettingsError`."""
    servers = place.removeprefix("//").rstrip("/").split(",")
    for server in servers:
        if not (
            place.startswith("//")
            and re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/@,]+):[0-9]{1,5}", server)
        ):
            raise SettingsError(
                f"log address kafka:{place}: must be kafka://host:port, or "
                "kafka://host:port,host:port"
            )
    return servers
