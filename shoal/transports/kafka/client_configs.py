"""Configuration of kafka-python clients and of topics, from our settings."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from shoal.errors import SettingsError
from shoal.files import read_password
from shoal.transports.base import TopicSettings
from shoal.transports.kafka.transport import KafkaSettings

MIB = 1024 * 1024
CONNECT_S = 10.0
"""a broker that has not answered by then is unavailable; the caller tries again"""
BATCH_BYTES = 32 * 1024
FRAME_BYTES = 64 * 1024
"""part of a topic's max.message.bytes for what Kafka adds to key, value and headers. It is more than a batch of small
records takes, so only a single record can be too large for its topic, and `check_record` rejects that one first."""
SEGMENT_BYTES_MIN = MIB
SEGMENT_BYTES_MAX = 1024 * MIB
SEGMENT_S_MAX = 7 * 86400.0
COMPACT_EVERY_S = 600.0
TOMBSTONE_S = 24 * 3600.0


def servers_of(place: str) -> list[str]:
    """`//host:port,host:port` as a list. Raises `SettingsError`."""
    servers = place.removeprefix("//").rstrip("/").split(",")
    for server in servers:
        if not (place.startswith("//") and re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/@,]+):[0-9]{1,5}", server)):
            raise SettingsError(f"log address kafka:{place}: must be kafka://host:port, or kafka://host:port,host:port")
    return servers


def client_config(servers: list[str], settings: KafkaSettings) -> dict[str, Any]:
    """The configuration that all clients of kafka-python share. It contains secrets: never print it.

    Raises `SettingsError` for a file that cannot be read.
    """
    known: dict[str, Any] = {
        "bootstrap_servers": servers,
        "bootstrap_timeout_ms": int(1000 * CONNECT_S),
        # The library's default grows to 30 s, so a broker that is available again would wait that long for us.
        "reconnect_backoff_max_ms": 1000,
        "security_protocol": ("SASL_" if settings.sasl != "none" else "") + ("SSL" if settings.tls else "PLAINTEXT"),
    }
    files = {
        "ssl_cafile": settings.ca_file,
        "ssl_certfile": settings.certificate_file,
        "ssl_keyfile": settings.key_file,
    }
    for name, file in files.items():
        if file is not None:
            read_password(file, "log")  # kafka-python does not name a file that it cannot read
            known[name] = str(file)
    if settings.sasl == "none":
        return known
    assert settings.secret_file is not None  # KafkaSettings checks it
    secret = read_password(settings.secret_file, "log")
    known["sasl_mechanism"] = settings.sasl.upper()
    if settings.sasl == "oauthbearer":
        known["sasl_oauth_token_provider"] = TokenFile(settings.secret_file)
    else:
        known |= {"sasl_plain_username": settings.user, "sasl_plain_password": secret}
    return known


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """A bearer token in a file that another program renews: it is read at each connection."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def token(self) -> str:
        return read_password(self._file, "log")


def configs_of(settings: TopicSettings, replication: int) -> dict[str, str]:
    """A topic's settings as Kafka's configuration. `replication` 0: the brokers' default."""
    retained = settings.retain_bytes is not None or _finite(settings.retain_s) is not None
    retain_s = _finite(settings.retain_s)
    message_bytes = settings.record_bytes_max + FRAME_BYTES
    configs = {
        "cleanup.policy": ("compact,delete" if retained else "compact") if settings.compact else "delete",
        "retention.ms": "-1" if retain_s is None else str(round(1000 * retain_s)),
        "retention.bytes": "-1" if settings.retain_bytes is None else str(settings.retain_bytes),
        "max.message.bytes": str(message_bytes),
        # Retention uses the brokers' clock: a wrong clock of a writer must not remove what was just written.
        "message.timestamp.type": "LogAppendTime",
    }
    segment_bytes, segment_s = SEGMENT_BYTES_MAX, SEGMENT_S_MAX
    if settings.retain_bytes is not None:
        # Whole segments are removed, so a small topic needs small ones; and a record must fit into one.
        segment_bytes = min(SEGMENT_BYTES_MAX, max(SEGMENT_BYTES_MIN, settings.retain_bytes // 8, message_bytes))
    if retain_s is not None:
        segment_s = min(SEGMENT_S_MAX, max(COMPACT_EVERY_S, retain_s / 8))
    if settings.compact:
        segment_s = COMPACT_EVERY_S  # the newest segment is never compacted
        configs |= {"min.cleanable.dirty.ratio": "0.1", "delete.retention.ms": str(round(1000 * TOMBSTONE_S))}
    if replication >= 3:
        configs["min.insync.replicas"] = str(replication - 1)
    return configs | {"segment.bytes": str(segment_bytes), "segment.ms": str(round(1000 * segment_s))}


def settings_of(configs: dict[str, str], partitions: int) -> TopicSettings:
    """The reverse of `configs_of`: a topic's settings from its Kafka configuration."""
    retain_ms, retain_bytes = int(configs["retention.ms"]), int(configs["retention.bytes"])
    retained = "delete" in configs["cleanup.policy"]
    return TopicSettings(
        partitions=partitions,
        compact="compact" in configs["cleanup.policy"],
        retain_bytes=retain_bytes if retained and retain_bytes >= 0 else None,
        retain_s=retain_ms / 1000 if retained and retain_ms >= 0 else None,
        record_bytes_max=max(1, int(configs["max.message.bytes"]) - FRAME_BYTES),
    )


def _finite(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else seconds
