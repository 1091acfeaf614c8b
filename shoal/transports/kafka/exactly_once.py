"""Whether the brokers' transactions hold what replicas and hosts of a group promise: all of a
commit once, or nothing.

Before KIP-890 a transaction of a process that was killed could be left open for ever, or records of
it could end up in the transaction after it: Kafka 3.6 verifies a producer's records, 3.7 its
offsets too, and all later versions both.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import UnsupportedVersionError

from shoal.errors import SettingsError
from shoal.telemetry.events import log_event
from shoal.transports.kafka.connection import client_config, connect, kafka_errors
from shoal.transports.kafka.settings import KafkaSettings, servers_of

VERIFIES: Final = "transaction.partition.verification.enable"
UNCLEAN: Final = "unclean.leader.election.enable"
IN_SYNC: Final = "transaction.state.log.min.isr"
CONFIGS: Final = (VERIFIES, UNCLEAN, IN_SYNC)
OFFSETS_VERIFIED: Final = 15
"""level of the feature metadata.version of Kafka 3.7"""
RECORDS_VERIFIED: Final = 12
"""the same of Kafka 3.6"""
BROKERS_MIN: Final = 3
"""brokers from which on one may fail without harm"""


def check_transactions(place: str, settings: KafkaSettings) -> None:
    """Raises `SettingsError` for brokers, at `//host:port,host:port`, on which a commit may count
    in part or twice.

    And as the log does. What is only weaker than it could be is logged (`transactions_weak`), also
    that the user may not read the settings.
    """
    servers = servers_of(place)
    where = ",".join(servers)
    admin = connect(where, KafkaAdminClient, client_config(servers, settings))
    with closing(admin), kafka_errors(where, but=(UnsupportedVersionError,)):
        # No right is needed for this.
        try:
            level = newest_metadata_version(admin.describe_features())
        except UnsupportedVersionError:
            raise too_old(where) from None
        if level < RECORDS_VERIFIED:
            raise too_old(where)
        cluster = admin.describe_cluster()
        if "DESCRIBE_CONFIGS" not in (cluster.get("authorized_operations") or ()):
            log_event(
                "transactions_weak",
                logging.WARNING,
                reason="this user may not read the brokers' settings (DescribeConfigs on the "
                "cluster), so they are not checked: Kafka must be 3.7 or later",
            )
            return
        numbers = [str(broker["broker_id"]) for broker in cluster["brokers"]]
        resources = [
            ConfigResource(ConfigResourceType.BROKER, number, dict.fromkeys(CONFIGS))
            for number in numbers
        ]
        described = admin.describe_configs(resources, config_filter="all")["broker"]
    values: dict[str, dict[str, str]] = {}
    for number in numbers:
        configs = described.get(number, {})
        values[number] = {name: str(about["value"]) for name, about in configs.items()}
    for reason in weaknesses(values, level):
        log_event("transactions_weak", logging.WARNING, reason=reason)


def newest_metadata_version(features: Mapping[str, Mapping[str, Any]]) -> int:
    """The newest level of metadata.version that a broker can have; one that has none at all, with
    ZooKeeper, is taken for one of 3.7, and its settings tell."""
    level: int = features.get("metadata.version", {}).get("supported", (0, OFFSETS_VERIFIED))[1]
    return level


def too_old(brokers: str) -> SettingsError:
    """The error for brokers before Kafka 3.6."""
    return SettingsError(
        f"brokers {brokers} are older than Kafka 3.6: a transaction of a process that was killed"
        " may stay open, or be mixed with the next one (KIP-890). Replicas, and hosts of a group,"
        " need Kafka 3.7 or later; or run shoal server, and hosts with fixed numbers"
    )


def weaknesses(brokers: Mapping[str, Mapping[str, Any]], level: int) -> list[str]:
    """What the settings of brokers (number -> name -> value) and their newest metadata.version
    leave to chance.

    Raises `SettingsError` where "exactly once" does not hold.
    """
    old = [number for number, configs in brokers.items() if VERIFIES not in configs]
    if old:
        raise too_old(", ".join(old))
    off = [number for number, configs in brokers.items() if configs[VERIFIES] != "true"]
    if off:
        raise SettingsError(
            f"{VERIFIES} is off on the brokers {', '.join(off)}: a transaction of a process that"
            " was killed may stay open, or be mixed with the next one (KIP-890). Switch it on, as"
            " is Kafka's default"
        )
    reasons: list[str] = []
    if level < OFFSETS_VERIFIED:
        reasons.append("Kafka 3.6 does not verify the offsets of transactions: take 3.7 or later")
    if any(configs.get(UNCLEAN) == "true" for configs in brokers.values()):
        reasons.append(
            f"{UNCLEAN} is on: what was committed can be lost, when a broker without it becomes "
            "the leader"
        )
    in_sync = [int(configs.get(IN_SYNC, BROKERS_MIN)) for configs in brokers.values()]
    # Fewer brokers could not confirm twice once one of them is away.
    if len(brokers) >= BROKERS_MIN and min(in_sync) < BROKERS_MIN - 1:
        reasons.append(
            f"{IN_SYNC} is 1: what one broker has confirmed alone is lost with its disk; set 2"
        )
    return reasons
