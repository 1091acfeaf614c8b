"""How Quix Streams reaches the brokers: [log] and [replica] as its settings, and those of librdkafka below it."""

from __future__ import annotations

import time
from typing import Any, Final

from server_node.replicas.quix import ConnectionConfig
from shoal.config.extension_settings import parse_address, transport_part
from shoal.config.limits import RECORD_BYTES_MAX
from shoal.config.sections import ReplicaSettings
from shoal.config.settings import LogSettings
from shoal.files import read_password
from shoal.transports.kafka.client_configs import FRAME_BYTES, servers_of
from shoal.transports.kafka.transport import KafkaSettings

TRANSACTION_COMMITS: Final = 5
"""a transaction may be open for as long as so many should take, and as a session at least. The brokers then abort it:
committed reads stop before an open one, so that time is a part of what taking over a region takes"""
TOKEN_S: Final = 300.0
"""a bearer token is read again after so many seconds"""


def kafka_settings(log: LogSettings) -> KafkaSettings:
    """The part of [log] that is about Kafka."""
    transport = parse_address(log.address).transport
    settings = transport_part(log, transport)
    assert isinstance(settings, KafkaSettings), "the command refuses other transports"
    return settings


def connection(log: LogSettings) -> ConnectionConfig:
    """Where the brokers are, and how to authenticate. It contains secrets: never print it. Raises `SettingsError`."""
    kafka, servers = kafka_settings(log), servers_of(parse_address(log.address).location)
    protocol = ("sasl_" if kafka.sasl != "none" else "") + ("ssl" if kafka.tls else "plaintext")
    known: dict[str, Any] = {"bootstrap_servers": ",".join(servers), "security_protocol": protocol}
    files = {
        "ssl_ca_location": kafka.ca_file,
        "ssl_certificate_location": kafka.certificate_file,
        "ssl_key_location": kafka.key_file,
    }
    known |= {name: str(file) for name, file in files.items() if file is not None}
    if (secret_file := kafka.secret_file) is not None:
        known["sasl_mechanism"] = kafka.sasl.upper()
        if kafka.sasl == "oauthbearer":
            known["oauth_cb"] = lambda _: (read_password(secret_file, "log"), time.time() + TOKEN_S)
        else:
            known |= {"sasl_username": kafka.user, "sasl_password": read_password(secret_file, "log")}
    return ConnectionConfig(**known)


def producer_config(log: LogSettings, settings: ReplicaSettings, name: str) -> dict[str, Any]:
    """For the producer of the replica `name`. Started again, it fences what is left of the process before it."""
    transaction_s = max(settings.session_s, TRANSACTION_COMMITS * settings.commit_s)
    return {
        "transactional.id": f"{settings.group}.{name}",
        "transaction.timeout.ms": round(1000 * transaction_s),
        "message.max.bytes": RECORD_BYTES_MAX + FRAME_BYTES,
        "compression.type": kafka_settings(log).compression,
        # Keys go to the partitions in which every other writer and reader of shoal expects them.
        "partitioner": "consistent",
        "linger.ms": 5,
    }


def consumer_config(settings: ReplicaSettings, name: str) -> dict[str, Any]:
    """For the consumer of the replica `name`."""
    session_ms = round(1000 * settings.session_s)
    return {
        "client.id": name,
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": session_ms // 3,
        # A state that a killed replica had not committed must not be restored from the changelog.
        "isolation.level": "read_committed",
    }
